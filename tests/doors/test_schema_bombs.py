"""Schemas that strangers bring: judged when they join, at every door, while honest callers are answered."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.fixtures.mcp_client import client
from tests.fixtures.node import Node, eventually, running
from tests.fixtures.schema_bombs import BOMBS, LOOK_AHEAD, doubling, stalls
from tests.marks import requirement
from tests.matrix.agents.listening import listening
from tests.runtimes.fabric_nodes import QUIET, entry, listed

LISTED = Path(__file__).parents[1] / "fixtures" / "mcp_servers" / "listed.py"
LONGEST_STALL = 5.0  # seconds, on a machine that has other things to do; these schemas took minutes to hours
ALONE: dict[str, Any] = {"store": "memory:", "routing": {"fallback": False}}


def percy() -> Agent:
    agent = Agent("percy", description="Honest.")

    @agent.capability
    async def say(task: str) -> dict[str, Any]:
        return {"answer": task}

    return agent


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config=ALONE) as found:
        yield found


def manifest(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    capability = {"name": "say", "input_schema": schema, **more}
    return {"agent_id": "mallory", "endpoint": {"uri": "http://127.0.0.1:9/"}, "capabilities": [capability]}


async def keep_asking(node: Node, until: asyncio.Event) -> int:
    """An honest caller who is answered, again and again; returns how often."""
    count = 0
    while not until.is_set():
        assert (await node.ask("percy", "say", "hi"))["ok"]
        count += 1
    return count


@requirement("001-20")
@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_registration_with_such_a_schema_is_refused_with_a_sentence(node: Node, bomb: str) -> None:
    done = asyncio.Event()
    async with stalls() as stalled:
        honest = asyncio.ensure_future(keep_asking(node, done))
        refused = await node.send("POST", "/mcp/register_agent", json=manifest(BOMBS[bomb]))
        done.set()
        assert await honest > 0
    envelope = refused.json
    assert envelope["error_code"] == "BAD_INPUT"
    assert "the input schema of capability 'say'" in envelope["error"]
    assert envelope["error_details"]["field"] == "capabilities[0].input_schema"
    assert (await node.ask("mallory", "say", "hi"))["error_code"] == "AGENT_NOT_FOUND"
    assert max(stalled) < LONGEST_STALL


async def test_every_door_that_registers_refuses_it(node: Node) -> None:
    given = manifest(doubling())
    by_operation = await node.operation("fabric.agent.register", given)
    assert by_operation["error_code"] == "BAD_INPUT"
    async with client(node) as mcp:
        told = await mcp.call_tool("fabric_agent_register", given)
    assert told.is_error
    assert "takes more than" in str(told.content)
    large = await node.operation("fabric.agent.register", manifest({"description": "x" * 600_000}))
    assert large["error_code"] == "BAD_INPUT"
    assert (await node.operation("fabric.agent.list"))["result"]["count"] == 1


async def test_schemas_that_are_only_unusual_may_register(node: Node) -> None:
    tree = {"type": "object", "properties": {"value": {}, "children": {"type": "array", "items": {"$ref": "#"}}}}
    for schema in (
        tree,
        {"type": "object", "properties": {"amount": {"type": "string", "pattern": LOOK_AHEAD}}},
        {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
    ):
        assert (await node.operation("fabric.agent.register", manifest(schema)))["ok"], schema
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(150):
        deep = {"properties": {"a": deep}}
    assert not (await node.operation("fabric.agent.register", manifest({}, output_schema=deep)))["ok"]


# what agents say of themselves


def tool(name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", **schema}, **more}


async def serve(tmp_path: Path, tools: Iterable[dict[str, Any]]) -> dict[str, Any]:
    file = tmp_path / "tools.json"
    await asyncio.to_thread(file.write_text, json.dumps(list(tools)))
    command = [sys.executable, str(LISTED), str(file)]
    return {"agent_id": "server", "runtime": "mcp", "endpoint": {"command": command, "era": "handshake"}}


async def describe(node: Node, agent_id: str, count: int) -> dict[str, Any]:
    """The agent, as soon as so many capabilities of it are known."""
    found: dict[str, Any] = {}

    async def is_known() -> bool:
        found.update((await node.operation("fabric.agent.describe", {"agent_id": agent_id}))["result"]["agent"])
        return len(found["capabilities"]) == count

    await eventually(is_known)
    return found


async def test_an_mcp_tool_with_such_a_schema_stays_usable_and_says_that_it_is_not_checked(tmp_path: Path) -> None:
    amount = {"properties": {"amount": {"type": "string", "pattern": LOOK_AHEAD}}, "required": ["amount"]}
    tools = [
        tool("plain", {"required": ["a"]}),
        tool("decimal", amount),
        tool("wrong", {"properties": {"a": {"type": "odd"}}}),
    ]
    tools += [tool("bomb", doubling()), tool("large", {"description": "x" * 3_000_000})]
    server = await serve(tmp_path, tools)
    done = asyncio.Event()
    async with running(percy(), manifests=[server], config=ALONE) as node, stalls() as stalled:
        honest = asyncio.ensure_future(keep_asking(node, done))
        agent = await describe(node, "server", 5)
        for name in ("bomb", "large", "wrong"):
            reply = await node.ask("server", name, "", context={"b": 1})
            assert reply["ok"], reply
            assert reply["result"]["got"] == ["b"]
        assert (await node.ask("server", "decimal", "", context={"amount": "12.50"}))["ok"]
        refused = await node.ask("server", "decimal", "", context={"amount": "much"})
        assert refused["error_code"] == "BAD_INPUT"
        assert (await node.ask("server", "plain", "", context={"b": 1}))["error_code"] == "BAD_INPUT"
        done.set()
        assert await honest > 0
    log = node.log.getvalue()  # written to its end when the node stops
    assert max(stalled) < LONGEST_STALL
    unchecked = agent["metadata"]["unchecked_schemas"]
    assert set(unchecked) == {"bomb", "large", "wrong"}
    assert "takes more than" in unchecked["bomb"]
    assert "longer than" in unchecked["large"]
    assert "3 input schemas of agent server are not checked here" in log
    schemas = {each["name"]: each["input_schema"] for each in agent["capabilities"]}
    assert schemas["large"] == {"type": "object"}  # too large to be passed on
    assert schemas["bomb"] == tools[3]["inputSchema"]


async def test_ten_thousand_tools_of_one_server_join_beside_the_callers(tmp_path: Path) -> None:
    text = {"type": "string", "pattern": "^[a-z]+$"}
    server = await serve(tmp_path, (tool(f"tool{n}", {"properties": {"p": text, f"q{n}": {}}}) for n in range(10_000)))
    done = asyncio.Event()
    async with running(percy(), manifests=[server], config=ALONE) as node, stalls() as stalled:
        honest = asyncio.ensure_future(keep_asking(node, done))
        found = node.fabric.registry.catalog

        async def all_are_known() -> bool:
            nonlocal found
            found = node.fabric.registry.catalog
            return len(getattr(found.get("server"), "capabilities", ())) == 10_000

        await eventually(all_are_known)
        done.set()
        assert await honest > 0
        assert (await node.ask("server", "tool9999", "", context={"p": "1"}))["error_code"] == "BAD_INPUT"
        assert (await node.ask("server", "tool9999", "", context={"p": "a"}))["ok"]
    assert max(stalled) < 2 * LONGEST_STALL  # the MCP SDK reads such a list in one go


@asynccontextmanager
async def api(document: bytes) -> AsyncIterator[dict[str, Any]]:
    """The manifest of an API that serves this document, and `{}` at all other addresses."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            content = document if scope["path"] == "/openapi" else b"{}"
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    async with listening(answer) as url:
        yield {"agent_id": "api", "runtime": "http", "endpoint": {"uri": url, "openapi": f"{url}/openapi"}}


