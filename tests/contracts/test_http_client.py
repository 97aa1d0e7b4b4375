"""What every HTTPClient must do, against a server that misbehaves in every way we know."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import uvloop

from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import (
    AddressRefused,
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    Interrupted,
    OutboundError,
    ReplyTooLarge,
)
from tests.contracts.http_peer import MUCH, WAIT_TIMEOUT, Authority, Peer, answering_threads, serving, silent

MakeClient = Callable[..., HTTPClient]
IMPLEMENTATIONS: dict[str, MakeClient] = {"outbound": OutboundClient}
LIMIT = 1_000_000
TIMEOUT = 30.0
SHORT = 0.2


@pytest.fixture(params=IMPLEMENTATIONS)
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakeClient]:
    """Builds clients of one implementation and closes them after the test."""
    made: list[HTTPClient] = []

    def make(*args: Any, **kwargs: Any) -> HTTPClient:
        made.append(IMPLEMENTATIONS[request.param](*args, **kwargs))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture
def client(make: MakeClient) -> HTTPClient:
    return make()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving() as peer:
        yield peer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def happens(event: asyncio.Event, within: float = WAIT_TIMEOUT) -> None:
    async with asyncio.timeout(within):
        await event.wait()


# Plain exchanges


async def test_a_request_carries_method_headers_and_body_and_brings_the_whole_reply(
    client: HTTPClient, peer: Peer
) -> None:
    reply = await client.request(
        "POST", peer.url("/echo"), headers={"X-Trace": "t1"}, body=b'{"a":1}', timeout=TIMEOUT, limit=LIMIT
    )
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b'{"a":1}', "application/json")
    assert type(reply.body) is bytes
    seen = peer.requests[0]
    assert (seen.method, seen.headers["x-trace"], seen.body) == ("POST", "t1", b'{"a":1}')


async def test_a_request_without_a_body_gets_an_empty_reply(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)
    assert (reply.status, reply.body) == (200, b"")


async def test_an_error_status_is_a_reply_like_any_other(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/error"), timeout=TIMEOUT, limit=LIMIT)
    assert (reply.status, reply.body) == (500, b"broken")


async def test_redirects_are_handed_out_and_never_followed(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("POST", peer.url("/redirect"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
    assert (reply.status, reply.headers["location"]) == (307, peer.url("/echo"))
    assert [seen.path for seen in peer.requests] == ["/redirect"]


async def test_repeated_headers_are_joined_and_unreadable_ones_do_no_harm(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/odd-headers"), timeout=TIMEOUT, limit=LIMIT)
    assert (reply.headers["x-twice"], reply.headers["x-plain"]) == ("one, two", "yes")


async def test_a_chunked_reply_is_put_together(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/chunked"), timeout=TIMEOUT, limit=6)
    assert reply.body == b"abcdef"


async def test_a_reply_in_crumbs_is_put_together(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/crumbs"), timeout=TIMEOUT, limit=LIMIT)
    assert reply.body == b"x" * 100_000


async def test_interim_replies_are_passed_over(client: HTTPClient, peer: Peer) -> None:
    for _ in range(2):
        reply = await client.request("GET", peer.url("/interim"), timeout=TIMEOUT, limit=LIMIT)
        assert (reply.status, reply.body, "link" in reply.headers) == (200, b"at last", False)
    assert peer.connections == 1


async def test_a_reply_without_a_length_ends_with_its_connection(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/until-close"), timeout=TIMEOUT, limit=LIMIT)
    assert reply.body == b"all of it"
    async with client.stream("GET", peer.url("/until-close"), timeout=TIMEOUT, limit=LIMIT) as streamed:
        assert await streamed.read() == b"all of it"


async def test_a_reply_without_content_leaves_the_connection_usable(client: HTTPClient, peer: Peer) -> None:
    for path, body in (("/no-content", b""), ("/echo", b"x")):
        reply = await client.request("POST", peer.url(path), body=b"x", timeout=TIMEOUT, limit=LIMIT)
        assert reply.body == body
    assert peer.connections == 1


async def test_a_head_request_leaves_the_connection_usable(client: HTTPClient, peer: Peer) -> None:
    await client.request("HEAD", peer.url("/declared"), timeout=TIMEOUT, limit=LIMIT)
    assert (await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)).body == b"x"
    assert peer.connections == 1


@pytest.mark.parametrize("path", ["/says-it-closes", "/two-replies"])
async def test_a_connection_that_is_not_clean_is_not_used_again(client: HTTPClient, peer: Peer, path: str) -> None:
    reply = await client.request("GET", peer.url(path), timeout=TIMEOUT, limit=LIMIT)
    assert reply.body in (b"bye", b"one")
    await happens(peer.left)
    assert (await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)).body == b"x"
    assert peer.connections == 2


async def test_connections_are_kept_alive_and_shared(client: HTTPClient, peer: Peer) -> None:
    for _ in range(20):
        await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
    assert (len(peer.requests), peer.connections) == (20, 1)


async def test_a_stream_read_to_its_end_gives_its_connection_back(client: HTTPClient, peer: Peer) -> None:
    for _ in range(5):
        async with client.stream("POST", peer.url("/echo"), body=b"xyz", timeout=TIMEOUT, limit=LIMIT) as reply:
            assert await reply.read() == b"xyz"
    assert peer.connections == 1


async def test_a_stream_that_ends_soon_after_its_reader_is_content_gives_its_connection_back(
    client: HTTPClient, peer: Peer
) -> None:
    for _ in range(10):
        async with client.stream("GET", peer.url("/last-words"), timeout=TIMEOUT, limit=LIMIT) as reply:
            assert await anext(reply.chunks()) == b"all you need"
        peer.go.release()
    assert peer.connections <= 3  # an end may still be on its way when the next request sets out


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(client: HTTPClient, peer: Peer) -> None:
    for _ in range(10):
        peer.closed.clear()
        reply = await client.request("POST", peer.url("/closes-after-reply"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
        assert reply.body == b"bye"
        await happens(peer.closed)
        await _closed_at_our_end(peer.port)


async def test_a_connection_that_is_just_being_closed_is_not_used_again(client: HTTPClient, peer: Peer) -> None:
    for _ in range(10):
        reply = await client.request("POST", peer.url("/closes-after-reply"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
        assert reply.body == b"bye"
    assert peer.connections == 10


async def _closed_at_our_end(port: int) -> None:
    """Wait until the client, too, has closed: its sockets to `port` are gone from the kernel's table."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while _has_open_socket_to(port):  # noqa: ASYNC110  the kernel has no event for it
            await asyncio.sleep(0.001)


