"""What a connection must do to be kept, and what it gets when the node is full."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy

QUICK = {"limits": {"request_seconds": 0.5}}
DOORS = [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "directory", "rest", "discovery")]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running(Percy().agent, config={"doors": DOORS}) as found:
        yield found


async def everything(node: Node, data: bytes) -> bytes:
    """What the node says until it closes the connection."""
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(data) as (reader, _):
        return await reader.read()


def head(path: str, *lines: str, verb: str = "POST") -> bytes:
    return "\r\n".join([f"{verb} {path} HTTP/1.1", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("ahead", "status"),
    [
        (b"", b""),
        (b"GET /health HTT", b""),
        (head("/mcp/call", "Host: x", f"Authorization: Bearer {PSK}", "Content-Length: 100"), b"408"),
        (head("/mcp/call", "Host: x", f"Authorization: Bearer {PSK}", "Content-Length: 100") + b"{", b"408"),
        (head("/v1/messages", "Host: x", f"Authorization: Bearer {PSK}", "Content-Length: 100") + b"{", b"408"),
        (head("/health", "Host: x", verb="GET") + b"GET /hea", b"200"),
    ],
    ids=["silence", "half a head", "no body", "half a body", "half a body elsewhere", "half a second head"],
)
async def test_a_connection_that_sends_no_whole_request_is_closed_soon(ahead: bytes, status: bytes) -> None:
    async with running(Percy().agent, config={"doors": DOORS, **QUICK}) as node:
        began_at = time.monotonic()
        said = await everything(node, ahead)
        assert said[9:12] == status
        assert time.monotonic() - began_at < 10  # keep-alive is 75 s, and bodies have 30 s in all


async def test_a_connection_that_had_an_answer_is_kept_for_longer() -> None:
    async with running(Percy().agent, config=QUICK) as node:
        page = head("/health", "Host: x", verb="GET")
        async with asyncio.timeout(WAIT_TIMEOUT), node.raw(page) as (reader, writer):
            await reader.readuntil(b"}}")
            async with node.raw(b"") as (other, _):
                await other.read()  # until the node has closed one that said nothing
            writer.write(page)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_health_and_readiness_are_answered_when_the_node_is_full() -> None:
    async with running(Percy().agent, config={"limits": {"connections": 3}}) as node, AsyncExitStack() as stack:
        asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for _ in range(3):  # those that have had an answer are kept alive, and make no room
            reader, _ = await stack.enter_async_context(node.raw(asked))
            await asyncio.wait_for(reader.readuntil(b"}"), WAIT_TIMEOUT)
        for _ in range(200):  # more than the limit and its reserve
            await stack.enter_async_context(node.raw(b""))
        for path, status in (("/health", 200), ("/readyz", 200), ("/mcp/list_agents", 503), ("/", 503)):
            reply = await node.send("GET", path, token=None)
            assert (path, reply.status) == (path, status)
        assert (await node.send("POST", "/mcp/call", json={"name": "fabric.health"})).status == 503


async def test_silent_connections_make_room_for_a_caller_who_has_something_to_say() -> None:
    """Half heads on all of the node's connections: a new caller is served at once, not after ten seconds."""
    half = b"POST /mcp/call HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"
    async with running(Percy().agent, config={"limits": {"connections": 8}}) as node, AsyncExitStack() as stack:
        for _ in range(30):
            await stack.enter_async_context(node.raw(half))
        for _ in range(5):
            assert (await node.ask("percy", "reason", "hello"))["ok"]


async def test_silent_connections_do_not_count_against_a_caller_who_is_already_connected() -> None:
    """Silent connections arrive in bursts, each beside a request on a connection that is already open."""
    half = b"POST /mcp/call HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"
    async with running(Percy().agent, config={"limits": {"connections": 8}}) as node, AsyncExitStack() as stack:
        assert (await node.ask("percy", "reason", "hello"))["ok"]
        for _ in range(40):
            burst = [stack.enter_async_context(node.raw(half)) for _ in range(10)]
            replies, *_ = await asyncio.gather(node.ask("percy", "reason", "hello"), *burst)
            assert replies["ok"]


