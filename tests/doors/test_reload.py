"""Limits and views that change while the node runs, without a restart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from a2a_fabric.agent import Agent
from a2a_fabric.core.view import View
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

READER = "the-key-of-a-reader"


def edit(node: Node, **sections: Any) -> tuple[str, ...]:
    """Put an edited configuration into effect; what has changed."""
    config = node.fabric.settings.running
    changed = {
        name: msgspec.convert({**msgspec.to_builtins(getattr(config, name)), **section}, type(getattr(config, name)))
        if isinstance(section, dict)
        else msgspec.convert(section, tuple[View, ...])
        for name, section in sections.items()
    }
    outcome = node.fabric.reload(msgspec.structs.replace(config, **changed))
    assert outcome.waiting == ()
    return outcome.applied


def make_agent(agent_id: str) -> tuple[Agent, threading.Event, list[str]]:
    """An agent with a function that blocks its thread until the event is set, and one that answers at once."""
    agent, release, started = Agent(agent_id), threading.Event(), list[str]()

    @agent.capability
    def wait(task: str = "") -> dict[str, Any]:
        started.append(task)
        release.wait(WAIT_TIMEOUT)
        return {"done": task}

    @agent.capability
    async def say(task: str = "1") -> dict[str, Any]:
        return {"text": "x" * int(task or 1)}

    return agent, release, started


async def until_true(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds)


@requirement("001-58")
async def test_limits_on_calls_and_threads_count_at_once() -> None:
    agent, release, started = make_agent("slow")
    limits = {"agent_threads": 1, "share_per_caller": 1.0}
    async with running(agent, config={"limits": limits}) as node:
        calls = [asyncio.ensure_future(node.ask("slow", "wait", str(number))) for number in range(2)]
        await until_true(lambda: len(started) == 1)
        assert edit(node, limits={"agent_threads": 2}) == ("limits.agent_threads",)
        await until_true(lambda: len(started) == 2)  # the call that waited for a thread has one
        edit(node, limits={"concurrent_calls_per_agent": 2})
        refused = await node.ask("slow", "say", "1")
        assert refused["error_code"] == "RATE_LIMITED"
        assert "busy with 2 calls" in refused["error"]
        edit(node, limits={"concurrent_calls_per_agent": 8})
        assert (await node.ask("slow", "say", "1"))["ok"]
        edit(node, limits={"share_per_caller": 0.25})
        refused = await node.ask("slow", "say", "1")
        assert "which is its share" in refused["error"]
        release.set()
        assert all(reply["ok"] for reply in await asyncio.gather(*calls))


async def test_the_size_of_replies_and_the_time_for_the_end_count_at_once() -> None:
    agent, _, _ = make_agent("far")
    async with running(agent) as behind:
        endpoint = {"uri": behind.url, "agent": "far", "psk": PSK}
        manifest = {"agent_id": "near", "runtime": "fabric", "endpoint": endpoint}
        async with running(manifests=[manifest]) as node:
            assert (await node.ask("near", "say", "5000"))["ok"]
            assert edit(node, limits={"reply_bytes": 4096, "drain_seconds": 1.0}) == (
                "limits.reply_bytes",
                "limits.drain_seconds",
            )
            assert not (await node.ask("near", "say", "5000"))["ok"]
            edit(node, limits={"reply_bytes": 65536})
            assert (await node.ask("near", "say", "5000"))["ok"]


@requirement("001-58")
async def test_views_count_at_once_for_keys_and_addresses() -> None:
    agents = [make_agent(name)[0] for name in ("one", "two")]
    keys = [{"id": "reader", "key": READER, "view": "small"}]
    config = {"views": [{"name": "small", "agents": ["one"]}], "auth": {"keys": keys}}
    async with running(*agents, config=config) as node:

        async def list_ids(path: str = "/mcp/call", token: str | None = READER) -> Any:
            body = {"name": "fabric.agent.list", "arguments": {}}
            reply = await node.send("POST", path, token=token, json=body)
            if not reply.json["ok"]:
                return reply.json["error_code"]
            return sorted(each["agent_id"] for each in reply.json["result"]["agents"])

        assert await list_ids() == ["one"]
        assert await list_ids("/views/other/mcp/call", PSK) == "BAD_INPUT"
        small = {"name": "small", "agents": ["two"]}
        assert edit(node, views=[small, {"name": "other", "agents": ["one"]}]) == ("views",)
        assert await list_ids() == ["two"]
        assert await list_ids("/views/other/mcp/call", PSK) == ["one"]
        edit(node, views=[small])
        assert await list_ids("/views/other/mcp/call", PSK) == "BAD_INPUT"