def _has_open_socket_to(port: int) -> bool:
    waiting_to_be_closed_by_us = "08"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == waiting_to_be_closed_by_us for row in rows)


async def test_many_requests_at_once_keep_their_replies_apart(client: HTTPClient, peer: Peer) -> None:
    async def ask(number: int) -> bytes:
        body = str(number).encode()
        return (await client.request("POST", peer.url("/echo"), body=body, timeout=TIMEOUT, limit=LIMIT)).body

    assert await asyncio.gather(*map(ask, range(300))) == [str(number).encode() for number in range(300)]


async def test_no_more_connections_are_opened_than_allowed(make: MakeClient, peer: Peer) -> None:
    client = make(max_connections=3)
    url = peer.url("/echo")
    await asyncio.gather(*[client.request("GET", url, timeout=TIMEOUT, limit=LIMIT) for _ in range(50)])
    assert peer.connections <= 3


async def test_waiting_for_a_free_connection_counts_towards_the_deadline(make: MakeClient, peer: Peer) -> None:
    client = make(max_connections=1)
    async with client.stream("GET", peer.url("/slow-body"), timeout=TIMEOUT, limit=LIMIT):
        with pytest.raises(DeadlineExceeded):
            await client.request("GET", peer.url("/echo"), timeout=SHORT, limit=LIMIT)


