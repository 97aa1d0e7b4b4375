"""What calls and probes say about an agent's health, as callers and operators see it at the doors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.mcp_client import client
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

ATTACKER, VICTIM = "the-key-of-the-attacker", "the-key-of-the-victim"
KEYS = [{"id": "attacker", "key": ATTACKER}, {"id": "victim", "key": VICTIM}]


@dataclass
class Remote:
    """An agent behind HTTP that does as the test says, and remembers what it was asked."""

    status: int = 200
    body: bytes = b'{"ok": true, "result": {"answer": "percy"}}'
    probe_status: int = 405
    url: str = ""
    posts: int = 0
    slow: bool = False
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        is_work = scope["method"] == "POST"
        self.posts += is_work
        status, body = (self.status, self.body) if is_work else (self.probe_status, b"")
        if is_work:
            self.began.set()
            if self.slow:
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def manifest(self, **capability: Any) -> dict[str, Any]:
        return {
            "agent_id": "percy",
            "runtime": "http",
            "endpoint": {"uri": f"{self.url}/agents/percy"},
            "capabilities": [{"name": "reason", **capability}],
            "fallbacks": ["other"],
        }


@asynccontextmanager
async def remote(**about: Any) -> AsyncIterator[Remote]:
    made = Remote(**about)
    async with listening(made) as url:
        made.url = url
        yield made


def other() -> Agent:
    agent = Agent("other")

    @agent.capability(name="reason")
    async def reason(task: str) -> str:
        return "other"

    return agent


async def listed(node: Node, agent_id: str = "percy") -> dict[str, Any]:
    agents = (await node.operation("fabric.agent.list"))["agents"]
    return next(agent for agent in agents if agent["agent_id"] == agent_id)


async def has_status(node: Node, *wanted: str, agent_id: str = "percy") -> None:
    async def has() -> bool:
        return (await listed(node, agent_id))["status"] in wanted

    await eventually(has)


def changes(node: Node, agent_id: str = "percy") -> list[dict[str, Any]]:
    """All log lines about the agent's status; of a node that has stopped, so that all are written."""
    lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "status" and line["agent_id"] == agent_id]


async def by_call(node: Node) -> None:
    given = {"agent_id": "percy", "capability": "reason", "task": "go", "timeout_ms": 1}
    await asyncio.gather(*(node.operation("fabric.call", given, token=ATTACKER) for _ in range(50)))


async def by_mcp(node: Node) -> None:
    given = {"agent_id": "percy", "capability": "reason", "task": "go", "timeout_ms": 1}
    async with client(node, token=ATTACKER) as connected:
        await asyncio.gather(*(connected.call_tool("fabric_call", given) for _ in range(50)))


async def by_a2a(node: Node) -> None:
    said = [message("go", skill="reason") for _ in range(50)]
    for each in said:
        each["metadata"]["a2a-fabric/timeout_ms"] = 1
    await asyncio.gather(*(rpc(node, "SendMessage", {"message": each}, token=ATTACKER) for each in said))


@requirement("001-47")
@pytest.mark.parametrize("attack", [by_call, by_mcp, by_a2a])
async def test_callers_who_give_an_agent_no_time_do_not_take_it_from_others(attack: Callable[[Node], Any]) -> None:
    async with remote(slow=True) as percy:
        config = {"auth": {"keys": KEYS}}
        async with running(other(), manifests=[percy.manifest(idempotent=False)], config=config) as node:
            await has_status(node, "online")
            await attack(node)
            percy.slow = False
            asked = percy.posts
            given = {"agent_id": "percy", "capability": "reason", "task": "a private matter"}
            reply = await node.operation("fabric.call", given, token=VICTIM)
            assert reply["result"] == {"answer": "percy"}, reply
            assert "fallback" not in reply
            assert percy.posts == asked + 1
            assert (await listed(node))["status"] == "online"
        assert [each["to"] for each in changes(node)] == ["online"]