async def test_health_and_readiness_are_answered_when_all_calls_are_taken() -> None:
    percy = Percy()
    config = {"limits": {"concurrent_calls": 4}}
    async with running(percy.agent, config=config) as node:
        calls = [asyncio.ensure_future(node.ask("percy", "wait")) for _ in range(12)]
        async with asyncio.timeout(WAIT_TIMEOUT):
            await percy.started.wait()
        for path in ("/health", "/readyz"):
            assert (await node.send("GET", path, token=None)).status == 200
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_readiness_says_what_it_means(node: Node) -> None:
    reply = await node.send("GET", "/readyz", token=None)
    assert (reply.status, reply.json) == (200, {"status": "ready", "checks": {"doors": "open", "store": "ok"}})
    node.fabric.app.stop()
    reply = await node.send("GET", "/readyz", token=None)
    assert (reply.status, reply.json["checks"]["doors"]) == (503, "closing")


@pytest.mark.parametrize("path", ["/health", "/mcp/call", "/mcp", "/", "/v1/agents", "/agents/percy"])
@pytest.mark.parametrize("hosts", [[], ["Host: x", "Host: x"], ["Host: x", "Host: y"]])
async def test_a_request_without_a_host_or_with_two_is_refused(node: Node, path: str, hosts: list[str]) -> None:
    for verb in ("GET", "POST"):
        key = f"Authorization: Bearer {PSK}"
        said = await everything(node, head(path, *hosts, key, "Content-Length: 2", verb=verb) + b"{}")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error_code"] == "BAD_INPUT"


async def test_a_bad_request_behind_a_good_one_does_not_cost_the_good_one_its_answer(node: Node) -> None:
    body = b'{"name":"fabric.health","arguments":{}}'
    good = head("/mcp/call", "Host: x", f"Authorization: Bearer {PSK}", f"Content-Length: {len(body)}") + body
    said = await everything(node, good + head("/health", verb="GET"))
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in said


async def test_a_socket_needs_exactly_one_host_too(node: Node) -> None:
    upgrade = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Authorization: Bearer {PSK}"]  # fmt: skip
    for path in ("/mcp/call", "/mcp/ws"):
        assert (await everything(node, head(path, *upgrade, verb="GET"))).startswith(b"HTTP/1.1 400 ")


async def test_white_space_around_a_header_is_none_of_its_value(node: Node) -> None:
    body = b'{"name":"fabric.health","arguments":{}}'
    lines = [
        "Host:\t x \t",
        f"Authorization:   Bearer {PSK} \t ",
        "X-Fabric-Error-Format:object  ",
        "Connection: close ",
    ]
    said = await everything(node, head("/mcp/call", *lines, f"Content-Length: {len(body)}") + body)
    assert said.startswith(b"HTTP/1.1 200 ")
    said = await everything(node, head("/mcp/list_agents", *lines, verb="GET"))
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "path", ["/mcp/call", "/mcp", "/agents/percy", "/a2a", "/v1/messages", "/search", "/mcp/register_agent"]
)
async def test_a_body_over_the_limit_is_refused_at_once_and_the_answer_can_be_read(path: str) -> None:
    limit = 64 * 1024
    doors = [{**door, **({"body_bytes": limit} if door["kind"] in ("a2a", "rest") else {})} for door in DOORS]
    async with running(Percy().agent, config={"doors": doors, "limits": {"body_bytes": limit}}) as node:
        lines = ["Host: x", f"Authorization: Bearer {PSK}", "Content-Type: application/json", "A2A-Version: 1.0"]
        began_at = time.monotonic()
        said = await everything(node, head(path, *lines, "Content-Length: 99999999") + b"x")
        assert said.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in said.lower()
        assert time.monotonic() - began_at < 4  # it used to take five seconds


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


REQUESTS = [("GET", "/"), ("GET", "/nothing"), ("GET", "/v1/agents"), ("POST", "/mcp/call"), ("POST", "/agents/percy"),
            ("POST", "/mcp"), ("POST", "/a2a")]  # fmt: skip