async def test_a_request_that_stops_waiting_for_a_connection_leaves_it_to_the_next(
    make: MakeClient, peer: Peer
) -> None:
    client = make(max_connections=1)
    for steps in range(12):  # cancelled a little later each time, so that it meets the very step of the turn, too
        async with client.stream("GET", peer.url("/slow-body"), timeout=60, limit=LIMIT):
            waiting = [
                asyncio.create_task(client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT))
                for _ in range(3)
            ]
            await asyncio.sleep(0)  # they are in the queue now
            waiting[0].cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting[1].cancel()
        outcomes = [type(each).__name__ for each in await asyncio.gather(*waiting, return_exceptions=True)]
        assert outcomes[0] == "CancelledError"
        assert outcomes[1] in ("CancelledError", "HTTPReply")
        assert outcomes[2] == "HTTPReply"


async def test_idle_connections_elsewhere_do_not_keep_a_request_waiting(make: MakeClient, peer: Peer) -> None:
    client = make(max_connections=2)
    async with serving() as other:
        for _ in range(3):
            for each in (peer, other):
                calls = [client.request("GET", each.url("/echo"), timeout=TIMEOUT, limit=LIMIT) for _ in range(2)]
                assert [reply.status for reply in await asyncio.gather(*calls)] == [200, 200]


async def test_proxies_of_the_environment_are_not_used(
    make: MakeClient, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    client = make()
    assert (await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)).status == 200


async def test_what_cannot_be_sent_is_refused_before_anything_is_sent(client: HTTPClient, peer: Peer) -> None:
    for method, url, headers in [
        ("GET", "nonsense", {}),
        ("GET", "ftp://127.0.0.1/x", {}),
        ("GE T", peer.url("/echo"), {}),
        ("GET", peer.url("/echo"), {"x": "a\r\nb: c"}),
        ("GET", peer.url("/echo"), {"x": "a\nb: c"}),
        ("GET", peer.url("/echo"), {"x": "a\0"}),
        ("GET", peer.url("/echo"), {"x: y\r\nz": "a"}),
        ("GET", peer.url("/echo"), {"x": "\N{SNOWMAN}"}),
        ("GET", peer.url("/echo").replace("://", "://user:secret@"), {}),
    ]:
        with pytest.raises(ConnectFailed):
            await client.request(method, url, headers=headers, timeout=TIMEOUT, limit=LIMIT)
    assert peer.requests == []


async def test_a_closed_client_says_so_in_our_errors(client: HTTPClient, peer: Peer) -> None:
    await client.aclose()
    with pytest.raises(OutboundError):
        await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)


# Streams


async def test_chunks_are_handed_out_as_they_arrive(client: HTTPClient, peer: Peer) -> None:
    async with client.stream("GET", peer.url("/events"), timeout=TIMEOUT, limit=LIMIT) as reply:
        assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
        chunks = reply.chunks()
        for number in range(3):
            peer.go.release()  # the next event is not even sent before this one was read
            assert await anext(chunks) == f"data: {number}\n\n".encode()
        assert [chunk async for chunk in chunks] == []


async def test_parts_are_delivered_as_they_arrive_until_they_are_not_taken_and_the_rest_can_be_read(
    client: HTTPClient, peer: Peer
) -> None:
    parts: list[bytes] = []
    setting: ContextVar[str] = ContextVar("setting")
    setting.set("of the reader")

    def take(part: bytes) -> bool:
        parts.append(part)
        assert setting.get() == "of the reader"
        peer.go.release()
        return len(parts) < 2

    async with client.stream("GET", peer.url("/events"), timeout=TIMEOUT, limit=LIMIT) as reply:
        peer.go.release()
        assert await reply.deliver(take)
        assert parts == [b"data: 0\n\n", b"data: 1\n\n"]
        assert await reply.next_chunk() == b"data: 2\n\n"
        assert not await reply.deliver(take)
    assert len(parts) == 2