@requirement("001-47")
async def test_callers_who_leave_say_nothing_about_the_agent() -> None:
    async with remote(slow=True) as percy, running(other(), manifests=[percy.manifest(idempotent=False)]) as node:
        await has_status(node, "online")
        for _ in range(10):
            percy.began.clear()
            call = asyncio.ensure_future(node.ask("percy", "reason"))
            await asyncio.wait_for(percy.began.wait(), WAIT_TIMEOUT)
            call.cancel()
            await asyncio.wait([call])
        percy.slow = False
        reply = await node.ask("percy", "reason")
        assert reply["result"] == {"answer": "percy"}, reply
        assert (await listed(node))["status"] == "online"


BROKEN = {"status 500": {"status": 500, "body": b"oops"}, "no JSON": {"status": 200, "body": b"<html>"}}


@requirement("001-38", "001-47")
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("interval", [30, 0.05])
async def test_an_agent_that_only_breaks_costs_callers_nothing_after_the_first_calls(
    broken: str, interval: float
) -> None:
    """Its probes are answered all the time, which proves nothing about its work."""
    async with remote(**BROKEN[broken]) as percy:
        config = {"health": {"interval": interval}, "breaker": {"cool_down": 0.1}}
        async with running(other(), manifests=[percy.manifest(idempotent=False)], config=config) as node:
            await has_status(node, "online")
            replies = [await node.ask("percy", "reason") for _ in range(60)]
            failed = [number for number, reply in enumerate(replies) if not reply["ok"]]
            assert 1 <= len(failed) <= 5, failed
            assert {reply["error_code"] for reply in replies if not reply["ok"]} == {"UPSTREAM_ERROR"}
            assert percy.posts == len(failed)
            assert replies[-1]["result"] == {"answer": "other"}
            assert (await listed(node))["status"] in ("degraded", "offline")
        seen = [each["to"] for each in changes(node)]
        assert "online" not in seen[1:], seen


@requirement("001-38")
async def test_what_may_be_repeated_costs_callers_nothing_at_all() -> None:
    async with remote(status=500, body=b"oops") as percy:
        manifest = percy.manifest(idempotent=True)
        async with running(other(), manifests=[manifest], config={"breaker": {"cool_down": 60}}) as node:
            await has_status(node, "online")
            replies = [await node.ask("percy", "reason") for _ in range(60)]
            assert all(reply["result"] == {"answer": "other"} for reply in replies)
            assert percy.posts <= 5


@requirement("001-47", "001-55")
async def test_a_mended_agent_is_used_again() -> None:
    async with remote(status=500, body=b"oops") as percy:
        config = {"health": {"interval": 0.05}, "breaker": {"cool_down": 0.05, "max_cool_down": 0.1}}
        async with running(other(), manifests=[percy.manifest()], config=config) as node:
            await has_status(node, "online")
            for _ in range(8):
                await node.ask("percy", "reason")
            await has_status(node, "degraded", "offline")
            percy.status, percy.body = 200, Remote.body

            async def answers() -> bool:
                return bool((await node.ask("percy", "reason"))["result"] == {"answer": "percy"})

            await eventually(answers)
            await has_status(node, "online")


@requirement("001-47")
async def test_every_change_of_status_is_logged_with_its_reason_and_counted() -> None:
    async with remote(status=500, body=b"oops") as percy:
        manifest = {**percy.manifest(idempotent=False), "fallbacks": []}
        async with running(manifests=[manifest]) as node:
            await has_status(node, "online")
            for _ in range(3):
                await node.ask("percy", "reason")
            assert (await listed(node))["status"] == "degraded", "it answers, though broken"
            metrics = (await node.send("GET", "/metrics")).body.decode()
    told = changes(node)
    assert [(each["from"], each["to"]) for each in told] == [
        ("unknown", "online"),
        ("online", "degraded"),
    ]
    assert told[0]["reason"] == "it answered a probe"
    assert "HTTP 500" in told[-1]["reason"]
    assert told[-1]["message"] == f"agent percy went from online to degraded: {told[-1]['reason']}"
    assert told[-1]["level"] == "warning"
    assert node.log.getvalue().count(told[-1]["trace_id"]) == 2  # the call that showed it has the same trace
    assert 'fabric_agent_status_changes_total{agent_id="percy",status="degraded"} 1.0' in metrics
    assert 'fabric_agent_status{agent_id="percy"} 0.5' in metrics