async def test_an_openapi_document_with_such_schemas_hides_no_operation() -> None:
    text = json.dumps(doubling(60, "allOf")["$defs"]).replace("#/$defs/", "#/components/schemas/")
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/d0"}}}}
    backtracking = {"name": "q", "in": "query", "schema": {"type": "string", "pattern": "^(?=a)(a|a)+$"}}
    paths = {
        "/plain": {"get": {"operationId": "plain", "parameters": [backtracking], "responses": {}}},
        "/bomb": {"post": {"operationId": "bomb", "requestBody": body, "responses": {}}},
    }
    document = {"openapi": "3.1.0", "info": {}, "paths": paths, "components": {"schemas": json.loads(text)}}
    async with (
        api(json.dumps(document).encode()) as agent,
        running(percy(), manifests=[agent], config=ALONE) as node,
        stalls() as stalled,
    ):
        await describe(node, "api", 2)
        assert (await node.ask("api", "plain", "", context={"q": "aaa"}))["ok"]
        evil = await node.ask("api", "plain", "", context={"q": "a" * 5000 + "!"})
        assert evil["error_code"] == "BAD_INPUT"
        bomb = await node.ask("api", "bomb", "", context={"b": 1})
        assert bomb["ok"] or bomb["error_code"] == "BAD_INPUT"
    assert max(stalled) < LONGEST_STALL