async def test_what_the_taker_raises_ends_the_delivery(client: HTTPClient, peer: Peer) -> None:
    def take(part: bytes) -> bool:
        raise ValueError(part)

    async with client.stream("GET", peer.url("/events"), timeout=TIMEOUT, limit=LIMIT) as reply:
        peer.go.release()
        with pytest.raises(ValueError, match="data: 0"):
            await reply.deliver(take)
        peer.go.release()
        assert await reply.next_chunk() == b"data: 1\n\n"


async def test_cancelling_a_delivery_closes_its_connection(client: HTTPClient, peer: Peer) -> None:
    taken = asyncio.Event()

    def take(part: bytes) -> bool:
        taken.set()
        return True

    async def read() -> None:
        async with client.stream("GET", peer.url("/slow-body"), timeout=60, limit=LIMIT) as reply:
            await reply.deliver(take)

    task = asyncio.create_task(read())
    await happens(taken)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await happens(peer.left)


async def test_a_server_waits_for_a_slow_reader(client: HTTPClient, peer: Peer) -> None:
    async with client.stream("GET", peer.url("/much"), timeout=60, limit=MUCH) as reply:
        await happens(peer.stalled)
        assert sum([len(chunk) async for chunk in reply.chunks()]) == MUCH
    await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)
    assert peer.connections == 1


async def test_leaving_a_stream_early_closes_its_connection(client: HTTPClient, peer: Peer) -> None:
    async with client.stream("GET", peer.url("/slow-body"), timeout=60, limit=LIMIT) as reply:
        assert await anext(reply.chunks()) == b"first"
    await happens(peer.left)


