"""A client may offer to go on in another protocol. The node ignores the offer and serves the request, body and all.

Java's HttpClient offers HTTP/2 with every request, and so does `curl --http2`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.fixtures.mcp_raw import ACCEPT, initialize, modern
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy

H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAA"}
WORDS = "words that must arrive"
DOORS = ["fabric", "mcp", "a2a", "directory", "rest", "discovery"]

_call = {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "reason", "task": WORDS}}
_tool = modern("tools/call", {"name": "percy_reason", "arguments": {"task": WORDS}})
_message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": WORDS}], "metadata": {"skill": "reason"}}
_send = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": _message}}
_part = {"type": "text", "content": WORDS}
_task = {"taskId": "t-1", "action": "reason", "input": {"task": WORDS}}
_rpc = {"jsonrpc": "2.0", "id": 1, "method": "sendMessage", "params": {"agentId": "percy", "parts": [_part]}}

# By door: path, body, more headers, and what the reply holds only if the body arrived.
REQUESTS: dict[str, tuple[str, Any, dict[str, str], str]] = {
    "fabric": ("/mcp/call", _call, {}, WORDS),
    "fabric, not hot": ("/mcp/register_agent", {"agent_id": "x y", "endpoint": "http://127.0.0.1:1"}, {}, "agent_id"),
    "mcp, stateless": ("/mcp", _tool[1], _tool[0], WORDS),
    "mcp, handshake": ("/mcp", initialize(), {"Accept": ACCEPT}, "2025-11-25"),
    "mcp, one agent": ("/agents/percy/mcp", _tool[1], _tool[0], '"jsonrpc"'),
    "a2a, JSON-RPC": ("/agents/percy", _send, {"A2A-Version": "1.0"}, WORDS),
    "a2a, HTTP+JSON": ("/agents/percy/message:send", {"message": _message}, {"A2A-Version": "1.0"}, WORDS),
    "rest": ("/v1/tasks", {"agentId": "percy", "input": {"task": WORDS}, "capability": "reason"}, {}, WORDS),
    "rest, RPC": ("/", _rpc, {}, '"result"'),
    "directory": ("/a2a", {"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": _task}, {}, WORDS),
    "directory, bare": ("/a2a/task", _task, {}, WORDS),
    "discovery": ("/search", {"query": "percy"}, {}, '"percy"'),
}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent, config={"doors": [{"kind": kind} for kind in DOORS]}) as found:
        yield found


def render(path: str, body: Any, headers: dict[str, str], *, chunked: bool = False, verb: str = "POST") -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    framing = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(content))}
    fields = {"Host": "x", "Authorization": f"Bearer {PSK}", "Content-Type": "application/json", **headers, **framing}
    lines = [f"{verb} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if chunked:
        content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, str]:
    async with asyncio.timeout(WAIT_TIMEOUT):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "content-length: " in head:
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split()[1]), (await reader.readexactly(length)).decode()
        return int(head.split()[1]), (await reader.readuntil(b"0\r\n\r\n")).decode()


@pytest.mark.parametrize("door", REQUESTS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_a_request_that_offers_http_2_is_served_at_every_door(node: Node, door: str, chunked: bool) -> None:
    path, body, headers, proof = REQUESTS[door]
    request = render(path, body, {**headers, **H2C}, chunked=chunked)
    in_one = render(path, body, headers, chunked=chunked)
    async with node.raw(in_one) as (reader, _):
        plain_status, plain = await read_reply(reader)
    async with node.raw(request) as (reader, _):
        status, reply = await read_reply(reader)
    assert proof in plain, plain
    assert proof in reply, reply
    assert status in (plain_status, 200)  # an id that was sent before is answered with 200


@pytest.mark.parametrize("door", ["fabric", "mcp, stateless", "a2a, JSON-RPC", "directory", "discovery"])
async def test_its_body_may_come_in_several_packets(node: Node, door: str) -> None:
    path, body, headers, proof = REQUESTS[door]
    request = render(path, body, {**headers, **H2C})
    end = request.index(b"\r\n\r\n")
    for cuts in ((10,), (end + 1,), (end + 4,), (end + 9, end + 30), (len(request) - 1,), (40, end + 2, end + 12)):
        async with node.raw(b"") as (reader, writer):
            for start, stop in zip((0, *cuts), (*cuts, len(request)), strict=True):
                writer.write(request[start:stop])
                await writer.drain()
                await asyncio.sleep(0.01)  # so that the node reads each packet alone
            _, reply = await read_reply(reader)
            assert proof in reply, (cuts, reply)


async def test_a_connection_serves_many_such_requests_and_others_among_them(node: Node) -> None:
    async with node.raw(b"") as (reader, writer):
        for number in range(6):
            arguments = {**_call["arguments"], "task": f"number {number}"}  # type: ignore[dict-item]
            headers = H2C if number % 3 else {}
            writer.write(render("/mcp/call", {**_call, "arguments": arguments}, headers))
            assert f"number {number}" in (await read_reply(reader))[1]


async def test_pipelined_requests_with_offers_are_answered_in_order(node: Node) -> None:
    requests = [
        render("/v1/agents/percy", None, H2C, verb="GET"),
        render("/mcp/call", _call, H2C),
        render("/a2a/task", _task, {}),
        render("/mcp/call", {**_call, "name": "fabric.health", "arguments": {}}, H2C),
    ]
    async with node.raw(b"".join(requests)) as (reader, _):
        replies = [await read_reply(reader) for _ in requests]
    assert [status for status, _ in replies] == [200] * 4
    for (_, reply), proof in zip(replies, ('"endpoint"', WORDS, '"completed"', "uptime_seconds"), strict=True):
        assert proof in reply


async def test_a_large_body_arrives_whole_after_an_offer(node: Node) -> None:
    task = "w" * 300_000
    body = {**_call, "arguments": {**_call["arguments"], "task": task}}  # type: ignore[dict-item]
    async with node.raw(render("/mcp/call", body, H2C)) as (reader, _):
        status, reply = await read_reply(reader)
    assert status == 200
    assert json.loads(reply)["result"]["answer"] == task


@pytest.mark.parametrize(
    "offer",
    [
        {"Connection": "Upgrade", "Upgrade": "websocket"},
        {"Connection": "keep-alive, upgrade", "Upgrade": "TLS/1.0, h2c"},
        {"Connection": "upgrade", "Upgrade": "something-else/2"},
    ],
)
async def test_no_other_offer_takes_the_body_of_a_post(node: Node, offer: dict[str, str]) -> None:
    async with node.raw(render("/mcp/call", _call, offer)) as (reader, _):
        status, reply = await read_reply(reader)
    assert status == 200
    assert WORDS in reply


async def test_an_offer_that_also_ends_the_connection_ends_it_after_the_reply(node: Node) -> None:
    offer = {**H2C, "Connection": "close, Upgrade, HTTP2-Settings"}
    async with node.raw(render("/mcp/call", _call, offer)) as (reader, _):
        async with asyncio.timeout(WAIT_TIMEOUT):
            reply = await reader.read()
    assert WORDS.encode() in reply


async def test_the_limits_of_a_body_hold_after_an_offer(node: Node) -> None:
    head = render("/mcp/call", None, H2C).replace(b"Content-Length: 0", b"Content-Length: 99999999")
    async with node.raw(head) as (reader, _):
        assert (await read_reply(reader))[0] == 413


async def test_a_tunnel_is_refused(node: Node) -> None:
    async with node.raw(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\nhello") as (reader, _):
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_websockets_are_still_opened(node: Node) -> None:
    url = node.url.replace("http", "ws") + "/mcp/call"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {PSK}"}) as socket:
        await socket.send(json.dumps({"id": 1, **_call}))
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert WORDS in str(await socket.recv())


async def run_program(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(2 * WAIT_TIMEOUT):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing: apt-get install curl")
@pytest.mark.parametrize("door", ["fabric", "mcp, stateless", "a2a, JSON-RPC", "rest", "directory"])
async def test_curl_with_http_2_is_served(node: Node, door: str) -> None:
    path, body, headers, proof = REQUESTS[door]
    fields = {"Authorization": f"Bearer {PSK}", "Content-Type": "application/json", **headers}
    options = [part for name, value in fields.items() for part in ("-H", f"{name}: {value}")]
    out = await run_program("curl", "-sS", "--http2", *options, "-d", json.dumps(body), node.url + path)
    assert proof in out


JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

class Ask {
    public static void main(String[] given) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int round = 0; round < 3; round++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(given[0]))
                .header("Authorization", "Bearer " + given[1])
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(given[2]))
                .build();
            HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.version() + " " + response.body());
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="java is missing: apt-get install default-jdk-headless")
async def test_the_http_client_of_java_is_served_as_it_comes(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "Ask.java"
    source.write_text(JAVA)
    for door in ("fabric", "directory"):
        path, body, _, proof = REQUESTS[door]
        try:
            out = await run_program("java", str(source), node.url + path, PSK, json.dumps(body))
        except AssertionError as error:
            if "jdk.compiler" in str(error):
                pytest.skip("java without a compiler: apt-get install default-jdk-headless")
            raise
        replies = out.splitlines()
        assert len(replies) == 3
        assert all(reply.startswith("200 HTTP_1_1 ") and proof in reply for reply in replies)
