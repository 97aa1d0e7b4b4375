"""Calls at `/agents/ID/mcp` that only have to be forwarded take a short way. It may not differ from the long one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.doors.test_mcp_passthrough import NARROW, OTHER, PATH, keys
from tests.fixtures.conformance_server import serving
from tests.fixtures.mcp_raw import Session, last_message, modern
from tests.fixtures.node import PSK, Node, Reply, eventually, running
from tests.marks import requirement

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving() as url:
        manifests = [{"agent_id": "fixture", "runtime": "mcp", "endpoint": {"uri": url}, "trust_tier": "org"}]
        async with running(manifests=manifests, config=keys()) as found:
            yield found


def calling(name: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "call-1", "method": "tools/call", "params": {"name": name, **params}}


async def call(node: Node, name: str = "test_simple_text", path: str = PATH, token: str = PSK) -> Reply:
    """A call of the stateless era."""
    head, body = modern("tools/call", {"name": name, "arguments": {}}, Authorization=f"Bearer {token}")
    return await node.send("POST", path, json=body, headers=head)


def is_hot(node: Node) -> bool:
    """Whether the server hands requests for this path to the door itself, with the short way to reply."""
    return PATH.encode() in node.fabric.app.hot_urls


@requirement("001-52")
async def test_the_first_call_and_the_next_ones_are_answered_alike(node: Node) -> None:
    assert not is_hot(node)
    replies = [await call(node) for _ in range(3)]
    assert is_hot(node)
    assert [each.status for each in replies] == [200, 200, 200]
    assert len({last_message(each.body.decode())["result"]["content"][0]["text"] for each in replies}) == 1
    assert len({each.headers["x-trace-id"] for each in replies}) == 3
    assert len({each.headers["content-type"] for each in replies}) == 1


async def test_in_a_session_only_its_owner_may_call(node: Node) -> None:
    async with Session(node, path=PATH) as session:
        for _ in range(3):
            answer = await session.answer(calling("test_simple_text", arguments={}))
            assert answer["id"] == "call-1"
            assert "result" in answer
        assert is_hot(node)
        stranger = {**session.headers, "Authorization": f"Bearer {OTHER}"}
        async with node.client.post(node.url + PATH, json=calling("test_simple_text"), headers=stranger) as refused:
            assert refused.status == 404
        assert "result" in await session.answer(calling("test_simple_text", arguments={}))
    async with session.post(calling("test_simple_text", arguments={})) as ended:
        assert ended.status == 404


async def test_a_caller_who_may_not_use_all_of_the_agent_is_not_let_through_by_the_calls_of_others(node: Node) -> None:
    for _ in range(2):
        assert (await call(node)).status == 200
    allowed = await call(node, token=NARROW)
    assert "result" in last_message(allowed.body.decode())
    refused = await call(node, "test_error_handling", token=NARROW)
    assert last_message(refused.body.decode())["result"]["isError"] is True
    assert "This tool intentionally returns an error" not in refused.body.decode()


async def test_an_agent_that_has_left_is_not_called_any_more(node: Node) -> None:
    assert [(await call(node)).status for _ in range(2)] == [200, 200]
    source: Any = node.fabric.agents.sources[1]
    source._manifests = []
    await node.fabric.registry.load(source)
    assert (await call(node)).json["error"]["data"]["error"]["code"] == "AGENT_NOT_FOUND"


@requirement("001-53")
async def test_errors_of_the_tool_and_of_the_server_are_errors_of_the_call_in_the_log(node: Node) -> None:
    await call(node)
    head, body = modern("tools/call", {"name": "test_error_handling", "arguments": {}})
    await node.send("POST", PATH, json=body, headers={**head, "traceparent": TRACEPARENT})

    async def has_line() -> bool:
        lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
        calls = [line for line in lines if str(line.get("trace_id")).replace("-", "") == TRACE]
        return [(line["event"], line.get("error_code")) for line in calls] == [("call", "UPSTREAM_ERROR")]

    await eventually(has_line)


async def test_a_request_that_cannot_be_read_gets_its_error_also_on_a_hot_path(node: Node) -> None:
    await call(node)
    head, _ = modern("tools/call", {"name": "x"})
    deep = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":' + '{"a":' * 2000 + "1"
    for body in (
        b"{",
        b"[]",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}',
        deep.encode() + b"}" * 2002,
    ):
        sent = await node.send("POST", PATH, data=body, headers={**head, "Content-Type": "application/json"})
        assert sent.status == 400
        assert sent.json["error"]["code"] in (-32700, -32600)
    as_text = await node.send("POST", PATH, data=b"{}", headers={**head, "Content-Type": "text/plain"})
    assert as_text.status == 415


async def test_a_path_with_a_query_takes_the_long_way(node: Node) -> None:
    for _ in range(2):
        assert (await call(node, path=f"{PATH}?x=1")).status == 200
    assert not is_hot(node)
