"""Who asks for what, and the two kinds of answers: one piece, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.replying import Headers


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One request. `body` and `query` are what the endpoint says; `base` is where this caller reaches us."""

    principal: Principal
    trace: Trace
    base: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    body: Any = None
    key: str | None = None  # of idempotency
    after: int | None = None  # the last event that a returning reader has
    takes_events: bool = False  # whether the caller asks for server-sent ones
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # the nodes that it came over


@dataclass(frozen=True, kw_only=True)
class Answer:
    body: Any
    status: int = 200
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Whoever takes it closes it."""

    frames: AsyncGenerator[bytes]


Handler = Callable[[Visit], Awaitable[Answer | Stream]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method at one path: what it takes, what it gives, and in a few words what it is for."""

    verb: str
    path: str  # as in OpenAPI, without the version
    handler: Handler
    summary: str
    reply: type[msgspec.Struct] | None  # None: events
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    tag: str = ""
    is_keyed: bool = False  # whether it takes an Idempotency-Key
    example: Any = None  # of a body
