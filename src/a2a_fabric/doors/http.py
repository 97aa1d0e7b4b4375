"""What doors on HTTP share: reading a bounded body, headers, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from a2a_fabric.core.errors import PayloadTooLarge
from a2a_fabric.core.trace import Trace, from_traceparent
from a2a_fabric.doors.context import Receive
from a2a_fabric.identity.credentials import Credentials

T = TypeVar("T")

BODY_SECONDS = 30.0
# A server that can tell at once when a client leaves puts a function of this name into the scope.
ON_DISCONNECT = "fabric.on_disconnect"


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class Head:
    """The few headers that matter, found in one pass."""

    __slots__ = (
        "accept",
        "api_key",
        "authorization",
        "content_length",
        "content_type",
        "error_format",
        "host",
        "origin",
        "traceparent",
    )

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.accept: str | None = None
        self.api_key: str | None = None
        self.authorization: str | None = None
        self.content_length: str | None = None
        self.content_type: str | None = None
        self.error_format: str | None = None
        self.host: str | None = None
        self.origin: str | None = None
        self.traceparent: str | None = None
        for name, value in headers:
            slot = _SLOTS.get(name)
            if slot is not None:
                setattr(self, slot, value.decode("latin-1"))

    @property
    def credentials(self) -> Credentials:
        return Credentials(authorization=self.authorization, api_key=self.api_key, host=self.host, origin=self.origin)

    @property
    def trace(self) -> Trace | None:
        return from_traceparent(self.traceparent) if self.traceparent else None


_SLOTS = {
    b"accept": "accept",
    b"authorization": "authorization",
    b"content-length": "content_length",
    b"content-type": "content_type",
    b"host": "host",
    b"origin": "origin",
    b"traceparent": "traceparent",
    b"x-api-key": "api_key",
    b"x-fabric-error-format": "error_format",
}


async def read_body(receive: Receive, head: Head, limit: int) -> bytes:
    """The whole body. Raises PayloadTooLarge, ClientGone, or TimeoutError if it trickles in."""
    if head.content_length is not None and head.content_length.isdigit() and int(head.content_length) > limit:
        raise PayloadTooLarge(limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise PayloadTooLarge(limit)
        return body
    async with asyncio.timeout(BODY_SECONDS):
        return await _rest(receive, message.get("body", b""), limit)


async def _rest(receive: Receive, first: bytes, limit: int) -> bytes:
    parts = [first]
    size = len(first)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise PayloadTooLarge(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def while_connected(scope: dict[str, Any], receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; if the client leaves meanwhile, cancel it and raise ClientGone."""
    subscribe = scope.get(ON_DISCONNECT)
    if subscribe is None:
        return await _beside_a_watcher(receive, work)
    task = asyncio.current_task()
    assert task is not None  # noqa: S101
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    subscribe(leave)
    try:
        return await work()
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        subscribe(None)


async def _beside_a_watcher(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """For other ASGI servers: a second task waits for the disconnect message."""
    running = asyncio.ensure_future(work())

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        running.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        await asyncio.wait({running, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if watcher.done() and not running.done():
            await asyncio.wait({running})
        if running.cancelled():
            raise ClientGone
        return running.result()
    finally:
        watcher.cancel()
        running.cancel()
