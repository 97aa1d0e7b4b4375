from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from a2a_fabric.agent import Agent
from a2a_fabric.core.agent import Capability, Health, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AgentOffline,
    AllAttemptsFailed,
    AuthInvalid,
    BadInput,
    CallTimeout,
    CapabilityNotFound,
    FabricError,
    Forbidden,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_agent,
)
from a2a_fabric.core.result import token
from a2a_fabric.core.routing import RoutingPolicy
from a2a_fabric.testing import Turn
from tests.marks import requirement
from tests.unit.made import Heard, agent, call
from tests.unit.scripted_route import ScriptedRoute

ONE_VOCABULARY = RoutingPolicy(peers="capability")
SLOW = Turn(answer={"answer": "too late"}, delay=30)
HALF = Turn(answer=CallTimeout(1), events=(token("half a "),))


def percy(**capability: Any) -> Manifest:
    return agent("percy", Capability(name="reason", **capability), node_id="node-1", fallbacks=("percy-backup",))


def backup(**capability: Any) -> Manifest:
    return agent("percy-backup", Capability(name="reason", **capability), node_id="node-2")


async def test_the_agent_that_was_asked_for_answers_and_no_other_agent_is_called() -> None:
    route = ScriptedRoute((percy(), {"answer": "42"}), (backup(), {}))
    result = await route()
    assert (result.data, result.fallback) == ({"answer": "42"}, None)
    assert route.asked == {"percy": 1}
    assert route.health.good == ["percy"]


@requirement("001-38", "001-39")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AgentOffline("x"), "offline"),
        (CallTimeout(1), "timeout"),
        (CapabilityNotFound("percy", "reason"), "capability_not_found"),
        (UpstreamFailed("x"), "failed"),
    ],
)
async def test_a_fallbacks_answer_says_who_why_and_after_what(error: FabricError, reason: str) -> None:
    route = ScriptedRoute((percy(), error), (backup(), {"answer": "instead"}))
    result = await route()
    assert (result.data, result.fallback and result.fallback.used) == ({"answer": "instead"}, "percy-backup")
    assert result.fallback is not None
    assert (result.fallback.requested, result.fallback.used) == ("percy", "percy-backup")
    assert result.fallback.reason == reason
    assert result.fallback.attempts == (f"percy@node-1: {reason}", "percy-backup@node-2: ok")
    assert route.health.bad == [("percy", reason)]


@requirement("001-38")
@pytest.mark.parametrize("refusal", [UpstreamRefused("not today"), error_from_agent("TIMEOUT", "not today")])
async def test_a_refusal_is_the_answer_and_no_other_agent_is_asked(refusal: FabricError) -> None:
    route = ScriptedRoute((percy(), refusal), (backup(), {"answer": "instead"}))
    error = await route.fails()
    assert (error, error.message) == (refusal, "not today")
    assert route.asked == {"percy": 1}


@requirement("001-40", "001-44", "001-38")
async def test_when_all_fallbacks_fail_the_error_names_every_hop() -> None:
    route = ScriptedRoute((percy(max_timeout_ms=30), SLOW), (backup(), AgentOffline("nobody listens")))
    error = await route.fails(call(timeout_ms=60_000))
    assert isinstance(error, AllAttemptsFailed)
    assert error.code == "AGENT_OFFLINE"
    assert error.message == "Agent percy unavailable and all fallbacks failed"
    assert error.details["primary"] == "percy@node-1: timeout"
    assert error.details["fallbacks"] == ["percy-backup@node-2: offline"]


@requirement("001-40")
async def test_the_primary_is_named_first_though_it_was_asked_last() -> None:
    route = ScriptedRoute((percy(), AgentOffline("x")), (backup(), CallTimeout(1)), percy=Health(status="offline"))
    error = await route.fails()
    assert error.details["primary"] == "percy@node-1: offline"
    assert error.details["fallbacks"] == ["percy-backup@node-2: timeout"]


