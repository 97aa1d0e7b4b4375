"""Errors in this client's numbers, each with the status that it looks at."""

from __future__ import annotations

from typing import Any, NamedTuple

from a2a_fabric.core.errors import AuthExpired, AuthInvalid, BadInput, Conflict, FabricError, Forbidden, Unauthenticated
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.doors.rest import faults

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
UNAUTHENTICATED, FORBIDDEN, FAILED = -32001, -32002, -32000
NO_PUSH_CONFIG, INVALID_STATE, TASK_NOT_FOUND, TASK_COMPLETED, TASK_CANCELED, TASK_FAILED = (
    -32005, -32010, -32011, -32012, -32013, -32014,
)  # fmt: skip


class Fault(Exception):
    """An error as it is told."""

    def __init__(self, code: int, message: str, status: int, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.data = data


class NoPushConfig(BadInput):
    pass


class InvalidState(Conflict):
    pass


class _Row(NamedTuple):
    code: int
    status: int = 0  # 0: as in the rest of the door


# The first row that matches wins.
_ROWS: dict[type[FabricError], _Row] = {
    Unauthenticated: _Row(UNAUTHENTICATED),
    AuthInvalid: _Row(UNAUTHENTICATED),
    AuthExpired: _Row(UNAUTHENTICATED),
    Forbidden: _Row(FORBIDDEN),
    JobNotFound: _Row(TASK_NOT_FOUND),
    NoPushConfig: _Row(NO_PUSH_CONFIG, 404),
    InvalidState: _Row(INVALID_STATE),
    faults.AlreadyEnded: _Row(TASK_COMPLETED),
    faults.NothingHere: _Row(METHOD_NOT_FOUND),
    BadInput: _Row(INVALID_PARAMS),
}


def fault_of(error: FabricError) -> Fault:
    row = next((row for kind, row in _ROWS.items() if isinstance(error, kind)), None)
    told = faults.row_of(error)
    body = faults.body_of(error).error
    code = row.code if row is not None else INTERNAL_ERROR if told.status == 500 else FAILED
    status = (row.status if row is not None else 0) or told.status
    return Fault(code, body.message, status, {**body.details, "code": body.code})
