"""What a REST endpoint receives and returns: request context, reply, and the links to pages and new resources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.delegation import MaybeChain
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.edge import EventStream, HeaderList


@dataclass(frozen=True, kw_only=True)
class RestRequestContext:
    """One request. `body` and `query` have the types that the route names; `base_url` is this node for the caller."""

    principal: Principal
    trace: Trace
    base_url: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    body: Any = None
    idempotency_key: str | None = None
    last_event_id: int | None = None  # the last event that a reconnecting client has received
    accepts_events: bool = False  # whether the client asks for server-sent events
    delegation_chain: MaybeChain = msgspec.UNSET  # the nodes and agents that the request has passed


@dataclass(frozen=True, kw_only=True)
class RestReply:
    body: Any
    status: int = 200
    headers: HeaderList = field(default_factory=list)


RestHandler = Callable[[RestRequestContext], Awaitable[RestReply | EventStream]]


@dataclass(frozen=True, kw_only=True)
class RestRoute:
    """One method at one path: what it takes and returns, and a summary for the OpenAPI document."""

    method: str
    path: str  # as in OpenAPI, without the version
    handler: RestHandler
    summary: str
    reply: type[msgspec.Struct] | None  # None: events
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    tag: str = ""
    takes_idempotency_key: bool = False
    example: Any = None  # of a body


def build_location(kind: str, visible_id: str, own_id: str) -> bytes:
    """The path of a task or a message, with the id that its caller sees.

    An id with a slash, or one that is only dots, cannot stand in a path; then our own id is used.
    """
    name = visible_id if "/" not in visible_id and visible_id not in (".", "..") else own_id
    return f"/v1/{kind}/{quote(name, safe='')}".encode("ascii")


def build_next_link(context: RestRequestContext, path: str, cursor: str | None, limit: int) -> HeaderList:
    if cursor is None:
        return []
    query = urlencode({"cursor": cursor, "limit": limit})
    return [(b"link", f'<{context.base_url}/v1{path}?{query}>; rel="next"'.encode("ascii", "replace"))]


def parse_cursor(cursor: str | None) -> int:
    """A cursor that is a number. Raises BadInput."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise BadInput("Invalid cursor. Start again without one.", field="cursor", issue="invalid")
    return int(cursor)
