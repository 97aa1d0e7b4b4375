"""Agents whose manifest names no runtime: what speaks at their address is found out when they are first needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.probing.autodetect import AutodetectRuntime
from a2a_fabric.probing.client import ProbeUnanswered
from a2a_fabric.probing.findings import Finding
from a2a_fabric.testing import ScriptedRuntime
from a2a_fabric.web.server import bind_socket, url_from_socket
from tests.fixtures.agents.a2a_serving import serving as serving_a2a
from tests.fixtures.agents.calling import call_of
from tests.fixtures.agents.matrix import make
from tests.fixtures.agents.plain_http import app as silent_agent
from tests.fixtures.apis.shop import app as shop
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import Node, eventually, running, tasks_are_down_to
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.http_agents import dead_port

ALONE: dict[str, Any] = {"routing": {"fallback": False}, "health": {"interval": 1}}


def least(agent_id: str, uri: str, **more: Any) -> dict[str, Any]:
    """The least manifest: an id and an address."""
    return {"agent_id": agent_id, "endpoint": {"transport": "http", "uri": uri}, **more}


async def offers(node: Node, agent_id: str, capability: str) -> None:
    async def is_described() -> bool:
        agent = (await node.operation("fabric.agent.describe", {"agent_id": agent_id}))["result"]["agent"]
        return any(each["name"] == capability for each in agent["capabilities"])

    await eventually(is_described)


@pytest.fixture
async def kinds() -> AsyncIterator[list[dict[str, Any]]]:
    async with (
        serving("handshake") as old,
        serving("stateless") as new,
        serving_a2a("jsonrpc") as a2a,
        listening(make("percy").app) as plain,
        listening(shop) as api,
        running(make("far"), config={"auth": {"anonymous": True}}) as node,
    ):
        yield [
            least("old", old.url),
            least("new", new.url),
            least("a2a", a2a.url),
            least("plain", plain),
            least("api", f"{api}/openapi.json"),
            least("node", node.url),
        ]


@requirement("001-18", "001-17", "001-52")
async def test_an_id_and_an_address_are_enough(kinds: list[dict[str, Any]]) -> None:
    async with running(manifests=kinds, config=ALONE) as node:
        for agent_id, capability in (
            ("old", "add"),
            ("new", "add"),
            ("plain", "echo"),
            ("api", "getPet"),
            ("node/far", "echo"),
        ):
            await offers(node, agent_id, capability)
        for agent_id in ("old", "new"):
            reply = await node.ask(agent_id, "add", "", context={"a": 20, "b": 22})
            assert reply["result"] == {"sum": 42}, reply
        assert (await node.ask("api", "getPet", "", context={"pet_id": 1}))["result"]["name"] == "Rex"
        reply = await node.ask("plain", "refuse", "", context={"reason": "because"})
        assert (reply["error_code"], reply["error"]) == ("BAD_INPUT", "because")
        assert (await node.ask("node/far", "refuse", "", context={"reason": "far"}))["error"] == "far"
        names = {
            name: type(node.fabric.runtime_pool.find_runtime(name)).__name__
            for name in ("old", "plain", "api", "a2a", "node")
        }
        assert names["old"] == "McpRuntime"
        assert names["plain"] == "HTTPRuntime"  # nothing is left in between
        assert names["api"] == "APIRuntime"
        assert "Guessing" not in names["a2a"]


async def test_a_call_may_come_first_and_waits_for_the_answer() -> None:
    async with serving("both") as server:
        manifest = least("server", server.url, capabilities=[{"name": "add"}])
        async with running(manifests=[manifest], config=ALONE) as node:
            replies = await asyncio.gather(
                *(node.ask("server", "add", "", context={"a": number, "b": 1}) for number in range(5))
            )
    assert [reply["result"]["sum"] for reply in replies] == [1, 2, 3, 4, 5]


async def test_what_is_not_recognised_is_taken_for_an_agent_of_the_plain_contract() -> None:
    async with listening(silent_agent) as url:
        manifest = least("silent", url, capabilities=[{"name": "free"}])
        async with running(manifests=[manifest], config=ALONE) as node:
            reply = await node.ask("silent", "free", "hello")
    assert reply["result"] == {"seen": {"task": "hello", "context": {}}}


async def test_an_agent_that_is_not_there_yet_is_asked_again() -> None:
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    url = url_from_socket(listener)
    listener.close()
    manifest = least("late", f"{url}/mcp", capabilities=[{"name": "add"}])
    async with running(manifests=[manifest], config=ALONE) as node:
        reply = await node.ask("late", "add", "", context={"a": 1, "b": 2})
        assert reply["error_code"] == "AGENT_OFFLINE"
        assert "No connection" in reply["error"]
        async with serving("both", port=int(url.rpartition(":")[2])):

            async def answers() -> bool:
                reply = await node.ask("late", "add", "", context={"a": 1, "b": 2})
                return bool(reply["ok"] and reply["result"] == {"sum": 3})

            await eventually(answers)


async def test_a_slow_agent_is_not_taken_for_something_else_for_good() -> None:
    async with serving("stateless") as server:
        server.gate.held = asyncio.Event()
        manifest = least("slow", server.url, capabilities=[{"name": "add"}])
        async with running(manifests=[manifest], config={**ALONE, "health": {"interval": 0}}) as node:
            reply = await node.ask("slow", "add", "", context={"a": 1, "b": 2})
            assert reply["error_code"] == "AGENT_OFFLINE"
            assert "not known yet" in reply["error"]
            server.gate.held.set()
            assert (await node.ask("slow", "add", "", context={"a": 1, "b": 2}))["result"] == {"sum": 3}


async def test_one_that_never_says_what_it_is_gets_its_calls_all_the_same() -> None:
    async def guess() -> Finding | None:
        raise ProbeUnanswered("no answer", is_late=True)

    plain = ScriptedRuntime(Manifest(agent_id="shy", endpoint={}), [{"answer": "hm"}])
    runtime = AutodetectRuntime(plain.manifest, plain, guess, lambda _: plain, lambda *_: False)
    for _ in range(2):
        with pytest.raises(AgentOffline, match="not known yet"):
            await runtime(call_of("say"), ignore_event)
    assert (await runtime(call_of("say"), ignore_event)).data == {"answer": "hm"}
    await runtime.aclose()
    assert plain.closed == 1


async def test_a_manifest_with_options_of_one_runtime_is_not_asked_what_it_is() -> None:
    async with listening(make("percy").app) as url:
        manifest = {"agent_id": "sure", "endpoint": {"uri": url, "health": "/"}}
        async with running(manifests=[manifest], config=ALONE) as node:
            found = node.fabric.runtime_pool.get_runtime(node.fabric.registry.get_agent("sure"))
            assert type(found).__name__ == "HTTPRuntime"


async def test_agents_that_register_themselves_are_only_of_kinds_that_may() -> None:
    async with serving_a2a("jsonrpc") as a2a, serving("both") as mcp:
        terms = {"runtimes": ["http", "mcp"]}
        async with running(config={**ALONE, "registration": terms}) as node:
            for agent_id, uri in (("card", a2a.url), ("tools", mcp.url)):
                reply = await node.operation("fabric.agent.register", least(agent_id, uri))
                assert reply["ok"], reply
            await offers(node, "tools", "add")

            async def is_settled() -> bool:
                return type(node.fabric.runtime_pool.find_runtime("card")).__name__ == "HTTPRuntime"

            await eventually(is_settled)


async def test_nothing_of_the_guessing_stays_behind() -> None:
    before = len(asyncio.all_tasks())
    manifests = [least("gone", f"http://127.0.0.1:{dead_port()}/", capabilities=[{"name": "act"}])]
    async with listening(silent_agent) as url:
        manifests.append(least("silent", url, capabilities=[{"name": "free"}]))
        async with running(manifests=manifests, config=ALONE) as node:
            await node.ask("gone", "act")
            await node.ask("silent", "free")
    await tasks_are_down_to(before)
