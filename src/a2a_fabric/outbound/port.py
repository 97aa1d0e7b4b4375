"""The port for outgoing HTTP: client, replies and errors. Every outgoing HTTP request goes through it.

Implementations translate their library's errors into those below, apply the deadline to each request as a
whole, and never read more than `limit` bytes of a reply. Cancelling a call closes its connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NotRequired, Protocol, TypedDict

import msgspec


class OutboundError(Exception):
    """Any failure to get a complete reply."""


class ConnectFailed(OutboundError):
    """No connection was made, so the request was certainly not received."""


class AddressRefused(ConnectFailed):
    """The guard does not allow this address."""


class Interrupted(OutboundError):
    """The connection broke after the request may have been sent."""


class DeadlineExceeded(OutboundError):
    """Time ran out. The request may have been received."""


class ReplyTooLarge(OutboundError):
    """The reply is larger than the caller's limit, or would take too long to decode; it was dropped."""


class HTTPReply(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class StreamedReply(Protocol):
    status: int
    headers: Mapping[str, str]

    async def next_chunk(self) -> bytes:
        """The next part of the body, as it arrives; empty at its end. Raises as `chunks` does."""
        ...

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        """Call `take` with each part of the body as it arrives, without waking this task for each.

        Returns True once `take` has returned False, which leaves the rest to be read; False at the end of the body.
        Raises as `chunks` does, and what `take` raises. `take` runs in a copy of the caller's context.
        """
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises OutboundError, ReplyTooLarge included."""
        ...

    async def read(self) -> bytes:
        """The whole body at once, for replies that turn out not to be streams."""
        ...


class HTTPRequestOptions(TypedDict):
    """The keyword arguments of both methods of `HTTPClient`, for clients that pass them on."""

    headers: NotRequired[Mapping[str, str]]
    body: NotRequired[bytes | None]
    timeout: float
    limit: int


class HTTPClient(Protocol):
    """Connections are pooled and kept alive; one client serves a whole process; redirects are never followed."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> HTTPReply:
        """Send a request and return the complete reply, whatever its status."""
        ...

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = {},  # read-only
        body: bytes | None = None,
        timeout: float,
        limit: int,
    ) -> AbstractAsyncContextManager[StreamedReply]:
        """Send a request; the block gets the reply as soon as its head has arrived. Leaving the block ends it.

        With an infinite `timeout` the stream stays open until one side ends it. It gets a connection of its own.
        """
        ...

    async def aclose(self) -> None: ...
