"""MCP by hand: credentials, malformed messages, unknown methods, versions and headers that do not fit, sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import websockets

from tests.fixtures.mcp_raw import ACCEPT, MODERN, Session, initialize, modern
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, Reply, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

OTHER = "the-key-of-somebody-else"


@pytest.fixture
async def percy() -> Percy:
    return Percy()


@pytest.fixture
async def node(percy: Percy) -> AsyncIterator[Node]:
    keys = {"auth": {"keys": [{"id": "other", "key": OTHER}]}, "limits": {"body_bytes": 4096}}
    async with running(percy.agent, config=keys) as found:
        yield found


async def post(node: Node, body: Any, path: str = "/mcp", **headers: str) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Accept": ACCEPT, "Content-Type": "application/json", **headers}
    return await node.send("POST", path, data=data, headers=given, token=headers.pop("token", PSK) or None)


async def ask(node: Node, method: str, params: dict[str, Any] | None = None, **headers: Any) -> Reply:
    head, body = modern(method, params, **headers)
    return await node.send("POST", "/mcp", json=body, headers=head)


@requirement("001-52")
@pytest.mark.parametrize("path", ["/mcp", "/agents/percy/mcp"])
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_without_a_good_key_nothing_is_served(node: Node, percy: Percy, path: str, method: str) -> None:
    for token, code in ((None, "AUTH_DENIED"), ("wrong", "AUTH_INVALID")):
        head, body = modern("tools/call", {"name": "percy_reason", "arguments": {"task": "x"}})
        del head["Authorization"]
        reply = await node.send(method, path, json=body, headers=head, token=token)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.json["error"]["data"]["error"]["code"] == code
    assert percy.calls == []


async def test_a_socket_wants_the_key_too(node: Node) -> None:
    url = node.url.replace("http", "ws") + "/mcp/ws"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await websockets.connect(url, additional_headers=headers)
        assert refused.value.response.status_code == 401
        assert "Bearer" in refused.value.response.headers["WWW-Authenticate"]


async def test_pages_of_other_sites_do_not_get_in_where_no_key_is_needed(percy: Percy) -> None:
    async with running(percy.agent, config={"auth": {"anonymous": True}}, psk=None) as node:
        head, body = modern("tools/list")
        del head["Authorization"]
        assert (await node.send("POST", "/mcp", json=body, headers=head, token=None)).status == 200
        for strange in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            reply = await node.send("POST", "/mcp", json=body, headers={**head, **strange}, token=None)
            assert reply.status == 403


MALFORMED = [
    (b"", -32700),
    (b"{", -32700),
    (b"\xff\xfe", -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping"', -32700),
    (b"[" * 100_000, -32700),
    (b"[]", -32600),
    (b"7", -32600),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
    (b'{"id": 1, "method": "ping"}', -32600),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1}', -32600),
    (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": "x"}', -32600),
]


@pytest.mark.parametrize("version", [None, "2025-06-18", MODERN])
@pytest.mark.parametrize(("body", "code"), MALFORMED, ids=range(len(MALFORMED)))
async def test_what_is_no_message_gets_its_code(node: Node, body: bytes, code: int, version: str | None) -> None:
    if len(body) > 4096:
        body = body[:4000]
    headers = {"MCP-Protocol-Version": version} if version else {}
    reply = await post(node, body, **headers)
    assert reply.status == 400
    assert reply.json["jsonrpc"] == "2.0"
    assert reply.json["id"] is None
    assert reply.json["error"]["code"] == code
    assert "mcp-session-id" not in reply.headers
    assert "pydantic" not in reply.body.decode()


@pytest.mark.parametrize(("body", "code"), MALFORMED, ids=range(len(MALFORMED)))
async def test_a_socket_survives_what_is_no_message(node: Node, body: bytes, code: int) -> None:
    url = node.url.replace("http", "ws") + "/mcp/ws"
    headers = {"Authorization": f"Bearer {PSK}"}
    async with asyncio.timeout(WAIT_TIMEOUT), websockets.connect(url, additional_headers=headers) as socket:
        await socket.send(body)
        reply = json.loads(await socket.recv())
        assert reply["error"]["code"] == code
        await socket.send(json.dumps(initialize()))
        assert json.loads(await socket.recv())["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("method", ["nope/nope", "tools/nope", "", "tasks/list", "initialize"])
async def test_an_unknown_method_is_not_found_in_the_stateless_era(node: Node, method: str) -> None:
    reply = await ask(node, method)
    assert reply.status == 404
    assert reply.json["id"] == 1
    assert reply.json["error"]["code"] == -32601


@pytest.mark.parametrize("method", ["nope/nope", "tools/nope", "server/discover", "tasks/list"])
async def test_an_unknown_method_is_not_found_in_the_handshake_era(node: Node, method: str) -> None:
    async with Session(node) as session, session.post({"jsonrpc": "2.0", "id": 3, "method": method}) as response:
        answer = json.loads((await response.text()).rpartition("data: ")[2])
        assert answer["error"]["code"] == -32601


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_version_of_the_handshake_era_is_spoken(node: Node, version: str) -> None:
    async with Session(node, version) as session:
        assert session.opened["protocolVersion"] == version
        assert session.opened["capabilities"]["tools"] == {"listChanged": True}
        call = {"name": "percy_reason", "arguments": {"task": "hi"}}
        answer = (await session.answer({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}))["result"]
    assert json.loads(answer["content"][0]["text"]) == {"answer": "hi", "depth": 1}


async def test_a_client_of_the_future_gets_the_newest_handshake_we_know(node: Node) -> None:
    async with Session(node, "2031-01-01") as session:
        assert session.opened["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"MCP_Protocol_Version": "2031-01-01"}, -32020),
        ({"Mcp_Method": "tools/list"}, -32020),
        ({"Mcp_Name": "percy_plan"}, -32020),
        ({"Mcp_Name": "=?base64?%%%?="}, -32020),
    ],
)
async def test_headers_that_contradict_the_body_are_refused(
    node: Node, percy: Percy, change: dict[str, str], code: int
) -> None:
    reply = await ask(node, "tools/call", {"name": "percy_reason", "arguments": {"task": "x"}}, **change)
    assert reply.status == 400
    assert reply.json["error"]["code"] == code
    assert reply.json["id"] == 1
    assert percy.calls == []


async def test_a_name_in_base64_is_the_same_name(node: Node) -> None:
    params = {"name": "percy_reason", "arguments": {"task": "x"}}
    reply = await ask(node, "tools/call", params, Mcp_Name="=?base64?cGVyY3lfcmVhc29u?=")
    assert reply.json["result"]["structuredContent"]["answer"] == "x"


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        (None, -32602),
        ({}, -32602),
        ({"io.modelcontextprotocol/protocolVersion": MODERN}, -32602),
        ({"io.modelcontextprotocol/clientCapabilities": {}}, -32602),
        ("x", -32602),
    ],
)
async def test_a_request_without_its_envelope_is_refused(node: Node, meta: Any, code: int) -> None:
    head, body = modern("tools/list")
    body["params"] = {"_meta": meta} if meta is not None else {}
    reply = await node.send("POST", "/mcp", json=body, headers=head)
    assert reply.status == 400
    assert reply.json["error"]["code"] == code


async def test_an_unknown_version_is_told_which_are_known(node: Node) -> None:
    head, body = modern("tools/list", meta={"io.modelcontextprotocol/protocolVersion": "2031-01-01"})
    reply = await node.send("POST", "/mcp", json=body, headers={**head, "MCP-Protocol-Version": "2031-01-01"})
    assert reply.status == 400
    assert reply.json["error"]["code"] == -32022
    assert reply.json["error"]["data"] == {"supported": [MODERN], "requested": "2031-01-01"}


@pytest.mark.parametrize("params", [{}, {"name": None}, {"name": "percy_reason", "arguments": [1]}])
async def test_a_tool_call_of_the_wrong_shape_is_refused(node: Node, params: dict[str, Any]) -> None:
    reply = await ask(node, "tools/call", params)
    assert reply.status == 400
    assert reply.json["error"]["code"] == -32602


@pytest.mark.parametrize("accept", ["text/html", "application/json", "text/event-stream", ""])
async def test_a_client_must_accept_both_forms_of_an_answer(node: Node, accept: str) -> None:
    reply = await ask(node, "tools/list", Accept=accept)
    assert reply.status == 406


async def test_other_ways_to_ask_are_refused(node: Node) -> None:
    head, body = modern("tools/list")
    assert (await node.send("GET", "/mcp", headers=head)).status == 405
    assert (await node.send("PUT", "/mcp", json=body, headers={"Accept": ACCEPT})).status in (400, 405)
    assert (await node.send("POST", "/mcp", data=b"{}", headers={**head, "Content-Type": "text/plain"})).status == 415


async def test_a_body_that_is_too_large_is_refused(node: Node) -> None:
    reply = await ask(node, "tools/call", {"name": "percy_reason", "arguments": {"task": "x" * 5000}})
    assert reply.status == 413
    assert reply.json["error"]["data"]["error"]["code"] == "PAYLOAD_TOO_LARGE"


async def test_a_notification_is_taken_and_nothing_is_said(node: Node) -> None:
    head, body = modern("notifications/cancelled")
    del body["id"]
    reply = await node.send("POST", "/mcp", json=body, headers=head)
    assert (reply.status, reply.body) == (202, b"")


async def test_a_session_belongs_to_the_caller_that_opened_it(node: Node, percy: Percy) -> None:
    async with Session(node) as session:
        call = {"name": "percy_reason", "arguments": {"task": "x"}}
        request = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}
        async with session.post(request, Authorization=f"Bearer {OTHER}") as refused:
            assert refused.status == 404
        assert percy.calls == []
        async with session.post(request) as served:
            assert served.status == 200
            await served.text()
    async with session.post(request) as ended:
        assert ended.status == 404


async def test_sessions_are_counted(percy: Percy) -> None:
    """One session too many closes the idlest; more about that in test_mcp_session_limits."""
    config = {"doors": [{"kind": "mcp", "max_sessions": 1}]}
    async with running(percy.agent, config=config) as node, Session(node) as first:
        assert (await post(node, initialize())).status == 200
        async with first.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}) as ended:
            assert ended.status == 404


async def test_who_leaves_as_soon_as_it_knows_its_session_has_one(node: Node) -> None:
    """Codex does so: it has heard all it wants before the stream has ended."""
    told: dict[str, str] = {}
    heard, may_end = asyncio.Event(), asyncio.Event()
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "hasty", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}).encode()
    given = {"accept": "text/event-stream, application/json", "content-type": "application/json"}
    given["authorization"] = f"Bearer {PSK}"
    headers = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "client": ("127.0.0.1", 1)}
    said = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        if said:
            return said.pop()
        await may_end.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.update((name.decode(), value.decode()) for name, value in message["headers"])
        elif b'"result"' in message.get("body", b""):
            heard.set()
            await may_end.wait()

    async with asyncio.timeout(WAIT_TIMEOUT):
        opening = asyncio.ensure_future(node.fabric.app(scope, receive, send))
        await heard.wait()
        opening.cancel()
        await asyncio.wait([opening])
        session = {"mcp-session-id": told["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
        for method, extra in (("notifications/initialized", {}), ("tools/list", {"id": 1})):
            reply = await node.send(
                "POST", "/mcp", json={"jsonrpc": "2.0", "method": method, **extra}, headers={**given, **session}
            )
            assert reply.status in (200, 202), reply.body
        may_end.set()


async def test_a_waiting_stream_does_not_hold_up_the_end_of_the_node(percy: Percy) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as outside:
        async with running(percy.agent, drain=int(WAIT_TIMEOUT)) as node:
            node_client, node.client = node.client, outside
            session = await Session(node).__aenter__()
            waiting = await outside.get(node.url + "/mcp", headers=session.headers)
            assert waiting.headers["content-type"].startswith("text/event-stream")
            head, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            listening = await outside.post(node.url + "/mcp", json=body, headers=head)
            assert (await listening.content.readline()).startswith(b"event: message")
            started = loop.time()
            node.client = node_client
        assert loop.time() - started < WAIT_TIMEOUT / 2, "the node waited for streams that wait for it"
        told = await waiting.content.read()
        assert not told or b"list_changed" in told  # the catalog may still have been settling
        assert b'"result"' in await listening.content.read()


async def test_many_sessions_that_are_left_behind_leave_no_call_behind(node: Node, percy: Percy) -> None:
    for _ in range(5):
        percy.started.clear()
        async with Session(node) as session:
            call = {"name": "percy_wait", "arguments": {"task": "x"}}
            body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}
            asking = asyncio.ensure_future(session.answer(body))
            async with asyncio.timeout(WAIT_TIMEOUT):
                await percy.started.wait()
            asking.cancel()

    async def idle() -> bool:
        return node.fabric.runtime_pool._live_runtimes["percy"].gate.calls == 0

    await eventually(idle)
