"""MCP servers behind a real node: good ones are not held up by bad ones, and the catalog follows their changes."""

from __future__ import annotations

import shlex
import time
from typing import Any

from tests.fixtures.mcp_servers.serving import EVERYDAY, odd, serving
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement

CONFIG = {"health": {"interval": 0.5, "timeout": 2.0}, "routing": {"fallback": False}}


def agent(agent_id: str, **endpoint: Any) -> dict[str, Any]:
    return {"agent_id": agent_id, "runtime": "mcp", "endpoint": endpoint}


async def described(node: Node, agent_id: str) -> Any:
    return (await node.operation("fabric.agent.describe", {"agent_id": agent_id}))["result"]["agent"]


async def offers(node: Node, agent_id: str, capability: str) -> bool:
    agent = await described(node, agent_id)
    return capability in [each["name"] for each in agent["capabilities"]]


@requirement("001-13")
async def test_servers_of_both_eras_are_called_and_streamed_through_a_node() -> None:
    async with serving("stateless") as new, serving("handshake") as old:
        manifests = [agent("local", command=EVERYDAY), agent("new", uri=new.url), agent("old", uri=old.url)]
        async with running(manifests=manifests, config=CONFIG) as node:
            for agent_id in ("local", "new", "old"):
                await eventually(lambda agent_id=agent_id: offers(node, agent_id, "add"))  # type: ignore[misc]
                given = {"agent_id": agent_id, "capability": "add", "context": {"a": 2, "b": 3}, "task": ""}
                answer = await node.operation("fabric.call", given)
                assert answer["result"] == {"sum": 5}, answer
                bad = await node.operation("fabric.call", {**given, "context": {"a": "two"}})
                assert bad["error_code"] == "BAD_INPUT"
                events = await node.events(agent_id, "count", task="", context={"to": 2})
                kinds = [event["event"] for event in events]
                assert kinds == ["status", "progress", "progress", "status", "final"]
                rich = await node.operation("fabric.call", {"agent_id": agent_id, "capability": "show", "task": ""})
                assert [part["kind"] for part in rich["parts"]] == ["text", "image", "audio", "file", "file", "file"]


async def test_dead_slow_and_crashing_servers_hide_and_delay_no_other_server() -> None:
    manifests = [
        agent("mute", command=odd("mute"), start_timeout=2),
        agent("crashing", command=odd("crashing"), backoff=60),
        agent("missing", command=["no-such-program"]),
        agent("away", uri="http://127.0.0.1:9/mcp"),
        agent("fine", command=odd("old")),
    ]
    async with running(manifests=manifests, config=CONFIG) as node:
        await eventually(lambda: offers(node, "fine", "ping"))
        listed = (await node.operation("fabric.agent.list"))["result"]["agents"]
        assert {each["agent_id"] for each in listed} == {"mute", "crashing", "missing", "away", "fine"}
        for agent_id in ("mute", "crashing", "missing", "away"):

            async def is_offline(agent_id: str = agent_id) -> bool:
                return bool((await described(node, agent_id))["status"] == "offline")

            await eventually(is_offline)
            assert (await described(node, agent_id))["error"]
        started = time.monotonic()
        assert (await node.ask("fine", "ping"))["result"] == {"answer": "pong"}
        assert time.monotonic() - started < 15  # no request waits for servers that do not answer


async def test_the_catalog_follows_a_servers_changes() -> None:
    quiet = {**CONFIG, "health": {"interval": 0}}
    async with serving("stateless") as new, serving("handshake") as old:
        manifests = [agent("local", command=EVERYDAY), agent("new", uri=new.url), agent("old", uri=old.url)]
        async with running(manifests=manifests, config=quiet) as node:
            for agent_id in ("local", "new", "old"):
                await eventually(lambda agent_id=agent_id: offers(node, agent_id, "grow"))  # type: ignore[misc]
                assert not await offers(node, agent_id, "novelty")
                grown = await node.ask(agent_id, "grow", task="novelty")
                assert grown["ok"], grown
                await eventually(lambda agent_id=agent_id: offers(node, agent_id, "novelty"))  # type: ignore[misc]
                assert (await node.ask(agent_id, "novelty"))["result"] == {"answer": "new here"}


async def test_a_program_that_takes_long_to_start_is_not_called_offline_meanwhile() -> None:
    slow = ["sh", "-c", f"sleep 1; exec {shlex.join(map(str, odd('old')))}"]
    config = {**CONFIG, "health": {"interval": 0.1, "timeout": 0.1}}
    async with running(manifests=[agent("slow", command=slow)], config=config) as node:
        statuses = set()

        async def is_online() -> bool:
            statuses.add((await described(node, "slow"))["status"])
            return "online" in statuses

        await eventually(is_online)
        assert statuses == {"unknown", "online"}
