"""Who may carry out a call that names an agent: that agent, its pool, its declared fallbacks, and no other agent."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_fabric.core.agent import Capability, Health, Manifest
from a2a_fabric.core.errors import AgentOffline, CallTimeout, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.routing import RoutePlan, RouteRequest, RoutingPolicy, must_leave_time, plan_route, share_load
from a2a_fabric.registry.catalog import Catalog
from tests.marks import requirement
from tests.unit.made import LOCAL, Heard, States, agent, call
from tests.unit.scripted_route import ScriptedRoute

DECLARED = RoutingPolicy()
ONE_VOCABULARY = RoutingPolicy(peers="capability")
READS = Capability(name="plan", side_effects="reads")


def registered(agent_id: str, *capabilities: str | Capability, owner: str = "psk:mallory", **about: Any) -> Manifest:
    return agent(agent_id, *capabilities, metadata={"registered": {"owner": owner}}, **about)


def planned(
    *manifests: Manifest,
    agent_id: str = "percy",
    policy: RoutingPolicy = DECLARED,
    learnt: tuple[str, ...] = (),
    any_agent: bool = False,
    **healths: Health,
) -> RoutePlan:
    request = RouteRequest(agent_id=agent_id, capability="plan", principal=LOCAL, any_agent=any_agent)
    return plan_route(request, Catalog(manifests, learnt), States(**healths), policy)


def names(plan: RoutePlan) -> list[str]:
    return [candidate.manifest.agent_id for candidate in plan.candidates]


@requirement("001-41")
def test_by_default_an_agent_with_the_same_capability_is_never_asked() -> None:
    plan = planned(agent("percy", READS), agent("namesake", READS), percy=Health(status="offline"))
    assert names(plan) == ["percy"]


class TestPeersByCapability:
    @requirement("001-41")
    def test_the_operators_agents_stand_in_for_what_changes_nothing(self) -> None:
        assert names(planned(agent("percy", READS), agent("peer", READS), policy=ONE_VOCABULARY)) == ["percy", "peer"]

    @pytest.mark.parametrize(
        ("capability", "may"),
        [
            (Capability(name="plan"), False),
            (Capability(name="plan", side_effects="writes"), False),
            (Capability(name="plan", side_effects="writes", idempotent=True), True),
            (Capability(name="plan", side_effects="reads", idempotent=False), False),
            (Capability(name="plan", side_effects="none"), True),
        ],
    )
    def test_work_that_may_change_something_never_changes_hands(self, capability: Capability, may: bool) -> None:
        as_asked = planned(agent("percy", capability), agent("peer", READS), policy=ONE_VOCABULARY)
        as_peer = planned(agent("percy", READS), agent("peer", capability), policy=ONE_VOCABULARY)
        assert (names(as_asked) == ["percy", "peer"]) is may
        assert (names(as_peer) == ["percy", "peer"]) is may

    def test_a_stranger_who_registers_the_same_capability_gets_no_calls(self) -> None:
        plan = planned(agent("percy", READS), registered("mallory", READS), policy=ONE_VOCABULARY)
        assert names(plan) == ["percy"]
        assert plan.refused[0].reason == "registered by another owner than percy"

    def test_agents_of_one_owner_stand_in_for_each_other(self) -> None:
        plan = planned(registered("percy", READS), registered("other", READS), policy=ONE_VOCABULARY)
        assert names(plan) == ["percy", "other"]

    @pytest.mark.parametrize("learnt", [("percy",), ("peer",)])
    def test_names_learnt_from_a_server_are_no_vocabulary(self, learnt: tuple[str, ...]) -> None:
        plan = planned(agent("percy", READS), agent("peer", READS), policy=ONE_VOCABULARY, learnt=learnt)
        assert names(plan) == ["percy"]


class TestDeclaredFallbacks:
    def test_a_stranger_who_registers_under_the_id_of_a_fallback_is_not_asked(self) -> None:
        plan = planned(agent("percy", READS, fallbacks=("backup",)), registered("backup", READS))
        assert names(plan) == ["percy"]
        assert plan.refused[0].agent_id == "backup"

    def test_a_registered_agent_may_name_fallbacks_of_its_own_owner(self) -> None:
        plan = planned(registered("percy", READS, fallbacks=("backup",)), registered("backup", READS))
        assert names(plan) == ["percy", "backup"]

    def test_what_the_operator_registered_at_run_time_is_the_operators(self) -> None:
        backup = agent("backup", READS, metadata={"registered": {"owner": "psk:psk", "by_operator": True}})
        assert names(planned(agent("percy", READS, fallbacks=("backup",)), backup)) == ["percy", "backup"]


class TestCallsThatNameNoAgent:
    def test_any_agent_of_the_operator_with_the_capability_may_answer(self) -> None:
        plan = planned(agent("percy", "plan"), agent("peer", "plan"), any_agent=True)
        assert names(plan) == ["percy", "peer"]

    def test_a_strangers_agent_may_not(self) -> None:
        assert names(planned(agent("percy", "plan"), registered("mallory", "plan"), any_agent=True)) == ["percy"]


class TestPools:
    POOL = tuple(agent(name, READS, pool="planners") for name in ("percy", "alpha", "beta"))

    @requirement("001-41")
    def test_replicas_are_candidates_and_the_one_that_was_named_comes_first(self) -> None:
        plan = planned(*self.POOL)
        assert names(plan) == ["percy", "alpha", "beta"]
        assert [each.tier for each in plan.candidates] == ["primary", "pool", "pool"]
        assert plan.replicas == 3

    def test_the_least_busy_is_asked_first_and_ties_are_settled_the_same_way_each_time(self) -> None:
        plan = planned(*self.POOL)
        busy = {"percy": 2, "alpha": 1, "beta": 1}
        assert names(share_load(plan, busy.__getitem__)) == ["alpha", "beta", "percy"]
        assert names(share_load(plan, lambda _: 0)) == ["percy", "alpha", "beta"]

    def test_a_large_pool_shares_the_work_though_few_attempts_are_made(self) -> None:
        pool = [agent(f"r{number:02}", READS, pool="p") for number in range(20)]
        plan = planned(*pool, agent_id="r00")
        idle = share_load(plan, lambda agent_id: 0 if agent_id == "r19" else 5)
        assert names(idle)[0] == "r19"
        assert len(idle.candidates) == DECLARED.max_attempts

    def test_a_conversation_stays_with_one_replica(self) -> None:
        plan = planned(*self.POOL)
        chosen = {
            number: names(share_load(plan, lambda agent_id: len(agent_id) % 3, f"talk {number}"))[0]
            for number in range(50)
        }
        again = {number: names(share_load(plan, lambda _: 0, f"talk {number}"))[0] for number in range(50)}
        assert chosen == again
        assert set(chosen.values()) == {"percy", "alpha", "beta"}, "and conversations are spread"

    def test_when_a_replica_leaves_only_its_own_conversations_move(self) -> None:
        talks = [f"talk {number}" for number in range(60)]
        before = {talk: names(share_load(planned(*self.POOL), lambda _: 0, talk))[0] for talk in talks}
        fewer = planned(*(each for each in self.POOL if each.agent_id != "beta"))
        after = {talk: names(share_load(fewer, lambda _: 0, talk))[0] for talk in talks}
        assert all(after[talk] == where for talk, where in before.items() if where != "beta")

    def test_a_stranger_cannot_join_the_operators_pool(self) -> None:
        plan = planned(*self.POOL, registered("mallory", READS, pool="planners"))
        assert "mallory" not in names(plan)

    def test_degraded_replicas_come_after_healthy_ones_and_offline_ones_last(self) -> None:
        plan = planned(*self.POOL, percy=Health(status="offline"), alpha=Health(status="degraded"))
        assert names(plan) == ["beta", "alpha", "percy"]
        assert plan.replicas == 0, "one alone shares with nobody"

    async def test_sharing_work_is_told_in_the_metadata_and_not_as_a_failure(self) -> None:
        route = ScriptedRoute((self.POOL[0], {"answer": "busy one"}), (self.POOL[1], {"answer": "idle one"}))
        route.busy = {"percy": 3}
        result = await route(call(capability="plan"))
        assert result.fallback is not None
        assert (result.fallback.used, result.fallback.shared) == ("alpha", True)
        assert result.fallback.note is None
        assert route.fell_back == [("percy", "alpha", "shared")]

    async def test_a_replica_takes_over_when_another_fails_and_that_is_said(self) -> None:
        route = ScriptedRoute((self.POOL[0], AgentOffline("gone")), (self.POOL[1], {"answer": "x"}))
        result = await route(call(capability="plan"))
        assert result.fallback is not None
        assert result.fallback.note == "Note: answered by agent 'alpha' instead of 'percy' (offline)."
        assert route.fell_back == [("percy", "alpha", "offline")]


class TestTheDeadline:
    SLOW = Capability(name="plan", idempotent=True)

    def test_an_offline_candidate_takes_no_share_of_the_time(self) -> None:
        percy = agent("percy", self.SLOW, fallbacks=("backup",))
        plan = planned(percy, agent("backup", self.SLOW), backup=Health(status="offline"))
        assert names(plan) == ["percy", "backup"]
        assert not must_leave_time(plan, 0)
        assert must_leave_time(planned(percy, agent("backup", self.SLOW)), 0)

    def test_an_agent_without_a_next_candidate_after_a_timeout_gets_all_of_the_time(self) -> None:
        once = Capability(name="plan", idempotent=False)
        plan = planned(agent("percy", once, fallbacks=("backup",)), agent("backup", once))
        assert not must_leave_time(plan, 0)

    @requirement("001-44")
    async def test_the_agent_gets_the_whole_time_if_its_fallback_is_offline(self) -> None:
        route = ScriptedRoute(
            (agent("percy", self.SLOW, fallbacks=("backup",)), {}),
            (agent("backup", self.SLOW), {}),
            backup=Health(status="offline"),
        )
        await route(call(capability="plan", timeout_ms=8000))
        assert route.runtimes["percy"].calls[0].target.timeout_ms > 7500


@requirement("001-38")
@pytest.mark.parametrize("side_effects", [None, "none", "reads", "writes"])
@pytest.mark.parametrize("idempotent", [None, True, False])
async def test_a_refusal_is_the_answer_whatever_fallbacks_exist(side_effects: Any, idempotent: bool | None) -> None:
    capability = Capability(name="reason", side_effects=side_effects, idempotent=idempotent)
    no = UpstreamRefused("you may not delete that", upstream_code=403)
    route = ScriptedRoute((agent("percy", capability, fallbacks=("b",)), no), (agent("b", capability), {}))
    assert await route.fails() is no
    assert route.asked == {"percy": 1}


async def test_the_refusal_of_a_fallback_is_not_replaced_either() -> None:
    no = UpstreamRefused("not here")
    route = ScriptedRoute(
        (agent("percy", "reason", fallbacks=("b", "c")), AgentOffline("x")),
        (agent("b", "reason"), no),
        (agent("c", "reason"), {}),
    )
    assert await route.fails() is no
    assert no.details["attempts"] == ["percy@local: offline", "b@local: upstream_error"]


@pytest.mark.parametrize("error", [UpstreamFailed("HTTP 500"), CallTimeout(1)])
async def test_what_writes_and_may_have_run_is_not_repeated(error: UpstreamFailed | CallTimeout) -> None:
    writes = Capability(name="reason", side_effects="writes")
    route = ScriptedRoute((agent("percy", writes, fallbacks=("b",)), error), (agent("b", writes), {}))
    assert await route.fails() is error
    assert route.asked == {"percy": 1}


async def test_a_broken_reply_moves_on_and_a_listening_caller_hears_of_it() -> None:
    safe = Capability(name="reason", streaming=True, idempotent=True)
    route = ScriptedRoute(
        (agent("percy", safe, fallbacks=("b",)), UpstreamFailed("HTTP 500")), (agent("b", safe), {"answer": "ok"})
    )
    heard = Heard()
    result = await route(call(stream=True), heard)
    assert result.fallback is not None
    assert (result.fallback.used, result.fallback.reason) == ("b", "failed")
    assert heard.of("status")[1]["fallback"] == "b"