async def test_without_fallbacks_the_agents_own_error_is_told() -> None:
    error = await ScriptedRoute((agent("percy", "reason"), CallTimeout(1))).fails()
    assert error.code == "TIMEOUT"
    assert error.details == {"agent_id": "percy", "capability": "reason"}


@requirement("001-38")
@pytest.mark.parametrize("error", [BadInput("what?"), Forbidden("no"), AuthInvalid()])
async def test_bad_input_and_refused_credentials_never_fall_back(error: FabricError) -> None:
    route = ScriptedRoute((percy(), error), (backup(), {}))
    assert await route.fails() is error
    assert route.asked == {"percy": 1}


async def test_bad_input_at_a_fallback_tells_of_the_attempts_before() -> None:
    error = await ScriptedRoute((percy(), AgentOffline("x")), (backup(), BadInput("what?"))).fails()
    assert error.code == "BAD_INPUT"
    assert error.details["attempts"] == ["percy@node-1: offline", "percy-backup@node-2: bad_input"]


@pytest.mark.parametrize(
    ("idempotent", "error", "is_repeated"),
    [
        (None, CallTimeout(1), True),
        (None, UpstreamInterrupted("cut"), False),
        (False, CallTimeout(1), False),
        (False, UpstreamInterrupted("cut"), False),
        (False, AgentOffline("x"), True),
        (True, UpstreamInterrupted("cut"), True),
    ],
)
async def test_what_may_have_run_is_repeated_only_as_declared(
    idempotent: bool | None, error: FabricError, is_repeated: bool
) -> None:
    route = ScriptedRoute((percy(idempotent=idempotent), error), (backup(), {}))
    if is_repeated:
        fallback = (await route()).fallback
        assert fallback is not None
        assert fallback.used == "percy-backup"
    else:
        assert await route.fails() is error
    assert ("percy-backup" in route.asked) is is_repeated


async def test_after_words_have_gone_out_no_other_agent_is_asked() -> None:
    route = ScriptedRoute((percy(streaming=True), HALF), (backup(streaming=True), {}))
    heard = Heard()
    assert (await route.fails(call(stream=True), heard)).code == "TIMEOUT"
    assert route.asked == {"percy": 1}
    assert heard.of("token") == [{"text": "half a "}]


async def test_an_idempotent_stream_starts_anew_elsewhere_and_says_so() -> None:
    whole = Turn(answer={"answer": "whole"}, events=(token("whole"),))
    route = ScriptedRoute((percy(streaming=True, idempotent=True), HALF), (backup(streaming=True), whole))
    heard = Heard()
    result = await route(call(stream=True), heard)
    assert result.data == {"answer": "whole"}
    assert [event.kind for event in heard.events] == ["status", "token", "status", "token"]
    told = heard.of("status")[1]
    assert (told["fallback"], told["reset"]) == ("percy-backup", True)
    assert "percy@node-1: timeout" in told["message"]


async def test_a_plain_reply_hears_no_status() -> None:
    heard = Heard()
    await ScriptedRoute((percy(), AgentOffline("x")), (backup(), {}))(call(), heard)
    assert heard.events == []


@requirement("001-41")
async def test_tier_a_asks_peers_with_the_same_capability() -> None:
    alone = agent("percy", Capability(name="parse-recipe", idempotent=True), node_id="node-1")
    cook = agent("cook", Capability(name="parse_recipe", side_effects="none"))
    route = ScriptedRoute((alone, AgentOffline("x")), (cook, {}), (agent("b", "draw"), {}), policy=ONE_VOCABULARY)
    result = await route(call(capability="Parse Recipe"))
    assert result.fallback is not None
    assert result.fallback.used == "cook"
    assert route.runtimes["cook"].calls[0].target.capability == "parse_recipe"


