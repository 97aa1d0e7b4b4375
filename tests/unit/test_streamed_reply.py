"""A streamed reply: the same bytes give the same body, however they are cut, with and without the parser."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.outbound.connection import Connection, HTTPStreamedReply
from a2a_fabric.outbound.port import Interrupted, ReplyTooLarge

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
LIMIT = 10_000
PARTS = st.lists(st.sampled_from([b"x", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"a" * 15, b"b" * 16, b"c" * 300]))


class _Transport(asyncio.Transport):
    def __init__(self, own: socket.socket) -> None:
        super().__init__({"socket": own})
        self.is_aborted = False

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Owner:
    reply_heads: dict[bytes, Any] = {}  # noqa: RUF012  # stays empty

    def on_free(self, connection: Connection) -> None:
        pass

    def on_closed(self, connection: Connection) -> None:
        pass


def chunk(part: bytes, start: bytes = b"%x\r\n") -> bytes:
    return start % len(part) + part + b"\r\n"


async def deliver(segments: Sequence[bytes], take: Callable[[bytes], bool] | None = None, limit: int = LIMIT) -> bytes:
    """The body that the reader gets. The head arrives alone, the segments each in a turn of the event loop."""
    loop, owner, body = asyncio.get_running_loop(), _Owner(), bytearray()
    with socket.socket() as own:
        connection = Connection(loop, DeadlineSweep(loop), owner, owner)
        connection.connection_made(_Transport(own))
        waiter = connection.send(b"POST / HTTP/1.1\r\n\r\n", None, limit, 60, False, True)
        connection.data_received(HEAD)
        reply: HTTPStreamedReply = await waiter

        def collect(part: bytes) -> bool:
            body.extend(part)
            return take is None or take(part)

        async def read() -> None:
            while await reply.deliver(collect):
                pass

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        for segment in segments:
            connection.data_received(segment)
            await asyncio.sleep(0)
        connection.eof_received()
        async with asyncio.timeout(5):
            await reading
    return bytes(body)


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(each % (len(data) + 1) for each in at)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(PARTS, st.lists(st.integers(0, 5000), max_size=12), st.sampled_from([b"%x\r\n", b"%X\r\n", b"%x;a=b\r\n"]))
def test_a_chunked_body_is_the_same_however_it_is_cut(parts: list[bytes], at: list[int], start: bytes) -> None:
    chunks = [chunk(part, start) for part in parts]
    segments = [*cut(b"".join(chunks), at), *chunks, *cut(chunk(b"last") + END, at)]

    assert asyncio.run(deliver(segments)) == b"".join(parts) * 2 + b"last"


def test_a_reader_that_stops_in_between_gets_every_part_once() -> None:
    takes = iter([True, False] * 10)

    body = asyncio.run(deliver([*map(chunk, (b"1", b"2", b"3", b"4", b"5")), END], lambda part: next(takes)))

    assert body == b"12345"


@pytest.mark.parametrize("start", [b"-", b"+1\r\n", b"0x1\r\n", b"1_\r\n", b"\r\n", b"g\r\n"])
def test_what_is_no_chunk_breaks_the_reply_off_between_chunks_too(start: bytes) -> None:
    with pytest.raises(Interrupted):
        asyncio.run(deliver([chunk(b"fine"), chunk(b"fine"), start + b"x" * 20 + b"\r\n", chunk(b"late")]))


def test_a_reply_that_ends_between_chunks_was_cut_off() -> None:
    with pytest.raises(Interrupted):
        asyncio.run(deliver([chunk(b"fine"), chunk(b"fine")]))


def test_whole_chunks_count_for_the_limit() -> None:
    got: list[bytes] = []

    def keep(part: bytes) -> bool:
        got.append(part)
        return True

    with pytest.raises(ReplyTooLarge):
        asyncio.run(deliver([chunk(b"x" * 30)] * 9 + [END], keep, limit=100))

    assert b"".join(got) == b"x" * 90


def test_an_exception_of_the_reader_reaches_it_where_it_waits() -> None:
    def refuse(part: bytes) -> bool:
        if part == b"bad":
            raise ValueError(part)
        return True

    with pytest.raises(ValueError, match="bad"):
        asyncio.run(deliver([chunk(b"good"), chunk(b"bad"), END], refuse))
