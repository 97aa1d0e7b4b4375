"""What a door replies to a request: a body or an error, with its HTTP status and headers."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from a2a_fabric.core import errors
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.doors.context import Send
from a2a_fabric.messages.conversations import ConversationNotFound, MessageNotFound

HeaderList = list[tuple[bytes, bytes]]
JSON_MEDIA_TYPE = b"application/json"
JSON_ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)
BODILESS_STATUSES = (204, 304)
REFUSED_HEADER = "x-fabric-refused"  # of a reply to another node or worker: the request was not looked at
_EVENT_MEDIA_TYPES = ("text/event-stream", "text/*", "*/*")
_MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")
_CHALLENGE = b'Bearer realm="fabric"'
_SCOPE = re.compile(r"[!#-\[\]-~]{1,256}")  # RFC 6749, section 3.3


class RefusedRequest(BadInput):
    """A request that no door accepts. Every door answers with `status`."""

    status: ClassVar[int] = 400


class MethodNotAllowed(RefusedRequest):
    code = "METHOD_NOT_ALLOWED"
    status = 405

    def __init__(self, allowed_methods: str) -> None:
        super().__init__(f"Use {allowed_methods} here", allow=allowed_methods)


class UnsupportedContentType(RefusedRequest):
    status = 415

    def __init__(self, content_type: str) -> None:
        super().__init__(f"The content type must be application/json, not '{content_type[:80]}'")


class BodyTimeout(RefusedRequest):
    status = 408

    def __init__(self) -> None:
        super().__init__("The request body did not arrive in time")


# The first row that matches wins.
_HTTP_STATUS: dict[type[FabricError], int] = {
    errors.Unauthenticated: 401,
    errors.AuthInvalid: 401,
    errors.AuthExpired: 401,
    errors.Forbidden: 403,
    errors.RateLimited: 429,
    errors.PayloadTooLarge: 413,
    errors.AgentNotFound: 404,
    errors.CapabilityNotFound: 404,
    errors.JobNotFound: 404,
    MessageNotFound: 404,
    ConversationNotFound: 404,
    errors.Conflict: 409,
    errors.JobCancelled: 409,
    errors.BadInput: 400,
    errors.CallTimeout: 504,
    errors.AgentOffline: 503,
    errors.AllAttemptsFailed: 503,
    errors.StoreError: 503,
    errors.AgentError: 502,
}


def find_http_status(error: FabricError) -> int:
    """The status at every door that reports errors of agents as a status."""
    if isinstance(error, RefusedRequest):
        return error.status
    return next((status for kind, status in _HTTP_STATUS.items() if isinstance(error, kind)), 500)


class DoorError(Exception):
    """An error in the terms of one door's protocol. `log_code` is the code of the same error at every door."""

    message: str
    log_code: str = "BAD_INPUT"
    retry_after: float | None = None


class HttpReply(msgspec.Struct, frozen=True, kw_only=True):
    """With an `etag`, a client that has this version already receives 304 and no body."""

    body: bytes
    status: int = 200
    headers: HeaderList = []
    media_type: bytes = JSON_MEDIA_TYPE
    etag: str | None = None
    last_modified: str | None = None


class ErrorReply(NamedTuple):
    """An error as a door renders it; `code` and `message` are for the log."""

    status: int
    body: bytes
    code: str
    message: str


async def send_reply(
    send: Send, status: int, body: bytes, headers: HeaderList, media_type: bytes = JSON_MEDIA_TYPE
) -> None:
    has_body = status not in BODILESS_STATUSES
    content_headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))] if has_body else []
    await send({"type": "http.response.start", "status": status, "headers": [*content_headers, *headers]})
    await send({"type": "http.response.body", "body": body if has_body else b""})


def client_address(scope: Any) -> str:
    """The address from which the request came: that of the client, or of the last proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""


async def reject_handshake(send: Send, status: int, body: bytes, headers: HeaderList) -> None:
    """Refuse to open a WebSocket, with an HTTP reply."""
    content_headers = [(b"content-type", JSON_MEDIA_TYPE), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": [*content_headers, *headers]})
    await send({"type": "websocket.http.response.body", "body": body})


def build_error_headers(error: Exception, status: int, allowed_methods: str = "") -> HeaderList:
    """The headers that tell a refused client what to do next."""
    headers: HeaderList = []
    if status == 401:
        headers.append((b"www-authenticate", _CHALLENGE))
    refusal = error if isinstance(error, errors.OutOfScope) else error.__cause__  # the cause of a door's own error
    if status == 403 and isinstance(refusal, errors.OutOfScope):
        headers.append((b"www-authenticate", _build_scope_challenge(refusal.scope)))
    if status == 405:
        headers.append((b"allow", allowed_methods.encode()))
    retry_after = getattr(error, "retry_after", None)  # of RateLimited, and of a DoorError made from it
    if isinstance(retry_after, int | float):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after))))
    return headers


def _build_scope_challenge(scope: str | None) -> bytes:
    """RFC 6750, section 3.1. A scope may hold a name that the caller chose; one that no header can hold is left out."""
    named = f', scope="{scope}"' if scope is not None and _SCOPE.fullmatch(scope) else ""
    return _CHALLENGE + f', error="insufficient_scope"{named}'.encode("ascii")


def accepts_events(accept: str | None) -> bool:
    """Whether a client that sent this Accept header reads server-sent events."""
    return accept is None or any(media_type in accept for media_type in _EVENT_MEDIA_TYPES)


def compute_etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    tags = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return etag in tags or "*" in tags


def to_encodable_text(text: str) -> str:
    """Without the halves of characters that JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


def to_json_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Agents in this process may put anything into an error; details that are not JSON are left out."""
    try:
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details))
    except JSON_ENCODE_ERRORS:
        return {}
    return decoded


def split_validation_error(exc: Exception) -> tuple[str, str]:
    """The field that msgspec names in an error, and what it says of it."""
    message, _, path = str(exc).partition(" - at `$")
    return path.removeprefix(".").removesuffix("`"), message


def bad_input_from(exc: Exception) -> BadInput:
    """An error of msgspec about a body or a query, as field and issue."""
    field_path, message = split_validation_error(exc)
    missing = _MISSING_FIELD.match(message)
    if missing is not None:
        field_path = f"{field_path}.{missing[1]}" if field_path else missing[1]
        return BadInput(f"{field_path} is required", field=field_path, issue="required")
    return BadInput(f"{field_path}: {message}" if field_path else message, field=field_path or None, issue=message)
