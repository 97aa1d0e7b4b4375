"""Fabric's replies: the envelope of document 000, in both forms of error, and the frames of a stream."""

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
    error_by_code,
)
from a2a_fabric.core.events import EVENT_KINDS, Event
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace

ErrorFormat = Literal["string", "object"]

_encode = msgspec.json.Encoder().encode
_KINDS = {kind: kind.encode() for kind in EVENT_KINDS}
_FRAME = b'event: %b\nid: %d\ndata: {"event":"%b","data":%b,"trace":%b},"trace":%b}\n\n'
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)

# Everything an agent or tool did or would not do is a 200 with `ok: false`; these concern the request itself, and
# when it may be sent again.
_STATUS: dict[type[FabricError], int] = {
    Unauthenticated: 401,
    AuthInvalid: 401,
    AuthExpired: 401,
    PayloadTooLarge: 413,
    RateLimited: 429,
    AgentBusy: 429,
    InternalError: 500,
}


class WireRequest(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class SocketRequest(msgspec.Struct):
    """One message of a WebSocket: a request under an id of the caller's, or the end of one."""

    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | int | None = None
    cancel: bool = False


class _Reply(msgspec.Struct):
    ok: bool
    trace: Trace
    result: dict[str, Any]
    error: None = None


def reply(result: Result, trace: Trace, *, beside: bool) -> bytes:
    """`beside` also puts the result's keys next to the envelope's, where older clients look for them."""
    more = _beside_the_answer(result)
    if not beside and not more:
        return encoded(_Reply(True, trace, result.data))
    envelope = {"ok": True, "trace": trace, "result": result.data, "error": None, **more}
    return encoded({**result.data, **envelope} if beside else envelope)


def _beside_the_answer(result: Result) -> dict[str, Any]:
    """What a result holds besides its JSON, as far as it does; nearly all hold nothing."""
    if result.fallback is None and not result.parts and result.job_id is None and not result.notes:
        return {}
    told = {"parts": result.parts, "notes": result.notes, "fallback": result.fallback, "job_id": result.job_id}
    return {name: value for name, value in told.items() if value}


def encoded(reply: Any) -> bytes:
    """Raises UpstreamFailed: agents in this process may answer with what JSON cannot hold."""
    try:
        return _encode(reply)
    except _NOT_JSON as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc


def failure(error: FabricError, trace: Trace, form: ErrorFormat, *, detail: bool = False) -> bytes:
    """`detail` says the sentence once more under that key, where some clients of single pages look for it."""
    error = _speakable(error)
    return _encode(
        {
            "ok": False,
            "trace": trace,
            "result": None,
            "error": error.message if form == "string" else error_object(error),
            "error_code": error.code,
            "error_details": error.details,
            **({"detail": error.message, "success": False} if detail else {}),
        }
    )


def _speakable(error: FabricError) -> FabricError:
    """Agents in this process may put anything into an error; what JSON cannot hold is left out."""
    try:
        _encode(error_object(error))
    except _NOT_JSON:
        return error_by_code(error.code, error.message.encode("utf-8", "replace").decode())
    return error


def error_object(error: FabricError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "details": error.details}


def http_status(error: FabricError) -> int:
    if isinstance(error, Forbidden) and "tool_error" not in error.details:
        return 403
    return _STATUS.get(type(error), 200)


def once(trace: Trace) -> msgspec.Raw:
    """A trace encoded for many events."""
    return msgspec.Raw(encoded(trace))


def event_body(event: Event, trace: Trace | msgspec.Raw) -> dict[str, Any]:
    """The trace stands inside `data`, where the document shows it, and beside it, where clients look.

    An event of a job's log also says its number there, and when it was written.
    """
    body: dict[str, Any] = {"event": event.kind, "data": {**event.data, "trace": trace}, "trace": trace}
    return {**body, "number": event.number, "at": event.at} if event.number else body


def final_body(outcome: Result | FabricError, trace: Trace | msgspec.Raw) -> dict[str, Any]:
    """What closes a stream; `answer` and `citations` are copied up for clients of the first document."""
    if isinstance(outcome, FabricError):
        outcome = _speakable(outcome)
        data: dict[str, Any] = {"ok": False, "result": None, "error": error_object(outcome), "trace": trace}
    else:
        data = {"ok": True, "result": outcome.data, "trace": trace}
        data |= {key: outcome.data[key] for key in ("answer", "citations") if key in outcome.data}
        data |= _beside_the_answer(outcome)
    return {"event": "final", "data": data, "trace": trace}


def event_frame(event: Event, trace: bytes, number: int) -> bytes:
    """The frame of `event_body`, as quickly as it goes: a stream is made of these."""
    kind, data = _KINDS[event.kind], encoded(event.data)
    if len(data) == 2 or "trace" in event.data or event.number:
        return frame(event_body(event, msgspec.Raw(trace)), number)
    return _FRAME % (kind, number, kind, data[:-1], trace, trace)


def frame(body: dict[str, Any], number: int) -> bytes:
    """A server-sent event; its name stands also inside the JSON, since older clients read only `data`."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (body["event"].encode(), number, encoded(body))


def message(body: dict[str, Any], request_id: str | int | None) -> str:
    """The same body as a WebSocket message, under the id of the request it belongs to."""
    return encoded({"id": request_id, **body}).decode()