async def test_a_document_whose_parts_hold_one_another_a_billion_times_is_cut() -> None:
    lines = ["openapi: 3.1.0", "l0: &l0 [ha, ha]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    query = "{name: q, in: query, schema: {type: array, default: *l11}}"
    lines += [f"paths: {{/laugh: {{get: {{operationId: laugh, parameters: [{query}], responses: {{}}}}}}}}"]
    async with (
        api("\n".join(lines).encode()) as agent,
        running(percy(), manifests=[agent], config=ALONE) as node,
        stalls() as stalled,
    ):
        found = await describe(node, "api", 1)
        assert "longer than" in found["metadata"]["unchecked_schemas"]["laugh"]
        assert (await node.ask("api", "laugh", "", context={"q": ["a"]}))["ok"]
    assert max(stalled) < LONGEST_STALL


async def test_the_agents_of_another_node_are_judged_too() -> None:
    far = {**manifest(doubling()), "agent_id": "far"}
    quiet = {**ALONE, **QUIET}
    async with (
        running(manifests=[far], config=quiet) as there,
        running(percy(), manifests=[entry(there.url)], config=quiet) as here,
        stalls() as stalled,
    ):
        agent = await listed(here, "lab/far", None)
        assert "say" in agent["metadata"]["unchecked_schemas"]
        assert (await here.ask("lab/far", "say", "", context={"b": 1}))["error_code"] == "UPSTREAM_ERROR"
        assert (await here.ask("percy", "say", "hi"))["ok"]
    assert max(stalled) < LONGEST_STALL


# large arguments for large schemas


def choices(count: int) -> dict[str, Any]:
    branches = [{"properties": {"kind": {"const": n}}, "required": ["kind"]} for n in range(count)]
    return {"type": "object", "properties": {"items": {"type": "array", "items": {"anyOf": branches}}}}


async def test_large_arguments_for_a_large_schema_are_checked_beside_the_event_loop(tmp_path: Path) -> None:
    server = await serve(tmp_path, [tool("choose", choices(500))])
    done = asyncio.Event()
    async with running(percy(), manifests=[server], config=ALONE) as node, stalls() as stalled:
        await describe(node, "server", 1)
        honest = asyncio.ensure_future(keep_asking(node, done))
        items = [{"kind": 499, "text": "x" * 10} for _ in range(5000)]
        good = await node.ask("server", "choose", "", context={"items": items})
        bad = await node.ask("server", "choose", "", context={"items": [*items, {"kind": -1}]})
        late = await node.ask("server", "choose", "", context={"items": items}, timeout_ms=50)
        done.set()
        assert await honest > 0
        small = await node.ask("server", "choose", "", context={"items": [{"kind": -1}]})
    assert good["ok"], good
    assert bad["error_code"] == "BAD_INPUT"
    assert "items.5000" in bad["error"]
    assert "-1" not in bad["error"]
    assert late["error_code"] == "TIMEOUT"
    assert small["error_code"] == "BAD_INPUT"
    assert max(stalled) < LONGEST_STALL


async def test_a_schema_whose_work_grows_with_the_depth_of_the_arguments_is_bounded(tmp_path: Path) -> None:
    branching = {"properties": {"c": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "additionalProperties": False}
    server = await serve(tmp_path, [tool("descend", branching)])
    arguments: dict[str, Any] = {"x": 1}
    for _ in range(60):
        arguments = {"c": arguments}
    done = asyncio.Event()
    async with running(percy(), manifests=[server], config=ALONE) as node, stalls() as stalled:
        await describe(node, "server", 1)
        honest = asyncio.ensure_future(keep_asking(node, done))
        assert (await node.ask("server", "descend", "", context={"c": {"c": {}}}))["ok"]
        refused = await node.ask("server", "descend", "", context=arguments, timeout_ms=3000)
        done.set()
        assert await honest > 0
    assert refused["error_code"] in ("BAD_INPUT", "TIMEOUT")
    assert max(stalled) < LONGEST_STALL
