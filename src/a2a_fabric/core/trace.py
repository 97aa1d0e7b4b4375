"""Trace ids: UUID text on Fabric's wire, the same bits as W3C hex everywhere else.

A trace is continued when the caller sends one, else started; the span is always
fresh. `uuid.uuid4` costs more than the rest of the header work together, so ids
are cut from a block of system randomness instead."""

from __future__ import annotations

import os
import re
from contextvars import ContextVar

import msgspec

_BLOCK = 4096
_VERSION = bytes(0x40 | byte & 0x0F for byte in range(256))  # the seventh byte of a UUID
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))  # the ninth byte
_ID_LENGTH = 40  # characters of a UUID in a block
_UUID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
# Version ff is forbidden; only versions after 00 may carry more.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:(?<!^00.{53})-.*)?")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of a request, this span of it, and the parent span."""

    trace_id: str
    span_id: str
    parent_span_id: str | None = None


class _Randomness:
    """UUIDs (version 4) from a block of `os.urandom`, each used once.

    Most of the work is done for the whole block: in its text each UUID is eight groups of four digits with a dash
    after each group. What remains is to leave out the dashes that a UUID does not have.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0

    def take(self, count: int) -> str:
        """The text of so many UUIDs."""
        start, length = self._position, count * _ID_LENGTH
        text = self._text[start : start + length]
        if len(text) < length:
            block = bytearray(os.urandom(_BLOCK))
            block[6::16] = block[6::16].translate(_VERSION)
            block[8::16] = block[8::16].translate(_VARIANT)
            self._text = block.hex("-", 2) + "-"
            start, text = 0, self._text[:length]
        self._position = start + length
        return text


_randomness = _Randomness()
os.register_at_fork(after_in_child=_randomness.__init__)  # type: ignore[misc]  # a forked child must not repeat the ids of its parent


def new_id() -> str:
    """A random UUID (version 4) as text."""
    text = _randomness.take(1)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:39]}"


def new_trace() -> Trace:
    """Makes both ids at once, because every call without a trace needs both."""
    text = _randomness.take(2)
    return Trace(
        trace_id=f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:39]}",
        span_id=f"{text[40:44]}{text[45:69]}{text[70:74]}{text[75:79]}",
    )


def continue_trace(trace_id: str, parent_span_id: str | None = None) -> Trace:
    """Go on with a caller's trace. Raises ValueError if an id is not a UUID."""
    parent = normalize_uuid(parent_span_id) if parent_span_id else None
    return Trace(trace_id=normalize_uuid(trace_id), span_id=new_id(), parent_span_id=parent)


def normalize_uuid(text: str) -> str:
    """UUID text from UUID text or bare hex; raises ValueError for anything else."""
    if not _UUID.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a UUID")
    return _format_uuid(text.replace("-", "").lower())


def _format_uuid(h: str) -> str:
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def trace_from_traceparent(header: str) -> Trace | None:
    """Continue a W3C `traceparent`; None if it is malformed (the specification says: start anew)."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return None
    return Trace(trace_id=_format_uuid(match[1]), span_id=new_id(), parent_span_id=_format_uuid(match[2] + "0" * 16))


def format_traceparent(trace: Trace) -> str:
    """The W3C header for work done on behalf of this span."""
    return f"00-{trace.trace_id.replace('-', '')}-{trace.span_id.replace('-', '')[:16]}-01"


# Log lines written while a call runs carry its trace; all others carry the process's own.
process_trace = new_trace()
current_trace: ContextVar[Trace] = ContextVar("current_trace", default=process_trace)
