"""What a REST endpoint receives and returns: request context, reply or stream, and the links to pages and new resources."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.edge import HeaderList


@dataclass(frozen=True, kw_only=True)
class RestRequestContext:
    """One request. `body` and `query` are what the endpoint says; `base` is where this caller reaches us."""

    principal: Principal
    trace: Trace
    base_url: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    body: Any = None
    idempotency_key: str | None = None  # of idempotency
    last_event_id: int | None = None  # the last event that a returning reader has
    accepts_events: bool = False  # whether the caller asks for server-sent ones
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # the nodes that it came over


@dataclass(frozen=True, kw_only=True)
class RestReply:
    body: Any
    status: int = 200
    headers: HeaderList = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RestStream:
    """Whoever takes it closes it."""

    frames: AsyncGenerator[bytes]


RestHandler = Callable[[RestRequestContext], Awaitable[RestReply | RestStream]]


@dataclass(frozen=True, kw_only=True)
class RestEndpointSpec:
    """One method at one path: what it takes, what it gives, and in a few words what it is for."""

    method: str
    path: str  # as in OpenAPI, without the version
    handler: RestHandler
    summary: str
    reply: type[msgspec.Struct] | None  # None: events
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    tag: str = ""
    takes_idempotency_key: bool = False  # whether it takes an Idempotency-Key
    example: Any = None  # of a body


def build_location(kind: str, visible_id: str, own_id: str) -> bytes:
    """The address of a task or a message under the id that its caller sees.

    Under our own id where the caller's cannot stand in a path: with a slash, or as a dot that clients leave out.
    """
    name = visible_id if "/" not in visible_id and visible_id not in (".", "..") else own_id
    return f"/v1/{kind}/{quote(name, safe='')}".encode("ascii")


def build_next_link(context: RestRequestContext, path: str, cursor: str | None, limit: int) -> HeaderList:
    if cursor is None:
        return []
    query = urlencode({"cursor": cursor, "limit": limit})
    return [(b"link", f'<{context.base_url}/v1{path}?{query}>; rel="next"'.encode("ascii", "replace"))]


def parse_cursor(cursor: str | None) -> int:
    """A cursor that counts. Raises BadInput."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise BadInput("cursor: none of ours", field="cursor", issue="none of ours")
    return int(cursor)
