"""The short way of the stateless era answers as the SDK does: requests go both ways, and the replies are equal."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.protocols.mcp import wire
from tests.fixtures.mcp_raw import modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, Reply, running
from tests.fixtures.percy import Percy

_strangers = itertools.count()
TASK = {"arguments": {"task": "go"}}


def headed() -> Agent:
    agent = Agent("headed")
    schema = {
        "type": "object",
        "properties": {"place": {"type": "string", "x-mcp-header": "Place"}},
    }

    @agent.capability(input_schema=schema)
    async def go(place: str = "here") -> dict[str, str]:
        """Wants its argument repeated in a header."""
        return {"place": place}

    return agent


@pytest.fixture
async def percy() -> Percy:
    return Percy()


@pytest.fixture
async def node(percy: Percy) -> AsyncIterator[Node]:
    async with running(percy.agent, headed()) as found:
        yield found


def stranger() -> dict[str, Any]:
    """A client that the node has never seen, with a field that it does not judge itself, so the SDK looks at it."""
    about = {"name": f"client {next(_strangers)}", "version": "1", "icons": []}
    return {"io.modelcontextprotocol/clientInfo": about}


async def ask(node: Node, method: str, params: dict[str, Any], meta: dict[str, Any], **headers: Any) -> Reply:
    head, body = modern(method, params, meta=meta, **headers)
    return await node.send("POST", "/mcp", json=body, headers=head)


def goes_the_short_way(node: Node, method: str, params: dict[str, Any], meta: dict[str, Any]) -> bool:
    head, body = modern(method, params, meta=meta)
    headers = [(key.lower().encode(), value.encode()) for key, value in head.items()]
    headers.append((b"content-type", b"application/json"))
    short: Any = node.fabric.doors[1].hot["/mcp"]._find_fast_path({}, None)  # type: ignore[attr-defined]
    request = short.parse({"headers": headers}, RequestHead(headers), wire.parse_message(json.dumps(body).encode()))
    return request is not None and short.is_trusted(request)


def comparable(reply: Reply) -> Any:
    """Everything but what differs from call to call."""
    kind = reply.headers["content-type"].partition(";")[0]
    texts = [reply.body.decode()]
    if kind == "text/event-stream":
        frames = [frame for frame in reply.body.decode().split("\r\n\r\n") if frame and not frame.startswith(":")]
        assert all(frame.startswith("event: message\r\ndata: ") for frame in frames)
        texts = [frame.partition("data: ")[2] for frame in frames]
    return reply.status, kind, [_without_trace(json.loads(text)) for text in texts if text]


def _without_trace(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_trace(inner) for key, inner in value.items() if "trace" not in key}
    return [_without_trace(inner) for inner in value] if isinstance(value, list) else value


ALIKE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tools/list", {}, {}),
    ("server/discover", {}, {}),
    ("tools/call", {"name": "percy_reason", **TASK}, {}),
    ("tools/call", {"name": "fabric.tool.agent.percy.reason", **TASK}, {}),
    ("tools/call", {"name": "percy_reason", "arguments": {"task": "é ☃ \\ud83d", "depth": 2}}, {}),
    ("tools/call", {"name": "fabric_health"}, {}),
    ("tools/call", {"name": "fabric_agent_list", "arguments": None}, {}),
    ("tools/call", {"name": "percy_refuse", **TASK}, {}),
    ("tools/call", {"name": "percy_fail", **TASK}, {}),
    ("tools/call", {"name": "percy_reason", "arguments": {}}, {}),
    ("tools/call", {"name": "percy_odd", "arguments": {"task": "surrogate"}}, {}),
    ("tools/call", {"name": "percy_odd", "arguments": {"task": "text"}}, {}),
    ("tools/call", {"name": "nope", **TASK}, {}),
    ("tools/call", {"name": "percy_plan", **TASK}, {"progressToken": "t"}),
    ("tools/call", {"name": "percy_plan", **TASK}, {"progressToken": 7}),
    ("tools/call", {"name": "percy_plan", **TASK}, {"io.modelcontextprotocol/logLevel": "debug"}),
    ("tools/call", {"name": "percy_plan", **TASK}, {"io.modelcontextprotocol/logLevel": "error"}),
    ("tools/call", {"name": "percy_plan", **TASK}, {"progressToken": 1, "io.modelcontextprotocol/logLevel": "info"}),
    ("tools/call", {"name": "percy_refuse", **TASK}, {"progressToken": 1}),
    ("tools/call", {"name": "nope", **TASK}, {"progressToken": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params", "meta"), ALIKE, ids=range(len(ALIKE)))
async def test_both_ways_say_the_same(node: Node, method: str, params: dict[str, Any], meta: dict[str, Any]) -> None:
    meta = {**stranger(), **meta}
    assert (await ask(node, "tools/list", {}, {**stranger()})).status == 200
    assert not goes_the_short_way(node, method, params, meta)
    long = await ask(node, method, params, meta)
    if long.status != 200:
        assert (await ask(node, "tools/list", {}, meta)).status == 200
    assert goes_the_short_way(node, method, params, meta)
    short = await ask(node, method, params, meta)
    first, second = comparable(long), comparable(short)
    if params.get("name") == "fabric_health":
        assert first[:2] == second[:2]
    else:
        assert first == second


LONG: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, str]]] = [
    ("resources/list", {}, {}, {}),
    ("tools/list", {"cursor": "x"}, {}, {}),
    ("tools/call", {"name": 5}, {}, {}),
    ("tools/call", {"name": "percy_reason", "arguments": [1]}, {}, {}),
    ("tools/call", {"name": "percy_reason", "requestState": "x"}, {}, {}),
    ("tools/call", {"name": "headed_go", "arguments": {"place": "there"}}, {}, {}),
    ("tools/call", {"name": "percy_reason", **TASK}, {"io.modelcontextprotocol/logLevel": "loud"}, {}),
    ("tools/call", {"name": "percy_reason", **TASK}, {"progressToken": [1]}, {}),
    ("tools/call", {"name": "percy_reason", **TASK}, {"io.modelcontextprotocol/clientCapabilities": 5}, {}),
    ("tools/call", {"name": "percy_reason", **TASK}, {}, {"Mcp_Name": "percy_plan"}),
    ("tools/call", {"name": "percy_reason", **TASK}, {}, {"Mcp_Method": "tools/list"}),
    ("tools/call", {"name": "percy_reason", **TASK}, {}, {"Accept": "application/json"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params", "meta", "headers"), LONG, ids=range(len(LONG)))
async def test_what_it_is_not_sure_of_is_the_sdks_to_answer(
    node: Node, method: str, params: dict[str, Any], meta: dict[str, Any], headers: dict[str, str]
) -> None:
    """A client that the node knows well gets the same as one that it has never seen."""
    known = stranger()
    assert (await ask(node, "tools/list", {}, known)).status == 200
    assert goes_the_short_way(node, "tools/list", {}, known)
    expected = await ask(node, method, params, {**stranger(), **meta}, **headers)
    found = await ask(node, method, params, {**known, **meta}, **headers)
    if found.status in (200, 400):
        assert comparable(found)[:2] == comparable(expected)[:2]
        assert _code(found) == _code(expected)
    assert found.status == expected.status


def _code(reply: Reply) -> Any:
    return reply.json.get("error", {}).get("code")


async def test_a_header_that_a_tool_wants_is_looked_at(node: Node) -> None:
    known = stranger()
    await ask(node, "tools/list", {}, known)
    params = {"name": "headed_go", "arguments": {"place": "there"}}
    assert _code(await ask(node, "tools/call", params, known)) == -32020
    reply = await ask(node, "tools/call", params, known, Mcp_Param_Place="there")
    assert reply.json["result"]["structuredContent"] == {"place": "there"}


@pytest.mark.parametrize("progress", [None, 1])
async def test_hanging_up_on_the_short_way_cancels_the_agent(node: Node, percy: Percy, progress: int | None) -> None:
    known = {**stranger(), **({"progressToken": progress} if progress else {})}
    await ask(node, "tools/list", {}, known)
    head, body = modern("tools/call", {"name": "percy_wait_and_talk", **TASK}, meta=known)
    assert goes_the_short_way(node, "tools/call", {"name": "percy_wait_and_talk", **TASK}, known)
    asking = asyncio.ensure_future(node.client.post(node.url + "/mcp", json=body, headers=head))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await percy.started.wait()
        asking.cancel()
        if asking.done() and not asking.cancelled():
            asking.result().close()
        await asyncio.gather(asking, return_exceptions=True)
        await percy.cancelled.wait()


async def test_another_catalog_means_another_list(node: Node) -> None:
    known = stranger()
    before = [(await ask(node, "tools/list", {}, known)).json["result"]["tools"] for _ in range(2)]
    registry = node.fabric.registry
    registry.register_agent(Agent("newcomer").manifest({"uri": "http://127.0.0.1:9/"}))
    after = (await ask(node, "tools/list", {}, known)).json["result"]["tools"]
    assert before[0] == before[1] == after
    newcomer = Agent("newcomer")

    @newcomer.capability
    async def act() -> None:
        """Do nothing."""

    registry.register_agent(newcomer.manifest({"uri": "http://127.0.0.1:9/"}))
    assert "newcomer_act" in {t["name"] for t in (await ask(node, "tools/list", {}, known)).json["result"]["tools"]}


async def test_a_client_that_says_much_of_itself_is_served_but_not_remembered(node: Node) -> None:
    """Otherwise a caller could fill the node's memory with descriptions of clients."""
    for length, is_remembered in ((100, True), (100_000, False)):
        name = f"{next(_strangers)} {'x' * length}"
        meta = {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}
        for _ in range(2):
            assert (await ask(node, "tools/list", {}, meta)).status == 200
        assert goes_the_short_way(node, "tools/list", {}, meta) is is_remembered


