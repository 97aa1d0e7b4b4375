"""The load generators of the bench count what a server really answers: both get the same replies over real sockets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bench import load_native, load_python
from bench.load import SESSION, Limit, Load, RequestPlan, repeat_request

RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nforty-two"
WRONG = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nforty-three"
REFUSED = b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nforty-two"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nforty"
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
PLAN = repeat_request(REQUEST, b"forty-two")
LONGEST = 30.0
Answer = Callable[[bytes], Awaitable[list[bytes]]]  # the pieces of a reply to a request's head


async def run_native(port: int, plan: RequestPlan, connections: int, limit: Limit) -> Load:
    binary = load_native.program("load")
    if binary is None:
        pytest.skip("there is no C compiler; install gcc or clang")
    return await load_native.run(binary, port, plan, connections, limit, None, None)


async def run_python(port: int, plan: RequestPlan, connections: int, limit: Limit) -> Load:
    return await load_python.run(port, plan, connections, limit, None)


both = pytest.mark.parametrize("run", [run_native, run_python])
Run = Callable[[int, RequestPlan, int, Limit], Awaitable[Load]]


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[int]:
    """A server whose replies are given; a reply that is cut short closes the connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                for piece in await answer(head):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                    if piece == CUT:
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the generator has closed the connection
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server, asyncio.timeout(LONGEST):
        yield server.sockets[0].getsockname()[1]


def cycle(*replies: bytes) -> Answer:
    pieces = itertools.cycle(replies)

    async def answer(head: bytes) -> list[bytes]:
        return [next(pieces)]

    return answer


@both
async def test_right_replies_are_calls_without_failures(run: Run) -> None:
    async with serve(cycle(RIGHT)) as port:
        result = await run(port, PLAN, 4, Limit(calls=100))
    assert (result.calls, result.failures, len(result.latencies)) == (100, 0, 100)
    assert result.load_cpu > 0


@both
async def test_a_reply_without_the_expected_text_or_with_another_status_is_a_failure(run: Run) -> None:
    async with serve(cycle(RIGHT, WRONG, RIGHT, REFUSED)) as port:
        result = await run(port, PLAN, 1, Limit(calls=100))
    assert (result.calls, result.failures) == (100, 50)
    assert "forty-three" in result.why


async def test_a_reply_that_is_cut_short_is_a_failure_and_the_load_goes_on() -> None:
    async with serve(cycle(RIGHT, RIGHT, RIGHT, RIGHT, CUT)) as port:
        result = await run_native(port, PLAN, 1, Limit(calls=100))
    assert (result.calls, result.failures, len(result.latencies)) == (100, 20, 80)
    assert "closed before the reply was complete" in result.why


async def test_a_server_that_refuses_connections_is_an_error_with_its_address() -> None:
    async with serve(cycle(RIGHT)) as port:
        pass
    with pytest.raises(ConnectionError, match=str(port)):
        await run_native(port, PLAN, 1, Limit(calls=1))


@both
async def test_replies_in_chunks_and_in_pieces_are_read_to_their_end(run: Run) -> None:
    whole = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6;x=y\r\nforty-\r\n3\r\ntwo\r\n0\r\nTrailer: x\r\n\r\n"
    )

    async def answer(head: bytes) -> list[bytes]:
        return [whole[at : at + 7] for at in range(0, len(whole), 7)]

    async with serve(answer) as port:
        result = await run(port, PLAN, 2, Limit(calls=20))
    assert (result.calls, result.failures) == (20, 0)


@both
async def test_events_of_streams_are_counted_and_only_so_many_streams_are_begun(run: Run) -> None:
    event = b"d\r\ndata: token\n\n\r\n"
    begun = 0

    async def answer(head: bytes) -> list[bytes]:
        nonlocal begun
        begun += 1
        return [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[event] * 5, b"0\r\n\r\n"]

    plan = RequestPlan([REQUEST], event=b"token")
    async with serve(answer) as port:
        result = await run(port, plan, 3, Limit(calls=3))
    assert (begun, result.events, len(result.first_event)) == (3, 15, 3)


