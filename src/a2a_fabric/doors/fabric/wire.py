"""Fabric's replies: the envelope of document 000, in both forms of error, and the frames of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.errors import (
    AuthExpired,
    AuthInvalid,
    FabricError,
    Forbidden,
    InternalError,
    PayloadTooLarge,
    RateLimited,
    Unauthenticated,
)
from a2a_fabric.core.events import Event
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace

ErrorFormat = Literal["string", "object"]

_encode = msgspec.json.Encoder().encode

# Everything an agent or tool did or would not do is a 200 with `ok: false`; these concern the request itself.
_STATUS: dict[type[FabricError], int] = {
    Unauthenticated: 401,
    AuthInvalid: 401,
    AuthExpired: 401,
    PayloadTooLarge: 413,
    RateLimited: 429,
    InternalError: 500,
}


class WireRequest(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Reply(msgspec.Struct):
    ok: bool
    trace: Trace
    result: dict[str, Any]
    error: None = None


def reply(result: Result, trace: Trace, *, beside: bool) -> bytes:
    """`beside` also puts the result's keys next to the envelope's, where older clients look for them."""
    if not beside and result.fallback is None:
        return _encode(_Reply(True, trace, result.data))
    envelope: dict[str, Any] = {"ok": True, "trace": trace, "result": result.data, "error": None}
    if result.fallback is not None:
        envelope["fallback"] = result.fallback
    return _encode({**result.data, **envelope} if beside else envelope)


def failure(error: FabricError, trace: Trace, form: ErrorFormat) -> bytes:
    return _encode(
        {
            "ok": False,
            "trace": trace,
            "result": None,
            "error": error.message if form == "string" else error_object(error),
            "error_code": error.code,
            "error_details": error.details,
        }
    )


def error_object(error: FabricError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "details": error.details}


def http_status(error: FabricError) -> int:
    if isinstance(error, Forbidden) and "tool_error" not in error.details:
        return 403
    return _STATUS.get(type(error), 200)


def frame(event: Event, trace: Trace, number: int) -> bytes:
    """One event as a frame: the name both as a field and inside the JSON, since older clients read only `data`."""
    body = {"event": event.kind, "data": {**event.data, "trace": trace}, "trace": trace}
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.kind.encode(), number, _encode(body))


def final_frame(outcome: Result | FabricError, trace: Trace, number: int) -> bytes:
    """The frame that closes a stream; `answer` and `citations` are copied up for clients of the first document."""
    if isinstance(outcome, FabricError):
        data: dict[str, Any] = {"ok": False, "result": None, "error": error_object(outcome), "trace": trace}
    else:
        data = {"ok": True, "result": outcome.data, "trace": trace}
        data |= {key: outcome.data[key] for key in ("answer", "citations") if key in outcome.data}
        if outcome.fallback is not None:
            data["fallback"] = outcome.fallback
    body = {"event": "final", "data": data, "trace": trace}
    return b"event: final\nid: %d\ndata: %b\n\n" % (number, _encode(body))
