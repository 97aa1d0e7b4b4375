"""What OutboundClient promises beyond the port."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from math import inf
from types import FrameType

import pytest

from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import ConnectFailed, HTTPReply, Interrupted, ReplyTooLarge
from tests.contracts.http_peer import WAIT_TIMEOUT, Peer, serving

LIMIT = 1_000_000
TIMEOUT = 30.0


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving() as peer:
        yield peer


async def test_idle_connections_are_closed_before_servers_do_so(peer: Peer) -> None:
    client = OutboundClient(idle_timeout=0.05)
    await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)
    async with asyncio.timeout(WAIT_TIMEOUT):
        await peer.closed.wait()
    await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)
    assert peer.connections == 2
    await client.aclose()


@pytest.mark.parametrize("as_stream", [False, True])
async def test_nothing_is_kept_of_a_reply_that_was_too_large(peer: Peer, as_stream: bool) -> None:
    """Not even until the garbage collector comes by: a node lets it come rarely."""
    client = OutboundClient()

    async def flooded() -> None:
        if not as_stream:
            await client.request("GET", peer.url("/flood"), timeout=TIMEOUT, limit=LIMIT)
        async with client.stream("GET", peer.url("/flood"), timeout=TIMEOUT, limit=LIMIT) as reply:
            await reply.read()

    async def kept_after(times: int) -> int:
        for _ in range(times):
            with pytest.raises(ReplyTooLarge):
                await flooded()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await peer.left.wait()
        return tracemalloc.get_traced_memory()[0]

    gc.disable()
    tracemalloc.start()
    try:
        before = await kept_after(1)
        assert await kept_after(5) - before < LIMIT
    finally:
        tracemalloc.stop()
        gc.enable()
        await client.aclose()


async def test_closing_ends_what_is_under_way_and_what_waits(peer: Peer) -> None:
    client = OutboundClient(max_connections=1)
    slow = asyncio.create_task(client.request("GET", peer.url("/slow-head"), timeout=60, limit=LIMIT))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await peer.arrived.wait()
    waiting = asyncio.create_task(client.request("GET", peer.url("/echo"), timeout=60, limit=LIMIT))
    await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(Interrupted):
        await slow
    with pytest.raises(ConnectFailed):
        await waiting
    async with asyncio.timeout(WAIT_TIMEOUT):
        await peer.left.wait()
    await client.aclose()  # does nothing


async def test_a_client_for_calls_opens_more_connections_instead_of_queueing(peer: Peer) -> None:
    """One caller's slow calls would keep the calls of all others waiting. What is idle is closed first, as before."""
    client = OutboundClient(max_connections=2, when_full="open")
    slow = [
        asyncio.create_task(client.request("GET", peer.url("/slow-head"), timeout=60, limit=LIMIT)) for _ in range(5)
    ]
    async with asyncio.timeout(WAIT_TIMEOUT):
        while client.count_connections()[0] < 5:  # noqa: ASYNC110  # connections have no event
            await asyncio.sleep(0.01)
        assert (await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)).status == 200
        assert client.count_connections() == (5, 1, 0)
        for each in slow:
            each.cancel()
        await asyncio.wait(slow)
        while client.count_connections()[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await client.aclose()


async def test_streams_without_a_deadline_take_no_connection_from_requests_and_end_with_the_client(peer: Peer) -> None:
    client = OutboundClient(max_connections=1)
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        client.stream("GET", peer.url("/slow-body"), timeout=inf, limit=LIMIT) as first,
        client.stream("GET", peer.url("/slow-body"), timeout=inf, limit=LIMIT) as second,
    ):
        assert await first.next_chunk() == await second.next_chunk() == b"first"
        assert (await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)).status == 200
        await client.aclose()
        for stream in (first, second):
            with pytest.raises(Interrupted):
                await stream.next_chunk()


def test_another_event_loop_is_told_to_use_another_client() -> None:
    client = OutboundClient()

    async def story() -> None:
        async with serving() as peer:
            await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)

    async def closing() -> None:
        await client.aclose()

    asyncio.run(story())
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(story())
    asyncio.run(closing())  # its own loop is gone, and everything with it


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "connection"])
async def test_headers_that_frame_a_request_are_the_clients_own(peer: Peer, name: str) -> None:
    client = OutboundClient()
    with pytest.raises(ConnectFailed):
        await client.request("GET", peer.url("/echo"), headers={name: "1"}, timeout=TIMEOUT, limit=LIMIT)
    await client.aclose()


async def test_callers_may_say_who_they_are(peer: Peer) -> None:
    client = OutboundClient()
    for headers in ({}, {"User-Agent": "me"}, {"x-100%": "100%"}):
        await client.request("GET", peer.url("/echo"), headers=headers, timeout=TIMEOUT, limit=LIMIT)
    agents = [seen.headers["user-agent"] for seen in peer.requests]
    assert agents[0].startswith("a2a-fabric/")
    assert agents[1] == "me"
    assert peer.requests[2].headers["x-100%"] == "100%"
    await client.aclose()


