"""Who asks for what, and the two kinds of answers: one piece, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import Forbidden, Unauthenticated
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.rest.allowance import Headers
from a2a_fabric.identity.credentials import Credentials


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


class Doorkeeper:
    """The node's own rules, but that this door may be open to callers who show nothing."""

    def __init__(self, identify: Callable[[Credentials], Principal], anonymous: TrustTier | None) -> None:
        self._identify = identify
        self._stranger = (
            None if anonymous is None else Principal(mode="none", principal_id="anonymous", trust=anonymous)
        )

    @property
    def is_open(self) -> bool:
        """Whether programs are let in without credentials."""
        try:
            self(Credentials())
        except (Unauthenticated, Forbidden):
            return False
        return True

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated, AuthInvalid, AuthExpired or Forbidden."""
        try:
            return self._identify(credentials)
        except Unauthenticated:
            if self._stranger is None:
                raise
            if self._stranger.trust == "local" and credentials.is_from_a_strange_page:
                raise Forbidden("Without credentials only programs are let in, not pages of other sites") from None
            return self._stranger
