"""Server-sent events: the same bytes give the same events, however they are cut into chunks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.outbound.port import ReplyTooLarge
from a2a_fabric.outbound.sse import SSEParser, iter_event_data

LIMIT = 1000
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
VALUES = st.lists(st.binary(max_size=20).filter(lambda value: not set(value) & set(b"\r\n")), min_size=1, max_size=4)
NOISE = st.sampled_from([b": comment", b"id: 7", b"event: progress", b"retry: 10", b"database: x", b"nonsense"])
SOUP = st.lists(st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"x", b"\xef\xbb\xbf", b"data: y"]), max_size=40)


async def arriving(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def parse(*chunks: bytes, limit: int = LIMIT) -> list[bytes | str]:
    """The events, with "too large" at the end if that is how the stream broke off."""

    async def read() -> list[bytes | str]:
        events: list[bytes | str] = []
        try:
            async for data in iter_event_data(arriving(chunks), limit=limit):
                events.append(data)
        except ReplyTooLarge:
            events.append("too large")
        return events

    return asyncio.run(read())


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.tuples(VALUES, NOISE), max_size=5), ENDS, st.lists(st.integers(0, 1000), max_size=30))
def test_events_survive_any_line_end_and_any_chunk_boundary(
    events: list[tuple[list[bytes], bytes]], end: bytes, places: list[int]
) -> None:
    stream = b"".join(end.join([noise, *(b"data: " + value for value in values), b"", b""]) for values, noise in events)
    assert parse(*cut(stream, places)) == [b"\n".join(values) for values, _ in events]


@given(SOUP.map(b"".join), st.lists(st.integers(0, 1000), max_size=30), st.integers(0, 12))
def test_chunk_boundaries_never_change_what_is_read_nor_where_it_breaks_off(
    stream: bytes, places: list[int], limit: int
) -> None:
    assert parse(*cut(stream, places), limit=limit) == parse(stream, limit=limit)


@given(SOUP.map(b"".join), st.integers(0, 12))
def test_no_event_is_larger_than_the_limit(stream: bytes, limit: int) -> None:
    assert all(len(event) <= limit for event in parse(stream, limit=limit) if isinstance(event, bytes))


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    assert parse(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]


def test_a_lone_carriage_return_ends_a_line() -> None:
    assert parse(b"data: a\r\rdata: b\r", b"\r") == [b"a", b"b"]


def test_one_space_after_the_colon_is_dropped_and_no_more() -> None:
    assert parse(b"data:a\n\ndata:  b\n\n") == [b"a", b" b"]


def test_data_without_a_colon_is_an_empty_line_of_data() -> None:
    assert parse(b"data\ndata: a\n\n") == [b"\na"]


def test_a_byte_order_mark_at_the_start_is_skipped() -> None:
    assert parse(b"\xef\xbb", b"\xbfdata: a\n\n") == [b"a"]


@pytest.mark.parametrize("tail", [b"data: b", b"data: b\n", b"data: b\n\n"])
def test_the_last_event_counts_even_if_its_end_is_missing(tail: bytes) -> None:
    assert parse(b"data: a\n\n" + tail) == [b"a", b"b"]


def test_an_event_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert parse(b"data: 12345\n\n", limit=5) == [b"12345"]
    assert parse(b"data: 12\ndata: 34\n\n", limit=5) == [b"12\n34"]
    assert parse(b"data: 123456\n\n", limit=5) == ["too large"]
    assert parse(b"data: 123\ndata: 45\n\n", limit=5) == ["too large"]


def test_names_and_ids_and_pauses_are_known_when_an_event_is_handed_out() -> None:
    events = SSEParser(LIMIT)
    seen = []
    for chunk in (
        b"event: greeting\nid: 1\nretry: 250\ndata: a\n\n",
        b"data: b\n\n",
        b"id: 2\n\nretry: soon\nevent: bye\n",
        b"data: c\n\n",
    ):
        seen += [(data, events.event_name, events.last_id, events.retry) for data in events.feed(chunk)]
    assert seen == [(b"a", "greeting", "1", 0.25), (b"b", "", "1", 0.25), (b"c", "bye", "2", 0.25)]


@pytest.mark.parametrize("flood", [b"x", b"data:\n", b"data:\r", b": x", b"data: y\r\n"])
def test_an_event_that_never_ends_is_cut_off(flood: bytes) -> None:
    seen = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal seen
        while True:
            seen += 1
            yield flood

    async def read() -> None:
        async for _ in iter_event_data(endless(), limit=LIMIT):
            pass

    with pytest.raises(ReplyTooLarge):
        asyncio.run(read())
    assert seen <= 2 * LIMIT
