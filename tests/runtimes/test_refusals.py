"""What an agent says is the answer, also when it is no; what breaks moves on to the declared fallback.

Every runtime, with a real agent behind it or a real server at its address, and a
fallback that is declared, that could do the work, and that writes down who asked it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from tests.fixtures.agents.calling import HERE
from tests.fixtures.faulty import FAULTS, Asked, Greeting
from tests.fixtures.mcp_servers.serving import HERE as MCP_SERVERS
from tests.fixtures.node import Node, running
from tests.marks import requirement
from tests.matrix.agents import KINDS, RUNTIMES
from tests.matrix.agents.kind import REASON, STAND_IN
from tests.matrix.agents.listening import listening
from tests.matrix.bench import CONFIG, until
from tests.matrix.door_client import Outcome, ignore
from tests.matrix.doors.fabric import Plain
from tests.matrix.table import exception
from tests.runtimes.faults.reached import AT_AN_ADDRESS, CAPABILITY, Reached

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = "not on a Sunday"
QUIET = {**CONFIG, "health": {**CONFIG["health"], "interval": 0}}


@dataclass
class StandIn:
    """Could do what the others refuse."""

    asked: list[str] = field(default_factory=list)

    def agent(self) -> Agent:
        agent = Agent(STAND_IN)

        async def answer(task: str = "", reason: str = "") -> dict[str, str]:
            self.asked.append("asked")
            return {"done": "instead"}

        for name in ("refuse", "fail", CAPABILITY, "garbled", "ping"):
            agent.capability(name=name)(answer)
        return agent


@dataclass
class Bench:
    node: Node
    stand_in: StandIn

    async def hears(self, runtime: str, capability: str) -> Outcome:
        self.stand_in.asked.clear()
        kind = RUNTIMES[runtime]
        return await Plain(self.node).ask(kind.refusing() if capability == "refuse" else kind.failing(), ignore)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    """One node with an agent of every runtime. Each declares the stand-in."""
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(kind.started()) for kind in KINDS if kind.name != "tool"]
        agents = [agent for each in started for agent in each.agents]
        manifests = [
            manifest for each in started for manifest in each.manifests if not manifest["agent_id"].endswith("-away")
        ]
        stand_in = StandIn()
        node = await stack.enter_async_context(running(stand_in.agent(), *agents, manifests=manifests, config=CONFIG))
        await until(lambda: all(manifest.capabilities for manifest in node.fabric.registry.catalog.agents))
        yield Bench(node, stand_in)


AGENTS = [name for name in RUNTIMES if name != "tool"]


def answers_for_itself(runtime: str) -> bool:
    """Whether the protocol lets the agent say itself that it failed."""
    row = exception("fabric", runtime, "failing")
    return row is not None and row.instead is not None


@requirement("001-38")
@pytest.mark.parametrize("runtime", AGENTS)
async def test_a_typed_refusal_reaches_the_caller_although_a_fallback_is_declared(bench: Bench, runtime: str) -> None:
    outcome = await bench.hears(runtime, "refuse")
    assert outcome.code == RUNTIMES[runtime].refusal
    assert REASON in outcome.message
    assert bench.stand_in.asked == []


@requirement("001-38")
@pytest.mark.parametrize("runtime", [name for name in AGENTS if answers_for_itself(name)])
async def test_a_failure_that_the_agent_tells_itself_reaches_the_caller(bench: Bench, runtime: str) -> None:
    outcome = await bench.hears(runtime, "fail")
    assert outcome.code == "UPSTREAM_ERROR"
    assert REASON in outcome.message
    assert "all fallbacks failed" not in outcome.message
    assert bench.stand_in.asked == []


@requirement("001-38", "001-39")
@pytest.mark.parametrize("runtime", [name for name in AGENTS if not answers_for_itself(name)])
async def test_an_agent_whose_code_raises_is_stood_in_for(bench: Bench, runtime: str) -> None:
    outcome = await bench.hears(runtime, "fail")
    assert outcome.answer == {"done": "instead"}
    assert outcome.fallback is not None
    assert (outcome.fallback.used, outcome.fallback.reason) == (STAND_IN, "failed")
    assert bench.stand_in.asked == ["asked"]


OVER_HTTP = [each for each in AT_AN_ADDRESS if each.is_met and "grpc" not in each.name]
BODY = {"ok": False, "error": WORDS, "message": WORDS}


def refusing(greeting: Greeting, status: int) -> Greeting:
    """As it should be until the call, and to the call: no."""

    def say(asked: Asked) -> tuple[int, Any]:
        return greeting(asked) or (status, BODY)

    return say


def declared(reached: Reached, url: str) -> dict[str, Any]:
    """It may be asked twice, and the operator names who else can do it."""
    offered = [{"name": CAPABILITY, "idempotent": True}]
    return {**reached.manifest(url, "wrong"), "capabilities": offered, "fallbacks": [STAND_IN]}


@requirement("001-38")
@pytest.mark.parametrize("status", [403, 409])
@pytest.mark.parametrize("number", range(len(OVER_HTTP)), ids=lambda number: OVER_HTTP[number].agent_id(str(number)))
async def test_a_status_of_400_and_more_is_the_agents_answer(number: int, status: int) -> None:
    reached, stand_in = OVER_HTTP[number], StandIn()
    async with FAULTS["500 with HTML"].standing(refusing(reached.greeting, status)) as place:
        manifest = declared(reached, place.url)
        async with running(stand_in.agent(), manifests=[manifest], config=QUIET) as node:
            envelope = await node.ask(manifest["agent_id"], CAPABILITY)
    assert envelope["error_code"] == "UPSTREAM_ERROR", envelope
    assert WORDS in envelope["error"] or (
        reached.name.startswith(("mcp", "agentzero")) and str(status) in envelope["error"]
    )
    assert stand_in.asked == []


@pytest.mark.parametrize("body", [{"detail": WORDS}, {"error": {"message": WORDS}}, {"error": WORDS}], ids=str)
async def test_an_agent_that_refuses_in_the_words_of_its_framework_is_quoted(body: dict[str, Any]) -> None:
    [reached] = [each for each in OVER_HTTP if each.name.startswith("http")][:1]

    def say(asked: Asked) -> tuple[int, Any]:
        return reached.greeting(asked) or (403, body)

    async with (
        FAULTS["500 with HTML"].standing(say) as place,
        running(manifests=[reached.manifest(place.url, "wrong")], config=QUIET) as node,
    ):
        envelope = await node.ask(reached.manifest(place.url, "wrong")["agent_id"], CAPABILITY)
    assert envelope["error"] == f"The agent answered HTTP 403: {WORDS}"


def moved_on(envelope: dict[str, Any], *reasons: str) -> None:
    assert envelope["ok"], envelope
    assert envelope["result"] == {"done": "instead"}
    assert envelope["fallback"]["used"] == STAND_IN
    assert envelope["fallback"]["reason"] in reasons


@requirement("001-38", "001-39")
@pytest.mark.parametrize("fault", ["500 with HTML", "truncated JSON", "redirect to a private address"])
@pytest.mark.parametrize("number", range(len(OVER_HTTP)), ids=lambda number: OVER_HTTP[number].agent_id(str(number)))
async def test_a_broken_reply_to_work_that_may_be_repeated_moves_on_and_the_result_says_so(
    number: int, fault: str
) -> None:
    reached, stand_in = OVER_HTTP[number], StandIn()
    async with FAULTS[fault].standing(reached.greeting) as place:
        manifest = declared(reached, place.url)
        async with running(stand_in.agent(), manifests=[manifest], config=QUIET) as node:
            envelope = await node.ask(manifest["agent_id"], CAPABILITY)
    moved_on(envelope, "failed")
    assert envelope["fallback"]["attempts"] == [f"{manifest['agent_id']}@local: failed", f"{STAND_IN}@local: ok"]
    assert stand_in.asked == ["asked"]


@requirement("001-38")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_content_that_no_mcp_server_sends_is_no_answer(era: str) -> None:
    (reached,) = (each for each in OVER_HTTP if each.name == f"mcp_{era}_met")
    stand_in = StandIn()
    async with FAULTS["wrong content type"].standing(reached.greeting) as place:
        manifest = declared(reached, place.url)
        async with running(stand_in.agent(), manifests=[manifest], config=QUIET) as node:
            moved_on(await node.ask(manifest["agent_id"], CAPABILITY), "failed")


def program(runtime: str, *argv: str, **more: Any) -> dict[str, Any]:
    return {"runtime": runtime, "endpoint": {"command": [sys.executable, *argv], **more}}


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
PROGRAMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "process_jsonl": (program("process", str(HERE / "jsonl_program.py")), "garbled", "failed"),
    "process_oneshot": (program("process", "-c", KILLED, protocol="oneshot"), "act", "interrupted"),
    "mcp_stdio": (program("mcp", str(MCP_SERVERS / "odd.py"), "unreadable", era="handshake"), "ping", "failed"),
}


@requirement("001-38", "001-39")
@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_that_breaks_is_stood_in_for(name: str) -> None:
    manifest, capability, reason = PROGRAMS[name]
    stand_in = StandIn()
    offered = [{"name": capability, "idempotent": True}]
    broken = {"agent_id": "broken", **manifest, "capabilities": offered, "fallbacks": [STAND_IN]}
    async with running(stand_in.agent(), manifests=[broken], config=QUIET) as node:
        moved_on(await node.ask("broken", capability), reason)
    assert stand_in.asked == ["asked"]


def author() -> Agent:
    agent = Agent("author", fallbacks=[STAND_IN])

    @agent.capability(name="refuse")
    async def refuse(task: str) -> str:
        raise ValueError(WORDS)

    @agent.capability(name="fail")
    async def fail(task: str) -> str:
        raise LookupError(WORDS)

    return agent


@requirement("001-38")
@pytest.mark.parametrize("is_far", [False, True], ids=["in the node", "over HTTP"])
async def test_a_value_error_of_an_author_is_a_refusal_and_any_other_exception_a_failure(*, is_far: bool) -> None:
    stand_in = StandIn()
    async with AsyncExitStack() as stack:
        agents, manifests = [stand_in.agent()], []
        if is_far:
            url = await stack.enter_async_context(listening(author().app))
            manifests.append(
                {"agent_id": "author", "runtime": "http", "endpoint": {"uri": url}, "fallbacks": [STAND_IN]}
            )
        else:
            agents.append(author())
        node = await stack.enter_async_context(running(*agents, manifests=manifests, config=QUIET))
        await until(lambda: all(manifest.capabilities for manifest in node.fabric.registry.catalog.agents))
        refused = await node.ask("author", "refuse")
        assert (refused["error_code"], refused["error"]) == ("UPSTREAM_ERROR", WORDS)
        assert stand_in.asked == []
        moved_on(await node.ask("author", "fail"), "failed")
