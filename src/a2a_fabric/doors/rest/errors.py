"""Errors of the REST door: one table from Fabric errors to error codes and HTTP statuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

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
    JobCancelled,
    JobNotFound,
    PayloadTooLarge,
    RateLimited,
    StoreError,
    Unauthenticated,
)
from a2a_fabric.doors.edge import RefusedRequest, to_encodable_text, to_json_details
from a2a_fabric.doors.rest import models
from a2a_fabric.messages.conversations import ConversationNotFound, MessageNotFound

CREDENTIAL_ERRORS = (Unauthenticated, AuthInvalid, AuthExpired, Forbidden)


class TaskAlreadyEnded(Conflict):
    """A task that has ended cannot be cancelled."""


class ResourceNotFound(BadInput):
    pass


class RestErrorRow(NamedTuple):
    status: int
    code: str


_NOT_FOUND_ROW = RestErrorRow(404, "NOT_FOUND")
_UNAUTHORIZED_ROW = RestErrorRow(401, "UNAUTHORIZED")
_UNAVAILABLE_ROW = RestErrorRow(503, "INTERNAL_ERROR")

# The first row that matches wins.
_ERROR_TABLE: dict[type[FabricError], RestErrorRow] = {
    Unauthenticated: _UNAUTHORIZED_ROW,
    AuthInvalid: _UNAUTHORIZED_ROW,
    AuthExpired: _UNAUTHORIZED_ROW,
    Forbidden: RestErrorRow(403, "FORBIDDEN"),
    RateLimited: RestErrorRow(429, "RATE_LIMITED"),
    PayloadTooLarge: RestErrorRow(413, "PAYLOAD_TOO_LARGE"),
    AgentNotFound: _NOT_FOUND_ROW,
    CapabilityNotFound: _NOT_FOUND_ROW,
    JobNotFound: _NOT_FOUND_ROW,
    MessageNotFound: _NOT_FOUND_ROW,
    ConversationNotFound: _NOT_FOUND_ROW,
    ResourceNotFound: _NOT_FOUND_ROW,
    TaskAlreadyEnded: RestErrorRow(409, "INVALID_REQUEST"),
    Conflict: RestErrorRow(409, "CONFLICT"),
    JobCancelled: RestErrorRow(409, "CONFLICT"),
    BadInput: RestErrorRow(400, "INVALID_REQUEST"),
    CallTimeout: RestErrorRow(504, "INTERNAL_ERROR"),
    AgentOffline: _UNAVAILABLE_ROW,
    AllAttemptsFailed: _UNAVAILABLE_ROW,
    StoreError: _UNAVAILABLE_ROW,
    AgentError: RestErrorRow(502, "INTERNAL_ERROR"),
}
_INTERNAL_ERROR_ROW = RestErrorRow(500, "INTERNAL_ERROR")


@contextmanager
def translate_conflict(own_id: str | None, key: str | None, resource: str) -> Iterator[None]:
    """Name the id or the key of the caller's that was used before. Raises Conflict."""
    try:
        yield
    except Conflict as exc:
        field, name = ("id", own_id) if own_id is not None else ("Idempotency-Key", key)
        if name is None:
            raise
        issue = f"used for another {resource}"
        raise Conflict(f"{field} '{name[:64]}' was {issue}; take a new one", field=field, issue=issue) from exc


def find_row(error: FabricError) -> RestErrorRow:
    if isinstance(error, RefusedRequest):
        return RestErrorRow(error.status, "INVALID_REQUEST")
    return next((row for kind, row in _ERROR_TABLE.items() if isinstance(error, kind)), _INTERNAL_ERROR_ROW)


def build_error_body(error: FabricError) -> models.Error:
    """`reason` is the code that is the same on every door."""
    details = {**to_json_details(error.details), "reason": error.reason}
    return models.Error(
        error=models.Fault(code=find_row(error).code, message=to_encodable_text(error.message), details=details)
    )
