"""The envelope of Fabric's requests, replies and errors, and the frames of an event stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.errors import (
    AgentBusy,
    AuthExpired,
    AuthInvalid,
    FabricError,
    Forbidden,
    InternalError,
    PayloadTooLarge,
    RateLimited,
    Unauthenticated,
    UpstreamFailed,
    error_from_code,
)
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.edge import JSON_ENCODE_ERRORS, RefusedRequest, to_encodable_text

ErrorFormat = Literal["string", "object"]

_encode = msgspec.json.Encoder().encode
_ENCODED_KINDS = {kind: kind.encode() for kind in EVENT_KINDS}
_FRAME_TEMPLATE = b'event: %b\nid: %d\ndata: {"event":"%b","data":%b,"trace":%b},"trace":%b}\n\n'

# What an agent or tool did or refused is a 200 with `ok: false`. These errors concern the request itself.
_HTTP_STATUS: dict[type[FabricError], int] = {
    Unauthenticated: 401,
    AuthInvalid: 401,
    AuthExpired: 401,
    PayloadTooLarge: 413,
    RateLimited: 429,
    AgentBusy: 429,
    InternalError: 500,
}


class FabricRequest(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class FabricSocketRequest(msgspec.Struct):
    """One message of a WebSocket: a request with an id that the client chose, or the cancellation of one."""

    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | int | None = None
    cancel: bool = False


class _SuccessEnvelope(msgspec.Struct):
    ok: bool
    trace: Trace
    result: dict[str, Any]
    error: None = None


def encode_reply(result: Result, trace: Trace, *, flatten: bool) -> bytes:
    """`flatten` also puts the result's keys beside the envelope's, where older clients look for them."""
    extras = _collect_extras(result)
    if not flatten and not extras:
        return encode_json(_SuccessEnvelope(True, trace, result.data))
    envelope = {"ok": True, "trace": trace, "result": result.data, "error": None, **extras}
    return encode_json({**result.data, **envelope} if flatten else envelope)


def _collect_extras(result: Result) -> dict[str, Any]:
    """What a result holds besides its JSON; most results hold nothing else."""
    if result.fallback is None and not result.parts and result.job_id is None and not result.notes:
        return {}
    candidates = {"parts": result.parts, "notes": result.notes, "fallback": result.fallback, "job_id": result.job_id}
    return {name: value for name, value in candidates.items() if value}


def encode_json(value: Any) -> bytes:
    """Raises UpstreamFailed: agents in this process may answer with what JSON cannot hold."""
    try:
        return _encode(value)
    except JSON_ENCODE_ERRORS as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


def encode_error(error: FabricError, trace: Trace, error_format: ErrorFormat, *, with_detail: bool = False) -> bytes:
    """`with_detail` repeats the sentence under `detail`, where some clients of single endpoints look for it."""
    error = _to_encodable_error(error)
    return _encode(
        {
            "ok": False,
            "trace": trace,
            "result": None,
            "error": error.message if error_format == "string" else build_error_object(error),
            "error_code": error.code,
            "error_details": error.details,
            **({"detail": error.message, "success": False} if with_detail else {}),
        }
    )


def _to_encodable_error(error: FabricError) -> FabricError:
    """Agents in this process may put anything into an error; details that are not JSON are left out."""
    try:
        _encode(build_error_object(error))
    except JSON_ENCODE_ERRORS:
        return error_from_code(error.code, to_encodable_text(error.message))
    return error


def build_error_object(error: FabricError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "details": error.details}


def find_http_status(error: FabricError) -> int:
    if isinstance(error, RefusedRequest):
        return error.status
    if isinstance(error, Forbidden) and "tool_error" not in error.details:
        return 403
    return _HTTP_STATUS.get(type(error), 200)


def build_event_body(event: Event, trace: Trace | msgspec.Raw) -> dict[str, Any]:
    """The trace is inside `data`, as the protocol says, and beside it, where clients look for it.

    An event from the log of a job also has its number and the time at which it was written.
    """
    body: dict[str, Any] = {"event": event.kind, "data": {**event.data, "trace": trace}, "trace": trace}
    return {**body, "number": event.number, "at": event.at} if event.number else body


def build_final_body(outcome: Result | FabricError, trace: Trace | msgspec.Raw) -> dict[str, Any]:
    """The last event of a stream; `answer` and `citations` are also at the top level, for older clients."""
    if isinstance(outcome, FabricError):
        outcome = _to_encodable_error(outcome)
        data: dict[str, Any] = {"ok": False, "result": None, "error": build_error_object(outcome), "trace": trace}
    else:
        data = {"ok": True, "result": outcome.data, "trace": trace}
        data |= {key: outcome.data[key] for key in ("answer", "citations") if key in outcome.data}
        data |= _collect_extras(outcome)
    return {"event": "final", "data": data, "trace": trace}


def encode_event_frame(event: Event, trace: bytes, number: int) -> bytes:
    """The frame of `build_event_body`, for the hot path: most frames need no dict."""
    kind, data = _ENCODED_KINDS[event.kind], encode_json(event.data)
    if len(data) == 2 or "trace" in event.data or event.number:
        return encode_frame(build_event_body(event, msgspec.Raw(trace)), number)
    return _FRAME_TEMPLATE % (kind, number, kind, data[:-1], trace, trace)


def encode_frame(body: dict[str, Any], number: int) -> bytes:
    """A server-sent event. Its name is also inside the JSON, because older clients read only `data`."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (body["event"].encode(), number, encode_json(body))