async def test_a_method_that_usually_has_a_body_tells_its_length_without_one(peer: Peer) -> None:
    client = OutboundClient()
    for method in ("POST", "GET"):
        await client.request(method, peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)
    assert [seen.headers.get("content-length") for seen in peer.requests] == ["0", None]
    await client.aclose()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"


class ScriptedServer:
    """Answers the requests of each connection with these bytes, one after the other, in the given pieces."""

    def __init__(self, *replies: tuple[bytes, ...]) -> None:
        self._replies = iter(replies)
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        async with asyncio.timeout(WAIT_TIMEOUT):  # the client is closed, and its connections with it
            await asyncio.gather(*self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.ensure_future(self._answer(reader, writer)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                first, *rest = next(self._replies)
                writer.write(first)
                for piece in rest:
                    await asyncio.sleep(0.01)  # so that the pieces arrive one by one
                    writer.write(piece)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def get(client: OutboundClient, server: ScriptedServer, limit: int = LIMIT, method: str = "GET") -> HTTPReply:
    return await client.request(method, server.url, timeout=TIMEOUT, limit=limit)


async def test_replies_with_the_same_head_are_read_alike_however_they_arrive() -> None:
    whole = HEAD % 5 + b"hello"
    async with ScriptedServer(
        (whole,),
        (HEAD % 5 + b"again",),
        (HEAD % 5, b"parts"),
        (HEAD % 5 + b"ha", b"lf."),
        (HEAD % 2 + b"ok",),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD % 5 + b"after",),
        (whole,),
    ) as server:
        client = OutboundClient()
        bodies = [(await get(client, server)).body for _ in range(7)]
        assert bodies == [b"hello", b"again", b"parts", b"half.", b"ok", b"after", b"hello"]
        assert server.connections == 1
        await client.aclose()


async def test_streamed_replies_with_the_same_head_are_read_alike_and_share_a_connection() -> None:
    whole = HEAD % 5 + b"hello"
    pieces = ((whole,), (whole,), (HEAD % 5, b"parts"), (HEAD % 0,), (HEAD % 0,), (whole,))
    async with ScriptedServer(*pieces, (whole,)) as server:
        client = OutboundClient()
        bodies: list[bytes] = []
        for _ in pieces:
            async with client.stream("GET", server.url, timeout=TIMEOUT, limit=LIMIT) as reply:
                bodies.append(await reply.read())
                assert (reply.status, reply.headers["content-type"]) == (200, "text/plain")
        assert bodies == [b"hello", b"hello", b"parts", b"", b"", b"hello"]
        assert (await get(client, server)).body == b"hello"
        assert server.connections == 1
        await client.aclose()


async def test_a_streamed_reply_with_a_known_head_is_not_parsed() -> None:
    async with ScriptedServer(*[(HEAD % 5 + b"hello",)] * 3) as server:
        client = OutboundClient()
        counts: list[int] = []

        def count(frame: FrameType, event: str, argument: object) -> None:
            counts[-1] += event == "call" and frame.f_code.co_name == "on_header"

        for _ in range(3):
            counts.append(0)
            sys.setprofile(count)
            try:
                async with client.stream("GET", server.url, timeout=TIMEOUT, limit=LIMIT) as reply:
                    assert await reply.read() == b"hello"
            finally:
                sys.setprofile(None)
        assert counts == [2, 0, 0]
        await client.aclose()


async def test_bytes_after_a_reply_with_a_known_head_are_never_taken_for_the_next_reply() -> None:
    whole = HEAD % 5 + b"hello"
    async with ScriptedServer((whole,), (whole + b"HTTP/1.1 200 OK",), (HEAD % 5 + b"fresh",)) as server:
        client = OutboundClient()
        assert [(await get(client, server)).body for _ in range(2)] == [b"hello"] * 2
        assert (await get(client, server)).body == b"fresh"
        assert server.connections == 2
        await client.aclose()


async def test_the_limit_holds_for_replies_with_a_known_head() -> None:
    whole = HEAD % 5 + b"hello"
    async with ScriptedServer((whole,), (whole,)) as server:
        client = OutboundClient()
        await get(client, server)
        with pytest.raises(ReplyTooLarge):
            await get(client, server, limit=4)
        await client.aclose()


async def test_the_reply_to_head_has_no_body_even_if_its_head_is_known() -> None:
    async with ScriptedServer((HEAD % 5 + b"hello",), (HEAD % 5,), (HEAD % 5 + b"hello",)) as server:
        client = OutboundClient()
        await get(client, server)
        assert (await get(client, server, method="HEAD")).body == b""
        assert (await get(client, server)).body == b"hello"
        await client.aclose()


async def test_a_head_that_closes_the_connection_closes_it_each_time() -> None:
    closing = HEAD.replace(b"Content-Type", b"Connection: close\r\nContent-Type") % 5 + b"hello"
    async with ScriptedServer(*[(closing,)] * 3) as server:
        client = OutboundClient()
        for _ in range(3):
            assert (await get(client, server)).body == b"hello"
        assert server.connections == 3
        await client.aclose()
