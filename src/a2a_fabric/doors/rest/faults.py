"""What went wrong, in the document's words: one table from our errors to codes and to HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.errors import (
    AgentError,
    AgentNotFound,
    AgentOffline,
    AllAttemptsFailed,
    AuthExpired,
    AuthInvalid,
    BadInput,
    CallTimeout,
    CapabilityNotFound,
    Conflict,
    FabricError,
    Forbidden,
    PayloadTooLarge,
    RateLimited,
    Unauthenticated,
)
from a2a_fabric.core.job import JobError
from a2a_fabric.core.store_errors import JobCancelled, JobNotFound, StoreError
from a2a_fabric.doors.rest import wire
from a2a_fabric.messages.errors import ConversationNotFound, MessageNotFound

_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)
_MISSING = re.compile(r"Object missing required field `(.+)`")


class AlreadyEnded(Conflict):
    """What is over cannot be cancelled."""


class MethodNotAllowed(BadInput):
    def __init__(self, verbs: str) -> None:
        super().__init__(f"Use {verbs} here", allow=verbs)
        self.verbs = verbs


class NothingHere(BadInput):
    pass


class WrongType(BadInput):
    pass


class TooSlow(BadInput):
    pass


class NotAcceptable(BadInput):
    pass


class Row(NamedTuple):
    status: int
    code: str


_NOT_FOUND = Row(404, "NOT_FOUND")
_DENIED = Row(401, "UNAUTHORIZED")
_OUTAGE = Row(503, "INTERNAL_ERROR")

# The first row that matches wins.
_ROWS: dict[type[FabricError], Row] = {
    Unauthenticated: _DENIED,
    AuthInvalid: _DENIED,
    AuthExpired: _DENIED,
    Forbidden: Row(403, "FORBIDDEN"),
    RateLimited: Row(429, "RATE_LIMITED"),
    PayloadTooLarge: Row(413, "PAYLOAD_TOO_LARGE"),
    AgentNotFound: _NOT_FOUND,
    CapabilityNotFound: _NOT_FOUND,
    JobNotFound: _NOT_FOUND,
    MessageNotFound: _NOT_FOUND,
    ConversationNotFound: _NOT_FOUND,
    NothingHere: _NOT_FOUND,
    AlreadyEnded: Row(409, "INVALID_REQUEST"),
    Conflict: Row(409, "CONFLICT"),
    JobCancelled: Row(409, "CONFLICT"),
    MethodNotAllowed: Row(405, "INVALID_REQUEST"),
    WrongType: Row(415, "INVALID_REQUEST"),
    TooSlow: Row(408, "INVALID_REQUEST"),
    NotAcceptable: Row(406, "INVALID_REQUEST"),
    BadInput: Row(400, "INVALID_REQUEST"),
    CallTimeout: Row(504, "INTERNAL_ERROR"),
    AgentOffline: _OUTAGE,
    AllAttemptsFailed: _OUTAGE,
    StoreError: _OUTAGE,
    AgentError: Row(502, "INTERNAL_ERROR"),
}
_BUG = Row(500, "INTERNAL_ERROR")


@contextmanager
def used_once(given_id: str | None, key: str | None, what: str) -> Iterator[None]:
    """Raises Conflict in the caller's words: of an id or a key that stands for something else already."""
    try:
        yield
    except Conflict as exc:
        field, name = ("id", given_id) if given_id is not None else ("Idempotency-Key", key)
        if name is None:
            raise
        issue = f"used for another {what}"
        raise Conflict(f"{field} '{name[:64]}' was {issue}; take a new one", field=field, issue=issue) from exc


def row_of(error: FabricError) -> Row:
    return next((row for kind, row in _ROWS.items() if isinstance(error, kind)), _BUG)


def body_of(error: FabricError) -> wire.Error:
    """`reason` is the code that is the same on every door."""
    details = {**told(error.details), "reason": error.reason}
    return wire.Error(error=wire.Fault(code=row_of(error).code, message=speakable(error.message), details=details))


def task_error(error: JobError) -> wire.TaskError:
    return wire.TaskError(code=error.code, message=error.message, details=error.details)


def told(details: dict[str, Any]) -> dict[str, Any]:
    """Agents in this process may put anything into an error."""
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details))
    except _NOT_JSON:
        return {}
    return found


def speakable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def invalid(exc: Exception) -> BadInput:
    """What msgspec says of a body or a query, as field and issue."""
    words, _, place = str(exc).partition(" - at `$")
    field = place.removeprefix(".").removesuffix("`")
    missing = _MISSING.match(words)
    if missing is not None:
        field = f"{field}.{missing[1]}" if field else missing[1]
        return BadInput(f"{field} is required", field=field, issue="required")
    return BadInput(f"{field}: {words}" if field else words, field=field or None, issue=words)
