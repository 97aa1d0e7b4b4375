"""The Fabric wire from the caller's side: requests out, envelopes and events in, errors raised as what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.client.values import CallResult, StreamEvent
from a2a_fabric.core.call import Attachment
from a2a_fabric.core.content import attachment_of
from a2a_fabric.core.errors import FabricError, RateLimited, UpstreamFailed, error_by_code
from a2a_fabric.core.events import EVENT_KINDS
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Fallback
from a2a_fabric.core.trace import Trace

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


_envelopes = msgspec.json.Decoder(_Envelope)
_frames = msgspec.json.Decoder(_Frame)


def request_body(operation: str, arguments: dict[str, Any]) -> bytes:
    given = {key: value for key, value in arguments.items() if value is not None}
    return msgspec.json.encode({"name": operation, "arguments": given})


def attached(content: Sequence[Part | Attachment]) -> list[Attachment] | None:
    """What goes along with the words, as the envelope has it; None if nothing does."""
    return [attachment_of(each) if isinstance(each, Part) else each for each in content] or None


def read_reply(status: int, body: bytes, retry_after: str | None = None) -> CallResult:
    """The result in a reply; raises the error that it reports, or UpstreamFailed if it is no reply of a node's."""
    try:
        envelope = _envelopes.decode(body)
    except _MALFORMED as exc:
        if status == 503:  # a server that is full says so in its own words, before the node hears of the request
            raise RateLimited("The node has too many connections", 1.0) from exc
        raise UpstreamFailed(f"HTTP {status}, but not as a Fabric node answers: is this the right URL?") from exc
    return _outcome(envelope, retry_after)


def read_event(frame: bytes) -> StreamEvent | None:
    """One event of a stream, None for a kind that is not known here. A failed `final` raises what it reports."""
    try:
        said = _frames.decode(frame)
        if said.event == "final":
            outcome = _outcome(msgspec.convert({**said.data, "trace": said.trace}, _Envelope))
            return as_final(outcome)
    except (*_MALFORMED, msgspec.ValidationError) as exc:
        raise UpstreamFailed(f"An event is not as a Fabric node sends it: {exc}"[:300]) from exc
    if said.event not in EVENT_KINDS:
        return None
    data = {key: value for key, value in said.data.items() if key != "trace"}
    return StreamEvent(kind=said.event, data=data, trace=said.trace, number=said.number, at=said.at)  # type: ignore[arg-type]  # one of EVENT_KINDS


def as_final(result: CallResult) -> StreamEvent:
    return StreamEvent(
        kind="final",
        data=result.data,
        trace=result.trace,
        fallback=result.fallback,
        job_id=result.job_id,
        parts=result.parts,
        notes=result.notes,
    )


def _outcome(envelope: _Envelope, retry_after: str | None = None) -> CallResult:
    if not envelope.ok:
        raise _error(envelope, retry_after)
    return CallResult(
        data=envelope.result or {},
        trace=envelope.trace,
        fallback=envelope.fallback,
        job_id=envelope.job_id,
        parts=envelope.parts,
        notes=envelope.notes,
    )


def _error(envelope: _Envelope, retry_after: str | None) -> FabricError:
    """Both forms of error are understood: a sentence with a code beside it, or an object."""
    said = envelope.error if isinstance(envelope.error, dict) else {}
    code = envelope.error_code or said.get("code") or "UPSTREAM_ERROR"
    message = said.get("message") or (envelope.error if isinstance(envelope.error, str) else "The call failed")
    details = envelope.error_details or said.get("details") or {}
    if code == RateLimited.code and "retry_after" not in details and (retry_after or "").isdigit():
        details["retry_after"] = int(retry_after or 1)
    error = error_by_code(str(code), str(message), details)
    error.trace_id = envelope.trace.trace_id
    return error