@pytest.mark.parametrize(("verb", "path"), REQUESTS)
@pytest.mark.parametrize("key", [PSK, "wrong"])
async def test_a_connection_leaves_no_circle_behind(
    node: Node, without_collector: None, verb: str, path: str, key: str
) -> None:
    """The transports of asyncio do, by themselves: seven objects for each end of a connection. Uvloop's do not."""
    asked = head(path, "Host: x", f"Authorization: Bearer {key}", "Content-Length: 2", "Connection: close", verb=verb)
    for _ in range(3):
        await everything(node, asked + b"{}")
    gc.collect()
    for _ in range(30):
        await everything(node, asked + b"{}")
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(asked * 20) as (reader, _):
        await reader.read(100)  # and leaves, while others wait for their turn
    await everything(node, asked + b"{}")
    assert gc.collect() < 32 * 14 + 50


async def test_requests_in_any_number_of_pieces_are_answered_in_order(node: Node) -> None:
    """Slices in which bytes are parsed may end anywhere."""
    body = json.dumps({"name": "fabric.health", "arguments": {"x": "y" * 3000}}).encode()
    call = head("/mcp/call", "Host: x", f"Authorization: Bearer {PSK}", f"Content-Length: {len(body)}") + body
    page = head("/nothing-here", "Host: x", verb="GET")
    data = (call + page * 3) * 12
    for size in (len(data), 4096, 5000, 333):
        answers: list[str] = []
        async with asyncio.timeout(WAIT_TIMEOUT), node.raw(b"") as (reader, writer):
            reading = asyncio.ensure_future(read_all(reader, 48, answers))
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await asyncio.sleep(0)
            await reading
        assert [each[:3] for each in answers] == ["200" if n % 4 == 0 else "404" for n in range(48)] or [
            each[:3] for each in answers
        ] == ["400" if n % 4 == 0 else "404" for n in range(48)]


async def read_all(reader: asyncio.StreamReader, count: int, answers: list[str]) -> None:
    for _ in range(count):
        said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(said.partition("content-length: ")[2].partition("\r\n")[0]))
        answers.append(said.split(" ", 1)[1])


async def test_a_client_that_reads_nothing_is_cut_off_and_its_call_is_over() -> None:
    agent = Agent("talker")

    @agent.capability
    async def talk(task: str) -> dict[str, Any]:
        return {"text": "x" * 12_000_000}

    async with running(agent, config={"limits": {"unread_seconds": 0.5}}) as node:
        body = b'{"name":"fabric.call","arguments":{"agent_id":"talker","capability":"talk","task":"x"}}'
        for path in ("/mcp/call", "/mcp/call?"):  # the lean way and the long one
            call = head(path, "Host: x", f"Authorization: Bearer {PSK}", f"Content-Length: {len(body)}") + body
            async with asyncio.timeout(WAIT_TIMEOUT), node.raw(call) as (reader, writer):
                transport: Any = writer.transport
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                transport.pause_reading()
                while node.connections:  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(0.02)


async def test_a_client_that_pauses_for_longer_than_a_head_may_take_gets_all_of_its_reply() -> None:
    agent = Agent("talker")

    @agent.capability
    async def talk(task: str) -> dict[str, Any]:
        return {"text": "x" * 12_000_000}

    async with running(agent, config={"limits": {"request_seconds": 0.3, "unread_seconds": 30}}) as node:
        body = b'{"name":"fabric.call","arguments":{"agent_id":"talker","capability":"talk","task":"x"}}'
        for path in ("/mcp/call", "/mcp/call?"):
            call = head(path, "Host: x", f"Authorization: Bearer {PSK}", f"Content-Length: {len(body)}") + body
            async with asyncio.timeout(WAIT_TIMEOUT), node.raw(call) as (reader, writer):
                transport: Any = writer.transport
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                transport.pause_reading()
                for _ in range(2):  # the node closes connections that send no head in time
                    async with node.raw(b"") as (silent, _):
                        assert await silent.read() == b""
                transport.resume_reading()
                length = re.search(rb"content-length: ([0-9]+)", await reader.readuntil(b"\r\n\r\n"))
                assert length is not None
                assert len(await reader.readexactly(int(length[1]))) > 12_000_000