@both
async def test_each_connection_opens_uses_and_ends_its_own_session(run: Run) -> None:
    numbers = itertools.count(1)
    heads: list[str] = []

    async def answer(head: bytes) -> list[bytes]:
        heads.append(head.decode())
        session = b"Mcp-Session-Id: s%d\r\n" % next(numbers) if head.startswith(b"OPEN") else b""
        return [b"HTTP/1.1 200 OK\r\n" + session + b"Content-Length: 9\r\n\r\nforty-two"]

    used = f"Mcp-Session-Id: {SESSION}\r\n\r\n"
    plan = RequestPlan(
        [f"CALL / HTTP/1.1\r\n{used}".encode()],
        opening=[b"OPEN / HTTP/1.1\r\n\r\n", f"READY / HTTP/1.1\r\n{used}".encode()],
        ending=f"DELETE / HTTP/1.1\r\n{used}".encode(),
    )
    async with serve(answer) as port:
        result = await run(port, plan, 2, Limit(calls=2))
    assert (result.calls, result.failures) == (2, 0)
    for session in ("s1", "s2"):
        mine = [head.split()[0] for head in heads if f"Mcp-Session-Id: {session}\r" in head]
        assert mine == ["READY", "CALL", "DELETE"]


async def test_a_refused_session_is_an_error_with_the_servers_words() -> None:
    plan = RequestPlan([REQUEST], opening=[REQUEST])
    async with serve(cycle(REFUSED)) as port:
        with pytest.raises(ConnectionError, match="HTTP 503: forty-two"):
            await run_native(port, plan, 1, Limit(calls=1))


@both
async def test_requests_are_sent_in_turn(run: Run) -> None:
    paths: list[bytes] = []

    async def answer(head: bytes) -> list[bytes]:
        paths.append(head.split()[1])
        return [RIGHT]

    plan = RequestPlan([b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(3)])
    async with serve(answer) as port:
        await run(port, plan, 1, Limit(calls=6))
    assert paths == [b"/0", b"/1", b"/2"] * 2


async def test_a_connection_that_the_server_ends_after_a_reply_is_opened_again() -> None:
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nforty-two"
    async with serve(cycle(RIGHT, last)) as port:
        result = await run_native(port, PLAN, 1, Limit(calls=10))
    assert (result.calls, result.failures) == (10, 0)


async def test_slow_replies_are_in_the_percentiles_where_they_belong() -> None:
    """3 of 100 replies take at least 10 ms: all above the 97th percentile, and only those need to."""
    numbers = itertools.count()

    async def answer(head: bytes) -> list[bytes]:
        if next(numbers) % 100 in (10, 20, 30):
            await asyncio.sleep(0.01)
        return [RIGHT]

    async with serve(answer) as port:
        result = await run_native(port, PLAN, 1, Limit(calls=2000))
    assert len(result.latencies) == 1001  # evenly spaced among the 2,000
    assert list(result.latencies) == sorted(result.latencies)
    assert result.percentile(0.5) <= result.percentile(0.971) <= result.percentile(0.999) <= result.percentile(1.0)
    assert result.percentile(0.971) >= 0.01
    assert sum(result.latencies) < result.seconds


async def test_at_a_fixed_rate_a_call_counts_from_the_moment_it_was_due() -> None:
    """One connection, a server that is stopped for a while: the requests that were due meanwhile have waited, too."""
    is_first = True

    async def answer(head: bytes) -> list[bytes]:
        nonlocal is_first
        if is_first:
            is_first = False
            await asyncio.sleep(0.2)
        return [RIGHT]

    async with serve(answer) as port:
        result = await run_native(port, PLAN, 1, Limit(calls=100, rate=1000.0))
    assert (result.calls, result.failures) == (100, 0)
    assert result.percentile(0.5) > 0.03  # a closed loop would have seen one slow call


def test_the_percentiles_of_known_latencies() -> None:
    every = Load(1000, 1.0, [number / 1000 for number in range(1000, 0, -1)])
    assert [every.percentile(share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [0.001, 0.501, 0.991, 1.0, 1.0]
    assert Load(0, 1.0, []).percentile(0.5) == 0.0
