"""The client's side of the wire: requests, results, events, errors, and the rule for when a request is sent again.

A request is repeated only if it certainly did not run, or if running it twice changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.call import Attachment, attachment_from_part
from a2a_fabric.core.errors import (
    CallTimeout,
    FabricError,
    RateLimited,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_code,
)
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.result import EVENT_KINDS, EventKind, Fallback, Part
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, OutboundError, ReplyTooLarge


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's answer and its trace; `fallback` says which agent answered, if it was another than requested."""

    data: dict[str, Any]
    trace: Trace
    fallback: Fallback | None = None
    job_id: str | None = None  # set if there is no answer yet: the call continues as this job
    parts: tuple[Part, ...] = ()  # images, files, links
    notes: tuple[str, ...] = ()  # what could not be passed on

    @property
    def answer(self) -> str | None:
        """The text of the answer, if it has any."""
        answer = self.data.get("answer")
        return answer if isinstance(answer, str) else None


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a call; the last one is `final`, and its data is the result."""

    kind: EventKind | Literal["final"]
    data: dict[str, Any]
    trace: Trace
    fallback: Fallback | None = None  # in `final` only
    job_id: str | None = None  # in `final` only: the call continues as this job
    parts: tuple[Part, ...] = ()  # in `final` only
    notes: tuple[str, ...] = ()  # in `final` only
    number: int = 0  # in a job's log; a reader that continues after it misses nothing
    at: float = 0.0  # when it was stored, in seconds since 1970

    @property
    def text(self) -> str:
        """The text of a token event; empty for other kinds."""
        return str(self.data.get("text", "")) if self.kind == "token" else ""

    @property
    def result(self) -> CallResult:
        """For the `final` event: what a plain call would have returned."""
        return CallResult(**{name: getattr(self, name) for name in CallResult.__struct_fields__})


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
    """The attachments of a request; None if there are none."""
    return [attachment_from_part(each) if isinstance(each, Part) else each for each in content] or None


def read_reply(status: int, body: bytes, retry_after: str | None = None) -> CallResult:
    """The result in a reply. Raises the error it reports, or UpstreamFailed if it does not come from a node."""
    try:
        envelope = _envelope_decoder.decode(body)
    except _MALFORMED as exc:
        if status == 503:  # a server at its connection limit answers before the node sees the request
            raise RateLimited("The node has too many connections", 1.0) from exc
        hint = ", and does the node have a door of kind `fabric`" if status in (404, 405) else ""
        raise UpstreamFailed(
            f"The reply (HTTP {status}) is not one of a Fabric node: is this the right URL{hint}?"
        ) from exc
    return _result_from_envelope(envelope, retry_after)


def read_event(frame: bytes) -> StreamEvent | None:
    """One event of a stream; None for an unknown kind. A failed `final` raises the error it reports."""
    try:
        decoded = _frame_decoder.decode(frame)
        if decoded.event == "final":
            result = _result_from_envelope(msgspec.convert({**decoded.data, "trace": decoded.trace}, _Envelope))
            return final_event_from_result(result)
    except (*_MALFORMED, msgspec.ValidationError) as exc:
        raise UpstreamFailed(f"The stream holds an event that no Fabric node sends: {exc}"[:300]) from exc
    if decoded.event not in EVENT_KINDS:
        return None
    data = {key: value for key, value in decoded.data.items() if key != "trace"}
    return StreamEvent(kind=decoded.event, data=data, trace=decoded.trace, number=decoded.number, at=decoded.at)  # type: ignore[arg-type]  # one of EVENT_KINDS


def final_event_from_result(result: CallResult) -> StreamEvent:
    return StreamEvent(kind="final", **msgspec.structs.asdict(result))


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
    """Reads both forms of error: a sentence with a code beside it, or an object."""
    error_object = envelope.error if isinstance(envelope.error, dict) else {}
    code = envelope.error_code or error_object.get("code") or "UPSTREAM_ERROR"
    message = error_object.get("message") or (envelope.error if isinstance(envelope.error, str) else "The call failed")
    details = envelope.error_details or error_object.get("details") or {}
    if code == RateLimited.code and "retry_after" not in details and (retry_after or "").isdigit():
        details["retry_after"] = int(retry_after or 1)
    error = error_from_code(str(code), str(message), details)
    error.trace_id = envelope.trace.trace_id
    return error


class NodeUnreachable(FabricError):
    """No node answers at this URL; nothing was sent."""

    code = "NODE_UNREACHABLE"

    def __init__(self, url: str, reason: str = "") -> None:
        super().__init__(_unreachable_message(url, reason), url=url, reason=reason[:300] or None)


def _unreachable_message(url: str, reason: str) -> str:
    if "WRONG_VERSION_NUMBER" in reason:
        return f"The server at {url} does not use TLS. Try http:// instead of https://"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"The certificate of {url} is not trusted here ({reason[:200]}). Set SSL_CERT_FILE to its authority"
    if is_loopback(urlsplit(url).hostname or ""):
        return f"No node at {url}. Start one with: a2a-fabric up"
    return f"No node at {url}" + (f": {reason[:200]}" if reason else "")


def error_from_transport(error: OutboundError, url: str, timeout: float) -> FabricError:
    """The error for the caller. NodeUnreachable means that the request certainly did not run."""
    if isinstance(error, ConnectFailed):
        return NodeUnreachable(url, str(error))
    if isinstance(error, DeadlineExceeded):
        return CallTimeout(timeout, url=url)
    if isinstance(error, ReplyTooLarge):
        return UpstreamRefused(f"The answer of {url} is too large: {error}", url=url)
    return UpstreamInterrupted(f"The connection to {url} broke before the answer arrived: {error}"[:500], url=url)


MAX_ATTEMPTS = 3
_FIRST_PAUSE = 0.1  # seconds, doubled each time: a restarting node is back soon
_MAX_WAIT = 30.0


def pause_before_retry(error: FabricError, attempt: int, *, read_only: bool) -> float | None:
    """Seconds to wait before attempt number `attempt` + 1; None to give up."""
    if attempt >= MAX_ATTEMPTS:
        return None
    if isinstance(error, RateLimited):  # refused before it ran
        return error.retry_after if 0 <= error.retry_after <= _MAX_WAIT else None
    if isinstance(error, NodeUnreachable) or (read_only and isinstance(error, UpstreamInterrupted)):
        return float(_FIRST_PAUSE * 2 ** (attempt - 1))
    return None