async def call_tool(node: Node, name: str, arguments: dict[str, Any], meta: dict[str, Any], **headers: Any) -> Reply:
    reply = await ask(node, "tools/call", {"name": name, "arguments": arguments}, meta, **headers)
    assert reply.status == 200, reply.body
    return reply


async def test_a_repeated_call_follows_the_catalog(node: Node) -> None:
    """What is kept of a tool for its next call ends with the state of the catalog from which it was taken."""
    known, registry = stranger(), node.fabric.registry
    await ask(node, "tools/list", {}, known)
    newcomer = Agent("newcomer")

    @newcomer.capability
    async def act(depth: int = 1) -> None:
        """Do nothing."""

    registry.register_agent(newcomer.manifest({"uri": "http://127.0.0.1:9/"}))
    for _ in range(3):
        refused = (await call_tool(node, "newcomer_act", {"depth": 2}, known)).json["result"]
        assert refused["structuredContent"]["error"]["code"] == "AGENT_OFFLINE"
    bad = (await call_tool(node, "newcomer_act", {"depth": "deep"}, known)).json["result"]
    assert bad["structuredContent"]["error"]["code"] == "BAD_INPUT"
    registry.register_agent(Agent("newcomer").manifest({"uri": "http://127.0.0.1:9/"}))
    assert _code(await ask(node, "tools/call", {"name": "newcomer_act", "arguments": {}}, known)) == -32602