async def test_cancelling_while_a_stream_is_read_closes_its_connection(client: HTTPClient, peer: Peer) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async with client.stream("GET", peer.url("/slow-body"), timeout=60, limit=LIMIT) as reply:
            async for _ in reply.chunks():
                started.set()

    task = asyncio.create_task(read())
    await happens(started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await happens(peer.left)


async def test_the_deadline_of_a_stream_covers_its_body(client: HTTPClient, peer: Peer) -> None:
    async with client.stream("GET", peer.url("/slow-body"), timeout=1.0, limit=LIMIT) as reply:
        with pytest.raises(DeadlineExceeded):
            await reply.read()
    await happens(peer.left)


async def test_a_stream_without_a_head_in_time_exceeds_its_deadline(client: HTTPClient, peer: Peer) -> None:
    with pytest.raises(DeadlineExceeded):
        async with client.stream("GET", peer.url("/slow-head"), timeout=SHORT, limit=LIMIT):
            pass
    await happens(peer.left)


@pytest.mark.parametrize("path", ["/reset-in-body", "/truncated", "/truncated-chunks"])
async def test_a_stream_that_breaks_off_is_interrupted_after_what_came(
    client: HTTPClient, peer: Peer, path: str
) -> None:
    received = []
    async with client.stream("GET", peer.url(path), timeout=TIMEOUT, limit=LIMIT) as reply:
        chunks = reply.chunks()
        received.append(await anext(chunks))
        peer.go.release()
        with pytest.raises(Interrupted):
            received.append(await anext(chunks))
    assert received in ([b"first"], [b"only this"])


# Cancelling and deadlines


async def test_cancelling_a_request_closes_its_connection(client: HTTPClient, peer: Peer) -> None:
    task = asyncio.create_task(client.request("GET", peer.url("/slow-head"), timeout=60, limit=LIMIT))
    await happens(peer.arrived)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await happens(peer.left, within=1)


async def test_a_cancel_is_heard_even_if_the_reply_came_at_the_same_moment(client: HTTPClient) -> None:
    heard = 0
    with answering_threads() as (port, answered):
        for _ in range(20):
            answered.clear()
            url = f"http://127.0.0.1:{port}/"
            task = asyncio.create_task(client.request("GET", url, timeout=TIMEOUT, limit=LIMIT))
            while not (task.done() or answered.wait(0.002)):  # noqa: ASYNC110  the loop stands still but for single steps
                await asyncio.sleep(0)
            threading.Event().wait(0.002)  # the client's own thread receives the reply meanwhile
            if task.cancel():  # unless it was done already
                with pytest.raises(asyncio.CancelledError):
                    await task
                heard += 1
    assert heard > 0


@pytest.mark.parametrize("path", ["/slow-head", "/slow-body"])
async def test_the_deadline_covers_the_request_as_a_whole(client: HTTPClient, peer: Peer, path: str) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await client.request("GET", peer.url(path), timeout=SHORT, limit=LIMIT)
    assert time.monotonic() - started < WAIT_TIMEOUT
    await happens(peer.left)


async def test_without_time_nothing_is_sent(client: HTTPClient, peer: Peer) -> None:
    for timeout in (0.0, -1.0):
        with pytest.raises(DeadlineExceeded):
            await client.request("GET", peer.url("/echo"), timeout=timeout, limit=LIMIT)
    assert peer.connections == 0


# Broken connections


async def test_a_refused_connection_surely_never_arrived(client: HTTPClient) -> None:
    with pytest.raises(ConnectFailed):
        await client.request("GET", f"http://127.0.0.1:{_closed_port()}/?key=s3cret", timeout=TIMEOUT, limit=LIMIT)


async def test_errors_do_not_repeat_the_query_of_the_url(client: HTTPClient, peer: Peer) -> None:
    for url in (f"http://127.0.0.1:{_closed_port()}/?key=s3cret", peer.url("/reset-before-head")):
        with pytest.raises(OutboundError) as caught:
            await client.request("GET", url, timeout=TIMEOUT, limit=LIMIT)
        assert "s3cret" not in str(caught.value)
        assert str(caught.value)


async def test_an_unknown_host_surely_never_got_the_request(client: HTTPClient) -> None:
    with pytest.raises(ConnectFailed):
        await client.request("GET", "http://nobody.invalid/", timeout=TIMEOUT, limit=LIMIT)


async def test_a_connection_that_is_not_made_in_time_surely_never_got_the_request(make: MakeClient) -> None:
    client = make(connect_timeout=SHORT)
    with silent() as port, pytest.raises(ConnectFailed):
        await client.request("GET", f"https://127.0.0.1:{port}/", timeout=TIMEOUT, limit=LIMIT)


@pytest.mark.parametrize(
    "path", ["/reset-before-head", "/reset-in-body", "/truncated", "/truncated-chunks", "/garbage", "/upgrade"]
)
async def test_a_connection_that_breaks_after_sending_is_interrupted(client: HTTPClient, peer: Peer, path: str) -> None:
    peer.go.release()
    with pytest.raises(Interrupted):
        await client.request("POST", peer.url(path), body=b"x", timeout=TIMEOUT, limit=LIMIT)
    assert len(peer.requests) == 1, "a request that may have run is not sent twice"


async def test_an_early_reply_to_a_large_body_is_heard_and_the_rest_not_sent(client: HTTPClient) -> None:
    left = asyncio.Semaphore(0)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\n\r\ntoo much")
        await writer.drain()
        assert len(await reader.read()) < len(body)
        left.release()
        writer.close()

    body = b"x" * 64_000_000
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for _ in range(2):
            reply = await client.request("POST", url, body=body, timeout=TIMEOUT, limit=LIMIT)
            assert (reply.status, reply.body) == (413, b"too much")
            async with asyncio.timeout(WAIT_TIMEOUT):
                await left.acquire()


async def test_a_large_body_arrives_whole(client: HTTPClient, peer: Peer) -> None:
    body = os.urandom(8_000_000)
    reply = await client.request("POST", peer.url("/echo"), body=body, timeout=TIMEOUT, limit=len(body))
    assert reply.body == body


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# Limits


async def test_a_reply_may_be_as_large_as_the_limit_and_no_larger(client: HTTPClient, peer: Peer) -> None:
    body = os.urandom(300_000)
    reply = await client.request("POST", peer.url("/echo"), body=body, timeout=TIMEOUT, limit=len(body))
    assert reply.body == body
    with pytest.raises(ReplyTooLarge):
        await client.request("POST", peer.url("/echo"), body=body, timeout=TIMEOUT, limit=len(body) - 1)


async def test_an_endless_reply_is_cut_off_at_the_limit(client: HTTPClient, peer: Peer) -> None:
    with pytest.raises(ReplyTooLarge):
        await client.request("GET", peer.url("/flood"), timeout=60, limit=100_000)
    await happens(peer.left)


async def test_an_endless_stream_is_cut_off_at_the_limit(client: HTTPClient, peer: Peer) -> None:
    received: list[bytes] = []

    async def read() -> None:
        async with client.stream("GET", peer.url("/flood"), timeout=60, limit=100_000) as reply:
            async for chunk in reply.chunks():
                received.append(chunk)

    with pytest.raises(ReplyTooLarge):
        await read()
    assert sum(map(len, received)) <= 100_000
    await happens(peer.left)


@pytest.mark.parametrize("path", ["/endless-head", "/endless-trailer"])
async def test_what_surrounds_a_body_has_a_limit_too(client: HTTPClient, peer: Peer, path: str) -> None:
    with pytest.raises(Interrupted):
        await client.request("GET", peer.url(path), timeout=60, limit=LIMIT)
    await happens(peer.left)


async def test_a_length_beyond_the_limit_is_not_read(client: HTTPClient, peer: Peer) -> None:
    with pytest.raises(ReplyTooLarge):
        await client.request("GET", peer.url("/huge"), timeout=60, limit=4000)
    await happens(peer.left)
    with pytest.raises(ReplyTooLarge):
        async with client.stream("GET", peer.url("/huge"), timeout=60, limit=LIMIT) as reply:
            await reply.read()


async def test_a_head_request_has_no_body_whatever_length_it_tells(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("HEAD", peer.url("/declared"), timeout=TIMEOUT, limit=10)
    assert (reply.headers["content-length"], reply.body) == ("99999999999999", b"")
    async with client.stream("HEAD", peer.url("/declared"), timeout=TIMEOUT, limit=10) as streamed:
        assert await streamed.read() == b""


async def test_compressed_replies_are_not_asked_for_and_not_unpacked(client: HTTPClient, peer: Peer) -> None:
    reply = await client.request("GET", peer.url("/gzip"), timeout=TIMEOUT, limit=10_000)
    assert (reply.headers["content-encoding"], reply.body[:2]) == ("gzip", b"\x1f\x8b")
    assert "accept-encoding" not in peer.requests[0].headers


# TLS


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(client: HTTPClient, authority: Authority) -> None:
    async with serving(authority.server("agent.test")) as peer:
        with pytest.raises(ConnectFailed):
            await client.request("GET", peer.url("/echo"), timeout=TIMEOUT, limit=LIMIT)
        assert peer.requests == []


async def test_the_operators_own_authority_is_trusted(make: MakeClient, authority: Authority, tmp_path: Path) -> None:
    client = make(ca=Authority(tmp_path).pem + authority.pem)
    async with serving(authority.server("agent.test")) as peer:
        reply = await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
    assert reply.body == b"x"


async def test_a_client_certificate_opens_a_server_that_demands_one(make: MakeClient, authority: Authority) -> None:
    client = make(ca=authority.pem, client_cert=authority.issue("fabric"))
    async with serving(authority.server("agent.test", demands_certificate=True)) as peer:
        reply = await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
    assert reply.body == b"x"


async def test_without_a_good_client_certificate_the_request_does_not_get_through(
    make: MakeClient, authority: Authority, tmp_path: Path
) -> None:
    clients = [make(ca=authority.pem), make(ca=authority.pem, client_cert=Authority(tmp_path).issue("fabric"))]
    context = authority.server("agent.test", demands_certificate=True)
    async with serving(context) as peer:
        for client in clients:  # TLS 1.3 shakes hands first and looks at the certificate later
            with pytest.raises((ConnectFailed, Interrupted)):
                await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        for client in clients:
            with pytest.raises(ConnectFailed):
                await client.request("POST", peer.url("/echo"), body=b"x", timeout=TIMEOUT, limit=LIMIT)
        assert peer.requests == []


# The guard: `agent.test` is known to no name server, so reaching it proves that the checked address was used.


class Names:
    """A name server of our own, which also counts the questions."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


async def test_a_guarded_client_reaches_no_private_address(make: MakeClient, peer: Peer) -> None:
    client = make(Guard(resolve=Names(["127.0.0.1"])))
    for url in (peer.url("/echo"), peer.url("/echo", "agent.test"), peer.url("/echo", "2130706433")):
        with pytest.raises(AddressRefused):
            await client.request("GET", url, timeout=TIMEOUT, limit=LIMIT)
        with pytest.raises(AddressRefused):
            async with client.stream("GET", url, timeout=TIMEOUT, limit=LIMIT):
                pass
    assert peer.connections == 0


@pytest.mark.parametrize("host", ["agent.test", "agent.test.", "AGENT.Test"])
async def test_a_guarded_client_connects_to_the_address_that_was_checked(
    make: MakeClient, peer: Peer, host: str
) -> None:
    names = Names(["127.0.0.1"], ["10.0.0.1"])  # rebound after the first question
    client = make(Guard(allow=["127.0.0.0/8"], resolve=names))
    for _ in range(3):
        reply = await client.request("GET", peer.url("/echo", host), timeout=TIMEOUT, limit=LIMIT)
        assert reply.status == 200
    async with client.stream("POST", peer.url("/echo", host), body=b"x", timeout=TIMEOUT, limit=LIMIT) as streamed:
        assert await streamed.read() == b"x"
    assert (len(names.asked), peer.connections) == (1, 1)
    assert peer.requests[0].headers["host"].lower().replace(".:", ":") == f"agent.test:{peer.port}"


async def test_a_guarded_client_tries_the_next_address_if_one_does_not_answer(make: MakeClient) -> None:
    names = Names(["127.0.0.2", "127.0.0.3"])
    client = make(Guard(allow_private=True, resolve=names))
    async with serving(host="127.0.0.3") as peer:
        reply = await client.request("GET", peer.url("/echo", "agent.test"), timeout=TIMEOUT, limit=LIMIT)
    assert reply.status == 200


async def test_a_guarded_client_verifies_the_name_and_not_the_address(make: MakeClient, authority: Authority) -> None:
    client = make(Guard(allow_private=True, resolve=Names(["127.0.0.1"])), ca=authority.pem)
    async with serving(authority.server("agent.test")) as peer:
        reply = await client.request("GET", peer.url("/echo", "agent.test"), timeout=TIMEOUT, limit=LIMIT)
        assert reply.status == 200
        with pytest.raises(ConnectFailed):
            await client.request("GET", peer.url("/echo", "other.test"), timeout=TIMEOUT, limit=LIMIT)


async def test_a_slow_name_server_cannot_outlast_the_deadline(make: MakeClient) -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    client = make(Guard(resolve=never))
    with pytest.raises(DeadlineExceeded):
        await client.request("GET", "http://agent.test/", timeout=SHORT, limit=LIMIT)


# Event loops


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run_in_thread(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(story: Coroutine[Any, Any, None]) -> None:
        failures: list[BaseException] = []

        def main() -> None:
            try:
                request.param(story)
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=main)
        thread.start()
        thread.join(2 * WAIT_TIMEOUT)
        assert not thread.is_alive()
        assert failures == []

    return run


def test_any_event_loop_in_any_thread_will_do(
    make: MakeClient, run_in_thread: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def story(client: HTTPClient) -> None:
        async with serving() as peer:
            url = peer.url("/echo")
            calls = [client.request("POST", url, body=b"x", timeout=TIMEOUT, limit=LIMIT) for _ in range(100)]
            assert {reply.body for reply in await asyncio.gather(*calls)} == {b"x"}
            await test_chunks_are_handed_out_as_they_arrive(client, peer)
            await test_leaving_a_stream_early_closes_its_connection(client, peer)
        await client.aclose()

    run_in_thread(story(make()))
    run_in_thread(story(make()))  # a second loop, after the first is gone