@requirement("001-41")
async def test_tier_b_asks_the_same_agent_without_streaming() -> None:
    alone = agent("percy", Capability(name="reason", streaming=True, idempotent=True))
    route = ScriptedRoute((alone, [UpstreamInterrupted("cut"), {"answer": "in one piece"}]))
    result = await route(call(stream=True), Heard())
    assert [request.response.stream for request in route.runtimes["percy"].calls] == [True, False]
    assert result.fallback is not None
    assert (result.fallback.used, result.fallback.degraded) == ("percy", "non-streaming")
    assert result.fallback.reason == "interrupted"


@requirement("001-41")
async def test_tier_c_refuses_untrusted_origins() -> None:
    route = ScriptedRoute((percy(), {}), (backup(), {}))
    error = await route.fails(call(auth=Principal(trust="public")))
    assert (type(error), error.code) == (Forbidden, "AUTH_DENIED")
    assert route.asked == {}


@requirement("001-41")
async def test_tier_c_never_moves_work_to_a_less_trusted_peer() -> None:
    route = ScriptedRoute(
        (agent("percy", "reason", trust_tier="local"), AgentOffline("x")),
        (agent("stranger", "reason", trust_tier="public"), {}),
        policy=ONE_VOCABULARY,
    )
    assert (await route.fails()).code == "AGENT_OFFLINE"
    assert route.asked == {"percy": 1}


@requirement("001-47")
async def test_an_agent_known_to_be_offline_is_asked_last_and_the_answer_says_why() -> None:
    route = ScriptedRoute((percy(), {}), (backup(), {}), percy=Health(status="offline"))
    result = await route()
    assert result.fallback is not None
    assert (result.fallback.used, result.fallback.reason) == ("percy-backup", "percy is offline")
    assert route.asked == {"percy-backup": 1}


@requirement("001-44")
async def test_each_attempt_gets_a_share_of_what_is_left_and_the_last_all_of_it() -> None:
    policy = RoutingPolicy(attempt_share=0.5)
    route = ScriptedRoute((percy(), AgentOffline("x")), (backup(), {}), policy=policy)
    await route(call(timeout_ms=60_000))
    (first,), (second,) = (route.runtimes[name].calls for name in ("percy", "percy-backup"))
    assert 20_000 <= first.target.timeout_ms <= 30_000
    assert 40_000 <= second.target.timeout_ms <= 60_000


@requirement("001-44", "001-32")
async def test_no_attempt_waits_longer_than_its_capability_allows() -> None:
    route = ScriptedRoute((percy(max_timeout_ms=30), SLOW), (backup(max_timeout_ms=40), {}))
    fallback = (await route(call(timeout_ms=60_000))).fallback
    assert fallback is not None
    assert fallback.used == "percy-backup"
    assert route.runtimes["percy"].calls[0].target.timeout_ms == 30
    assert route.runtimes["percy-backup"].calls[0].target.timeout_ms == 40


@requirement("001-44")
async def test_all_attempts_together_end_with_the_callers_time() -> None:
    names = ("percy", "a", "b", "c", "d", "e")
    fleet = [(agent(name, "reason", fallbacks=names[1:]), SLOW) for name in names]
    route = ScriptedRoute(*fleet, policy=RoutingPolicy(max_attempts=6, attempt_share=0.2))
    started = time.monotonic()
    error = await route.fails(call(timeout_ms=600))
    assert isinstance(error, CallTimeout), "if every attempt ran out of time, so did the call"
    assert error.details["primary"] == "percy@local: timeout"
    assert error.details["fallbacks"] == [f"{name}@local: timeout" for name in names[1:]]
    assert 0.5 < time.monotonic() - started < 10
    assert len(route.asked) == 6


async def test_when_the_time_is_up_no_agent_is_asked_for_the_last_millisecond() -> None:
    """A reader so slow that telling him takes longer than the call may."""
    route = ScriptedRoute(
        (percy(streaming=True), Turn(answer=AgentOffline("x"), delay=0.01)),
        (backup(), AgentOffline("x")),
        (agent("third", "reason"), {}),
    )

    async def slow_reader(event: object) -> None:
        await asyncio.sleep(0.03)

    await route.fails(call(stream=True, timeout_ms=40), slow_reader)
    assert "third" not in route.asked


