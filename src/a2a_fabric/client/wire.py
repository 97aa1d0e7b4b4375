"""The Fabric wire format on the client side: encode requests, decode envelopes and events into results and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from a2a_fabric.core.call import Attachment
from a2a_fabric.core.content import attachment_from_part
from a2a_fabric.core.errors import FabricError, RateLimited, UpstreamFailed, error_from_code
from a2a_fabric.core.events import EVENT_KINDS, EventKind
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Fallback
from a2a_fabric.core.trace import Trace


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's answer, the trace it is found under, and who gave it if not the agent that was asked."""

    data: dict[str, Any]
    trace: Trace
    fallback: Fallback | None = None
    job_id: str | None = None  # set if there is no answer yet: the work goes on as this job
    parts: tuple[Part, ...] = ()  # images, files, links
    notes: tuple[str, ...] = ()  # what was lost on the way

    @property
    def answer(self) -> str | None:
        """The words of the answer, if it has any."""
        answer = self.data.get("answer")
        return answer if isinstance(answer, str) else None


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened on the way; the last one is `final`, and its data is the result."""

    kind: EventKind | Literal["final"]
    data: dict[str, Any]
    trace: Trace
    fallback: Fallback | None = None  # in `final` only
    job_id: str | None = None  # in `final` only: the work goes on as this job
    parts: tuple[Part, ...] = ()  # in `final` only
    notes: tuple[str, ...] = ()  # in `final` only
    number: int = 0  # in a job's log; coming back with it, one misses nothing
    at: float = 0.0  # when it was written there, in seconds since 1970

    @property
    def text(self) -> str:
        """The words of a token; nothing for other kinds."""
        return str(self.data.get("text", "")) if self.kind == "token" else ""

    @property
    def result(self) -> CallResult:
        """Of the `final` event: what a plain call would have answered."""
        return CallResult(
            data=self.data,
            trace=self.trace,
            fallback=self.fallback,
            job_id=self.job_id,
            parts=self.parts,
            notes=self.notes,
        )


_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Envelope(msgspec.Struct):
    ok: bool
    trace: Trace
    result: dict[str, Any] | None = None
    error: Any = None
    error_code: str | None = None
    error_details: dict[str, Any] | None = None
    fallback: Fallback | None = None
    job_id: str | None = None
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()


class _Frame(msgspec.Struct):
    event: str
    data: dict[str, Any]
    trace: Trace
    number: int = 0
    at: float = 0.0


_envelope_decoder = msgspec.json.Decoder(_Envelope)
_frame_decoder = msgspec.json.Decoder(_Frame)


def encode_request(operation: str, arguments: dict[str, Any]) -> bytes:
    present = {key: value for key, value in arguments.items() if value is not None}
    return msgspec.json.encode({"name": operation, "arguments": present})


def to_attachments(content: Sequence[Part | Attachment]) -> list[Attachment] | None:
    """What goes along with the words, as the envelope has it; None if nothing does."""
    return [attachment_from_part(each) if isinstance(each, Part) else each for each in content] or None


def read_reply(status: int, body: bytes, retry_after: str | None = None) -> CallResult:
    """The result in a reply; raises the error that it reports, or UpstreamFailed if it is no reply of a node's."""
    try:
        envelope = _envelope_decoder.decode(body)
    except _MALFORMED as exc:
        if status == 503:  # a server that is full says so in its own words, before the node hears of the request
            raise RateLimited("The node has too many connections", 1.0) from exc
        raise UpstreamFailed(f"HTTP {status}, but not as a Fabric node answers: is this the right URL?") from exc
    return _result_from_envelope(envelope, retry_after)


def read_event(frame: bytes) -> StreamEvent | None:
    """One event of a stream, None for a kind that is not known here. A failed `final` raises what it reports."""
    try:
        decoded = _frame_decoder.decode(frame)
        if decoded.event == "final":
            result = _result_from_envelope(msgspec.convert({**decoded.data, "trace": decoded.trace}, _Envelope))
            return final_event_from_result(result)
    except (*_MALFORMED, msgspec.ValidationError) as exc:
        raise UpstreamFailed(f"An event is not as a Fabric node sends it: {exc}"[:300]) from exc
    if decoded.event not in EVENT_KINDS:
        return None
    data = {key: value for key, value in decoded.data.items() if key != "trace"}
    return StreamEvent(kind=decoded.event, data=data, trace=decoded.trace, number=decoded.number, at=decoded.at)  # type: ignore[arg-type]  # one of EVENT_KINDS


def final_event_from_result(result: CallResult) -> StreamEvent:
    return StreamEvent(
        kind="final",
        data=result.data,
        trace=result.trace,
        fallback=result.fallback,
        job_id=result.job_id,
        parts=result.parts,
        notes=result.notes,
    )


def _result_from_envelope(envelope: _Envelope, retry_after: str | None = None) -> CallResult:
    if not envelope.ok:
        raise _error_from_envelope(envelope, retry_after)
    return CallResult(
        data=envelope.result or {},
        trace=envelope.trace,
        fallback=envelope.fallback,
        job_id=envelope.job_id,
        parts=envelope.parts,
        notes=envelope.notes,
    )


def _error_from_envelope(envelope: _Envelope, retry_after: str | None) -> FabricError:
    """Both forms of error are understood: a sentence with a code beside it, or an object."""
    error_object = envelope.error if isinstance(envelope.error, dict) else {}
    code = envelope.error_code or error_object.get("code") or "UPSTREAM_ERROR"
    message = error_object.get("message") or (envelope.error if isinstance(envelope.error, str) else "The call failed")
    details = envelope.error_details or error_object.get("details") or {}
    if code == RateLimited.code and "retry_after" not in details and (retry_after or "").isdigit():
        details["retry_after"] = int(retry_after or 1)
    error = error_from_code(str(code), str(message), details)
    error.trace_id = envelope.trace.trace_id
    return error
