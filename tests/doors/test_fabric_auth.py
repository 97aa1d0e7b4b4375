"""Who may call: keys, odd headers, scopes, trust, anonymous callers, and limits per caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from a2a_fabric.app import Fabric
from a2a_fabric.config import Config
from a2a_fabric.core.errors import ConfigError
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, Reply, check_envelope, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "reason", "task": "x"}}
GUARDED = ["/mcp/health", "/mcp/list_agents", "/mcp/list_tools", "/mcp/agent/percy", "/monitoring/status",
           "/monitoring/health", "/metrics", "/mcp/metrics"]  # fmt: skip
KEYS = [
    {"id": "reader", "key": "reader-key", "scopes": ["capability:reason"]},
    {"id": "nobody", "key": "nobody-key", "scopes": []},
    {"id": "stranger", "key": "stranger-key", "trust": "public"},
    {"id": "tools", "key": "tools-key", "scopes": ["tool:math.calculate"]},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def percy() -> Percy:
    return Percy(trust_tier="org")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(percy: Percy) -> AsyncIterator[Node]:
    async with running(percy.agent, config={"auth": {"keys": KEYS}}) as found:
        yield found


async def post(node: Node, **headers: str) -> Reply:
    return await node.send("POST", "/mcp/call", json=CALL, token=None, headers=headers)


def check_401(reply: Reply, code: str) -> None:
    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith("Bearer")
    check_envelope(reply.json)
    assert reply.json["error_code"] == code
    assert PSK not in reply.body.decode()


@requirement("000-06", "001-24", "001-28")
async def test_the_right_key_opens_and_names_its_mode(node: Node, percy: Percy) -> None:
    reply = await post(node, Authorization=f"Bearer {PSK}")
    assert reply.status == 200
    assert reply.json["ok"] is True
    assert percy.calls[-1].auth.mode == "psk"
    assert (await post(node, Authorization=f"bearer   {PSK} ")).status == 200
    assert (await post(node, **{"X-API-Key": PSK})).status == 200


@requirement("000-06", "001-24", "001-43")
async def test_without_credentials_nothing_is_done(node: Node, percy: Percy) -> None:
    before = len(percy.calls)
    check_401(await post(node), "AUTH_DENIED")
    assert len(percy.calls) == before


ODD = ["Bearer wrong", f"Bearer {PSK}x", f"Bearer {PSK[:-1]}", f"Bearer {PSK.upper()}", "Bearer", "Bearer ", "", " ",
       f"Basic {PSK}", f"Digest {PSK}", PSK, f"Bearer {PSK},{PSK}", f"Bearer {PSK} {PSK}", f"Token {PSK}",
       "Bearer " + "a" * 7000, "Bearer \u00e9\u00ff", "Bearer a.b.c", "Negotiate xyz", f"Bearer\t{PSK}x"]  # fmt: skip


@requirement("001-24", "001-43")
@pytest.mark.parametrize("authorization", ODD)
async def test_wrong_and_odd_credentials_are_refused(node: Node, percy: Percy, authorization: str) -> None:
    before = len(percy.calls)
    reply = await post(node, Authorization=authorization)
    assert reply.status == 401
    check_401(reply, reply.json["error_code"])
    assert reply.json["error_code"] in ("AUTH_INVALID", "AUTH_DENIED")
    assert len(percy.calls) == before
    assert (await post(node, Authorization=f"Bearer {PSK}")).status == 200


async def test_a_wrong_authorization_is_not_mended_by_an_api_key(node: Node) -> None:
    assert (await post(node, **{"Authorization": "Basic x", "X-API-Key": PSK})).status == 401


async def test_bytes_that_are_no_text_in_the_header_are_refused(node: Node) -> None:
    body = b'{"name": "fabric.health"}'
    head = b"POST /mcp/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\x80\r\nContent-Length: %d\r\n\r\n"
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(head % len(body) + body) as (reader, _):
        assert b" 401 " in await reader.readline()


@requirement("000-06")
@pytest.mark.parametrize("path", GUARDED)
async def test_the_pages_want_the_key_too(node: Node, path: str) -> None:
    check_401(await node.send("GET", path, token=None), "AUTH_DENIED")
    check_401(await node.send("GET", path, token="wrong"), "AUTH_INVALID")
    assert (await node.send("GET", path)).status == 200


@requirement("000-04")
async def test_health_is_open(node: Node) -> None:
    assert (await node.send("GET", "/health", token=None)).status == 200


@requirement("001-08")
async def test_the_credentials_of_a_request_are_checked_before_its_shape(node: Node) -> None:
    assert (await node.send("POST", "/mcp/call", data=b"[]", token=None)).status == 401
    assert (await node.send("POST", "/mcp/call", data=b"[]")).status in (400, 415)
    assert (await node.send("POST", "/mcp/call", json={"name": "fabric.nothing"}, token=None)).status == 401


@requirement("001-43")
async def test_a_key_reaches_only_what_its_scopes_name(node: Node, percy: Percy) -> None:
    reader = await node.send("POST", "/mcp/call", json=CALL, token="reader-key")
    assert (reader.status, reader.json["ok"]) == (200, True)
    assert percy.calls[-1].auth.principal_id == "reader"
    assert percy.calls[-1].auth.scp == ("capability:reason",)
    other = {"name": "fabric.call", "arguments": {**CALL["arguments"], "capability": "plan"}}  # type: ignore[dict-item]
    tool = {"name": "fabric.tool.math.calculate", "arguments": {"expression": "1"}}
    for token, body in (("reader-key", other), ("nobody-key", CALL), ("reader-key", tool), ("tools-key", CALL)):
        refused = await node.send("POST", "/mcp/call", json=body, token=token)
        assert refused.status == 403
        check_envelope(refused.json)
        assert refused.json["error_code"] == "AUTH_DENIED"
    assert (await node.send("POST", "/mcp/call", json=tool, token="tools-key")).json["ok"] is True


async def test_a_stream_is_refused_like_a_plain_call(node: Node) -> None:
    body = {"name": "fabric.call", "arguments": {**CALL["arguments"], "stream": True}}  # type: ignore[dict-item]
    refused = await node.send("POST", "/mcp/call", json=body, token="nobody-key", headers={"Accept": "*/*"})
    assert refused.status == 403
    check_envelope(refused.json)


async def test_a_caller_of_less_trust_does_not_reach_the_agent(node: Node) -> None:
    refused = await node.send("POST", "/mcp/call", json=CALL, token="stranger-key")
    assert refused.status == 403
    assert "trust tier" in refused.json["error"]
    preview = {"name": "fabric.route.preview", "arguments": {"agent_id": "percy", "capability": "reason"}}
    shown = await node.send("POST", "/mcp/call", json=preview, token="stranger-key")
    assert shown.json["result"]["policy"]["allowed"] is False


@requirement("001-28")
async def test_anonymous_callers_are_let_in_only_where_configured() -> None:
    percy = Percy()
    async with running(percy.agent, config={"auth": {"anonymous": True}}, psk=None) as node:
        assert (await post(node)).json["ok"] is True
        assert percy.calls[-1].auth.mode == "none"
        check_401(await post(node, Authorization="Bearer wrong"), "AUTH_INVALID")
        for strange in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
            assert (await post(node, **strange)).status == 403
        for proxy in ({"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}, {"Via": "1.1 proxy"}):
            assert (await post(node, **proxy)).status == 403, "the client of a proxy is not on this machine"
        assert (await post(node, Origin="http://localhost:3000")).status == 200


async def test_without_any_key_a_node_does_not_leave_loopback() -> None:
    with pytest.raises(ConfigError, match="loopback"):
        Fabric(Config(listen="0.0.0.0:0"), sources=[], environ={})


async def test_too_many_calls_are_answered_with_429_and_a_whole_number_of_seconds() -> None:
    config = {"limits": {"calls_per_minute": 2}, "auth": {"keys": KEYS}}
    async with running(Percy().agent, config=config) as node:
        replies = [await post(node, Authorization=f"Bearer {PSK}") for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        last = replies[-1]
        check_envelope(last.json)
        assert last.json["error_code"] == "RATE_LIMITED"
        assert 1 <= int(last.headers["retry-after"]) <= 60
        body = {"name": "fabric.call", "arguments": {**CALL["arguments"], "stream": True}}  # type: ignore[dict-item]
        streamed = await node.send("POST", "/mcp/call", json=body, headers={"Accept": "text/event-stream"})
        assert streamed.status == 429
        assert int(streamed.headers["retry-after"]) >= 1
        assert (await post(node, Authorization="Bearer reader-key")).status == 200  # another caller has its own budget
        assert (await node.operation("fabric.health"))["ok"] is True


async def test_a_busy_node_says_so() -> None:
    percy = Percy()
    async with running(percy.agent, config={"limits": {"concurrent_calls": 1}}) as node:
        held = asyncio.ensure_future(node.ask("percy", "hold"))
        await asyncio.wait_for(percy.started.wait(), WAIT_TIMEOUT)
        reply = await post(node, Authorization=f"Bearer {PSK}")
        assert (reply.status, reply.json["error_code"]) == (429, "RATE_LIMITED")
        percy.may_go_on.set()
        assert (await held)["ok"] is True
        assert (await post(node, Authorization=f"Bearer {PSK}")).status == 200
