"""What peers send each other: a call in the request, then events and the outcome as frames of the reply.

A frame is four bytes with its length, and MessagePack. Both sides are the same product and the same operator's, so a
call travels whole, with the principal as the first peer identified and authorized it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import msgspec

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import FabricError, UpstreamFailed, error_from_code
from a2a_fabric.core.result import Answers, Event, PassedOnAnswer, Result

LENGTH_BYTES = 4

# `agent`: a worker of the same node runs the agent, since everything around the call is done. `node`: another node runs
# it, with its own steps. `answers`: the call continues an exchange that the peer holds, and is routed there.
CallMode = Literal["agent", "node", "answers"]


class _WireAnswers(Answers, frozen=True, kw_only=True):
    answers: dict[str, PassedOnAnswer] = {}  # type: ignore[assignment]  # noqa: RUF012  # a struct's default


class _WireCall(Call, frozen=True, kw_only=True):
    answers: _WireAnswers | msgspec.UnsetType = msgspec.UNSET


class CallEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    mode: CallMode
    call: Call


class _WireEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    mode: CallMode
    call: _WireCall


class EventFrame(msgspec.Struct, frozen=True, tag="event"):
    event: Event


class ResultFrame(msgspec.Struct, frozen=True, tag="result"):
    result: Result


class ErrorFrame(msgspec.Struct, frozen=True, tag="error"):
    """`never_ran` and `is_answer` decide whether another agent may be asked."""

    code: str
    message: str
    details: dict[str, Any] = {}
    private: str | None = None
    is_inconclusive: bool = False
    is_answer: bool = False


class ValueFrame(msgspec.Struct, frozen=True, tag="value"):
    """The outcome of anything that is no call, encoded: only the peer that asked knows its type."""

    value: msgspec.Raw


Frame = EventFrame | ResultFrame | ErrorFrame | ValueFrame

_encoder = msgspec.msgpack.Encoder()
_frame_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_envelope_decoder = msgspec.msgpack.Decoder(_WireEnvelope)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_call(call: Call, mode: CallMode) -> bytes:
    return _encoder.encode(CallEnvelope(mode=mode, call=call))


def decode_call(body: bytes) -> tuple[CallMode, Call]:
    """Raises msgspec.DecodeError."""
    envelope = _envelope_decoder.decode(body)
    return envelope.mode, envelope.call


def encode_frame(frame: Frame) -> bytes:
    content = _encoder.encode(frame)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def frame_from_value(value: Any) -> ValueFrame:
    return ValueFrame(msgspec.Raw(_encoder.encode(value)))


def frame_from_error(error: FabricError) -> ErrorFrame:
    return ErrorFrame(
        error.code,
        error.message,
        error.details,
        error.private,
        error.is_inconclusive,
        error.is_answer,
    )


def error_from_frame(frame: ErrorFrame) -> FabricError:
    """The same error here. Details tell classes with one code apart; see `core.errors`."""
    error = error_from_code(frame.code, frame.message, {**frame.details, "private": frame.private})
    error.is_inconclusive, error.is_answer = frame.is_inconclusive, frame.is_answer
    return error


class FrameReader:
    """Frames from pieces of a stream. A frame larger than `limit` is refused before it is read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Raises UpstreamFailed."""
        buffer = self._buffer
        buffer += piece
        at = 0
        try:
            while len(buffer) - at >= LENGTH_BYTES:
                size = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
                if size > self._limit:
                    raise UpstreamFailed(f"A peer sent a frame of {size} bytes; the limit is {self._limit}")
                end = at + LENGTH_BYTES + size
                if len(buffer) < end:
                    return
                content = bytes(buffer[at + LENGTH_BYTES : end])
                at = end
                yield _decode_frame(content)
        finally:
            del buffer[:at]


def read_single_frame(data: bytes, limit: int) -> Frame | None:
    """The frame that is all of `data`; None if it is not one, or larger than `limit`. Raises UpstreamFailed."""
    size = int.from_bytes(data[:LENGTH_BYTES], "big")
    return _decode_frame(data[LENGTH_BYTES:]) if size == len(data) - LENGTH_BYTES and size <= limit else None


async def read_result(body: bytes, next_chunk: Callable[[], Awaitable[bytes]], limit: int, emit: Emit) -> Result | None:
    """The result of a call, after its events; None if the reply ended without one. `body` is its first piece.

    Raises the error in the reply, and UpstreamFailed.
    """
    reader = FrameReader(limit)
    while body:
        for frame in reader.feed(body):
            if isinstance(frame, ResultFrame):
                return frame.result
            if isinstance(frame, ErrorFrame):
                raise error_from_frame(frame)
            if isinstance(frame, EventFrame):
                await emit(frame.event)
        body = await next_chunk()
    return None


def _decode_frame(content: bytes) -> Frame:
    try:
        return _frame_decoder.decode(content)
    except _UNREADABLE as exc:
        raise UpstreamFailed(f"A peer sent a frame that cannot be read: {exc}"[:300]) from exc
