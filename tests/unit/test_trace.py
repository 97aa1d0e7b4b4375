from __future__ import annotations

import multiprocessing
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.propagation import (
    continue_trace,
    current_trace,
    format_traceparent,
    new_id,
    new_trace,
    normalize_uuid,
    process_trace,
    trace_from_traceparent,
)
from tests.marks import requirement

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@requirement("000-12", "000-18")
def test_every_call_gets_ids_of_its_own() -> None:
    ids = [new_id() for _ in range(20_000)]
    assert len(set(ids)) == len(ids)


@requirement("000-18")
def test_ids_are_random_uuids() -> None:
    for _ in range(1000):
        parsed = UUID(text := new_id())
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (4, "specified in RFC 4122")


def _ids_of_child(results: multiprocessing.Queue[list[str]]) -> None:
    results.put([new_id() for _ in range(50)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_repeat_our_ids() -> None:
    new_id()
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[list[str]] = context.Queue()
    child = context.Process(target=_ids_of_child, args=(results,))
    child.start()
    theirs = results.get(timeout=60)
    child.join(60)
    assert not set(theirs) & {new_id() for _ in range(200)}


@requirement("000-18", "001-30")
def test_a_trace_on_the_wire_has_a_trace_a_span_and_maybe_a_parent() -> None:
    trace = msgspec.to_builtins(new_trace())
    assert set(trace) == {"trace_id", "span_id", "parent_span_id"}
    assert trace["parent_span_id"] is None
    assert trace["trace_id"] != trace["span_id"]


@requirement("001-30")
def test_a_callers_trace_is_continued_with_a_fresh_span() -> None:
    mine = new_trace()
    theirs = continue_trace(mine.trace_id.replace("-", "").upper(), mine.span_id)
    assert (theirs.trace_id, theirs.parent_span_id) == (mine.trace_id, mine.span_id)
    assert theirs.span_id != mine.span_id


@pytest.mark.parametrize(
    "bad", ["", "x", "123", "g" * 32, "0" * 31, "0" * 33, " " + "0" * 32, "0" * 32 + "\n", "é" * 32]
)
def test_what_is_no_uuid_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="is not a UUID"):
        normalize_uuid(bad)


@given(st.text(max_size=80))
def test_anything_at_all_is_a_uuid_or_a_value_error(text: str) -> None:
    try:
        assert str(UUID(normalize_uuid(text))) == normalize_uuid(text)
    except ValueError:
        pass


def test_a_w3c_header_is_continued() -> None:
    trace = trace_from_traceparent(PARENT)
    assert trace is not None
    assert trace.trace_id == "0af76519-16cd-43dd-8448-eb211c80319c"
    assert trace.parent_span_id is not None
    assert trace.parent_span_id.replace("-", "").startswith("b7ad6b7169203331")


def test_our_header_is_read_back_to_the_same_trace_and_span() -> None:
    mine = new_trace()
    theirs = trace_from_traceparent(format_traceparent(mine))
    assert theirs is not None
    assert theirs.trace_id == mine.trace_id
    assert theirs.parent_span_id is not None
    assert theirs.parent_span_id[:18] == mine.span_id[:18]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        PARENT.upper(),
        PARENT[:-1],
        "ff" + PARENT[2:],
        PARENT + "-what-version-00-may-not-carry",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)
def test_a_malformed_header_starts_a_new_trace(header: str) -> None:
    assert trace_from_traceparent(header) is None


def test_a_header_of_a_later_version_may_carry_more() -> None:
    assert trace_from_traceparent("01" + PARENT[2:] + "-more") is not None


@given(st.text(max_size=120))
def test_no_header_breaks_the_parser(header: str) -> None:
    trace_from_traceparent(header)


def test_outside_of_calls_lines_belong_to_the_process() -> None:
    assert current_trace.get() is process_trace
