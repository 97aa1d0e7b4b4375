"""What our handlers want to know of a request that the SDK hands them: who asks, in which era, over what."""

from __future__ import annotations

from typing import Any

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request as WebRequest

from a2a_fabric.core.trace import Trace, current_trace
from a2a_fabric.doors.mcp.visit import Visit

VISIT = "fabric.mcp.visit"  # where the scope of an HTTP request holds its Visit
RESOURCE_NOT_FOUND = -32002  # before 2026

Context = ServerRequestContext[Any, Any]

# What a client may be asked for.
_ANSWERS = {"elicitation", "roots", "sampling"}


def visit_of(ctx: Context) -> Visit:
    """HTTP requests carry it in their scope, conversations with each message."""
    carrier = ctx.request
    visit = carrier.scope[VISIT] if isinstance(carrier, WebRequest) else carrier
    assert isinstance(visit, Visit)  # noqa: S101  # every way in sets it
    return visit


def connection_of(ctx: Context) -> Connection:
    """The SDK hands out a session per request and no public way to what outlives it."""
    return ctx.session._connection


def trace_of(ctx: Context) -> Trace:
    """The one that the log tells of."""
    return current_trace.get()


def is_modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def not_found_code(ctx: Context) -> int:
    return INVALID_PARAMS if is_modern(ctx) else RESOURCE_NOT_FOUND


def abilities_of(ctx: Context) -> dict[str, Any]:
    """What the client can be asked for: by a result, or in the handshake era by requests, if those reach it."""
    said = ctx.session.client_capabilities if is_modern(ctx) or ctx.session.can_send_request else None
    if said is None:
        return {}
    return said.model_dump(by_alias=True, mode="json", exclude_none=True, include=_ANSWERS)