async def test_a_repeated_call_takes_options_and_answers_with_the_trace_that_it_names(node: Node, percy: Percy) -> None:
    known, trace_id = stranger(), "0af7651916cd43dd8448eb211c80319c"
    await ask(node, "tools/list", {}, known)
    for _ in range(2):
        await call_tool(node, "percy_reason", {"task": "go", "depth": 3}, known)
    await call_tool(node, "percy_reason", {"task": "go", "timeout_ms": 4000}, known)
    *plain, short = [call.target.timeout_ms for call in percy.calls]
    assert short <= 4000 < min(plain)
    traced = {**known, "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    reply = await call_tool(node, "percy_reason", {"task": "go"}, traced)
    assert percy.calls[-1].trace.trace_id.replace("-", "") == trace_id
    assert reply.headers["x-trace-id"].replace("-", "") == trace_id
    node.fabric.gateway.set_timeouts(2000, 5000)
    await call_tool(node, "percy_reason", {"task": "go"}, known)
    assert percy.calls[-1].target.timeout_ms <= 2000


async def test_what_is_kept_for_one_caller_serves_no_other(percy: Percy) -> None:
    """Each caller has its own rights, whoever has called the tool before; and a key that is gone is gone at once."""
    keys = [
        {"id": "wide", "key": "a-wide-key-1", "scopes": ["agent:percy"]},
        {"id": "narrow", "key": "a-narrow-key-1", "scopes": ["capability:plan"]},
    ]
    async with running(percy.agent, config={"auth": {"keys": keys}}) as node:
        known = stranger()
        wide, narrow = ({"Authorization": f"Bearer {key['key']}"} for key in keys)
        await ask(node, "tools/list", {}, known, **wide)
        for _ in range(2):
            allowed = await call_tool(node, "percy_reason", {"task": "go"}, known, **wide)
            assert allowed.json["result"]["structuredContent"]["answer"] == "go"
            refused = await call_tool(node, "percy_reason", {"task": "go"}, known, **narrow)
            assert refused.json["result"]["structuredContent"]["error"]["code"] == "AUTH_DENIED"
        assert {call.auth.principal_id for call in percy.calls} == {"wide"}
        config = node.fabric.config
        gone = msgspec.structs.replace(config, auth=msgspec.structs.replace(config.auth, keys=config.auth.keys[1:]))
        node.fabric.reload(gone)
        reply = await ask(node, "tools/call", {"name": "percy_reason", **TASK}, known, **wide)
        assert reply.status == 401