async def test_a_caller_who_leaves_cancels_the_agents_work_and_no_other_is_asked() -> None:
    route = ScriptedRoute((percy(), SLOW), (backup(), {}))
    task = asyncio.ensure_future(route())
    await asyncio.wait_for(route.runtimes["percy"].called.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(route.runtimes["percy"].cancelled) == 1
    assert route.asked == {"percy": 1}
    assert route.health.bad == []


@requirement("001-35")
async def test_the_envelope_reaches_the_agent_whole() -> None:
    route = ScriptedRoute((percy(), {}))
    wanted = call(task="think", context={"depth": 2})
    await route(wanted)
    (got,) = route.runtimes["percy"].calls
    assert (got.trace, got.auth) == (wanted.trace, wanted.auth)
    assert (got.input.task, got.input.context) == ("think", {"depth": 2})
    assert (got.target.agent_id, got.target.capability) == ("percy", "reason")
    assert got.response == wanted.response


async def test_the_only_agent_gets_all_of_the_time_its_arguments_and_nothing_about_how_it_was_chosen() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    route = ScriptedRoute((agent("percy", Capability(name="reason", input_schema=schema)), {"answer": "42"}))
    wanted = call(context={"text": "think"}, timeout_ms=1001)
    for any_agent in (UNSET, True):
        assert (await route(replace(wanted, any_agent=any_agent))).data == {"answer": "42"}
    plain, chosen = route.runtimes["percy"].calls
    assert plain.target is wanted.target
    assert (plain.any_agent, chosen.any_agent) == (UNSET, UNSET)
    assert plain.input.arguments == chosen.input.arguments == {"text": "think"}
    assert plain.input.arguments is not wanted.input.context, "the agent may change what it is given"
    assert plain.delegation_chain == chosen.delegation_chain != UNSET


async def test_arguments_follow_the_schema_that_the_catalog_has_now_not_the_one_a_runtime_was_built_with() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    route = ScriptedRoute((agent("percy", Capability(name="reason", input_schema=schema)), {}))
    await route(call(task="think"))
    assert route.runtimes["percy"].calls[0].input.arguments == {"text": "think"}


async def test_a_failure_that_forbids_going_on_is_told_itself_with_the_hops_before_it() -> None:
    lost = UpstreamInterrupted("cut")
    third = agent("third", "reason")
    route = ScriptedRoute((percy(), AgentOffline("x")), (backup(), lost), (third, {}))
    error = await route.fails()
    assert error is lost
    assert error.details["attempts"] == ["percy@node-1: offline", "percy-backup@node-2: interrupted"]
    assert "third" not in route.asked


async def test_a_capability_that_cannot_stream_is_asked_plainly() -> None:
    route = ScriptedRoute((agent("percy", "reason"), {}))
    result = await route(call(stream=True), Heard())
    assert not route.runtimes["percy"].calls[0].response.stream
    assert result.fallback is None


async def test_an_agent_without_the_capability_is_named_as_the_first_hop() -> None:
    route = ScriptedRoute((agent("percy", "draw", fallbacks=("percy-backup",)), {}), (backup(), AgentOffline("x")))
    error = await route.fails()
    assert error.details["primary"] == "percy: capability_not_found"
    assert error.details["fallbacks"] == ["percy-backup@node-2: offline"]


@pytest.mark.parametrize("declared", [(), (Capability(name="add"),)], ids=["nothing", "a name"])
async def test_an_agent_that_is_not_described_yet_works_its_arguments_out_itself(
    declared: tuple[Capability, ...],
) -> None:
    adder = Agent("adder")

    @adder.capability
    async def add(a: int, b: int = 1) -> dict[str, Any]:
        return {"sum": a + b}

    route = ScriptedRoute((agent("adder", *declared), {}))
    route.runtimes["adder"] = adder  # type: ignore[assignment]  # a handler, as every runtime is
    result = await route(call("adder", "add", task="", context={"a": 40, "b": 2}))
    assert result.data == {"sum": 42}
