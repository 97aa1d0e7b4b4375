"""What doors on HTTP share: headers, reading a bounded body of JSON, and noticing that the client has gone.

The order is the same at every door: who is calling is settled from the headers alone, and only then is the body
read, so that nothing of a caller who is refused is kept, parsed or logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from msgspec import UNSET

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import HEADER_BYTES, MaybeChain, from_header
from a2a_fabric.core.errors import BadInput, CallTimeout, PayloadTooLarge
from a2a_fabric.core.nesting import MAX_DEPTH, is_too_deep
from a2a_fabric.core.trace import Trace, from_traceparent
from a2a_fabric.doors.context import Receive
from a2a_fabric.identity.credentials import Credentials

T = TypeVar("T")

BODY_SECONDS = 30.0
_LONGEST_NUMBER = 15
_SEPARATORS = frozenset(' \t,"()<>@:\\[]?={}')  # no part of a media type's name
# A server that can tell at once when a client leaves puts a function of this name into the scope.
ON_DISCONNECT = "fabric.on_disconnect"
# On a hot path our own server also puts a `Shortcut` there.
SHORTCUT = "fabric.shortcut"
HEAD = "fabric.head"  # there too: the `Head` of the request


class Shortcut(Protocol):
    """Beside ASGI's `receive` and `send`: the same at once, where there is nothing to wait for.

    When the client leaves, the task that works on its request is cancelled.
    """

    has_left: bool  # whether it was that

    def take_body(self) -> bytes | None:
        """The whole body if it has come already; then `receive` has nothing more to give."""
        ...

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        """A whole reply; `head` is its header lines but for the content's length."""
        ...

    def write(self, piece: bytes) -> bool:
        """A further piece of a reply that `send` has begun; False if it cannot go at once, so `send` must wait."""
        ...


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class Head:
    """The headers of a request, decoded as they are asked for; of several alike the last one counts.

    Clients say the same again and again, so our server keeps the head of a connection's last
    request; `concluded` holds what doors have worked out from it alone.
    """

    __slots__ = ("_credentials", "_headers", "concluded", "has_journey")

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = dict(headers)
        self._credentials: Credentials | None = None
        self.concluded: dict[str, str] = {}
        # Whether there is anything to be read of where the request comes from; nearly always there is not.
        self.has_journey = b"traceparent" in self._headers or HEADER_BYTES in self._headers

    def again(self, headers: list[tuple[bytes, bytes]]) -> Head:
        """The same head with another length of the body, on which nothing depends that was worked out from it."""
        head = Head(headers)
        head._credentials, head.concluded = self._credentials, self.concluded
        return head

    def get(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def raw(self, name: bytes) -> bytes | None:
        return self._headers.get(name)

    def __contains__(self, name: bytes) -> bool:
        return name in self._headers

    @property
    def credentials(self) -> Credentials:
        if self._credentials is None:
            self._credentials = self._read_credentials()
        return self._credentials

    def _read_credentials(self) -> Credentials:
        authorization = self.get(b"authorization")
        if authorization is not None:
            return Credentials(authorization=authorization)
        return Credentials(
            api_key=self.get(b"x-api-key"),
            host=self.get(b"host"),
            origin=self.get(b"origin"),
        )

    @property
    def trace(self) -> Trace | None:
        given = self._headers.get(b"traceparent")
        return from_traceparent(given.decode("latin-1")) if given else None

    @property
    def delegation_chain(self) -> MaybeChain:
        """The nodes and agents that the request has passed. Raises BadInput."""
        given = self._headers.get(HEADER_BYTES)
        return from_header(given.decode("latin-1")) if given else UNSET

    @property
    def last_event_id(self) -> int | None:
        """What a client that comes back has heard last; None for what is no number of ours."""
        given = (self.get(b"last-event-id") or "").strip()
        return int(given) if given.isascii() and given.isdigit() and len(given) <= _LONGEST_NUMBER else None

    @property
    def error_format(self) -> str | None:
        return self.get(b"x-fabric-error-format")


def head_of(scope: Any) -> Head:
    head: Head | None = scope.get(HEAD)
    return head if head is not None else Head(scope["headers"])


def body_at_hand(shortcut: Shortcut | None, limit: int) -> bytes | None:
    """The body, if it can be had without waiting. Raises PayloadTooLarge."""
    body = shortcut.take_body() if shortcut is not None else None
    if body is not None and len(body) > limit:
        raise PayloadTooLarge(limit)
    return body


@lru_cache(maxsize=256)
def may_be_json(content_type: str | None) -> bool:
    """Whether a body of this content type may be JSON: `application/json`, `…+json`, or nothing is said about it."""
    if content_type is None:
        return True
    media_type = content_type.partition(";")[0].strip(" \t").lower()
    kind, _, subtype = media_type.partition("/")
    return bool(kind) and (subtype == "json" or subtype.endswith("+json")) and not _SEPARATORS.intersection(media_type)


TOO_DEEP = f"The JSON is nested more than {MAX_DEPTH} levels deep"


def check_depth(body: bytes) -> None:
    """Raises BadInput. To be called before anything decodes the body."""
    if is_too_deep(body):
        raise BadInput(TOO_DEEP)


async def read_body(receive: Receive, head: Head, limit: int, timeout: float = BODY_SECONDS) -> bytes:
    """The whole body. Raises PayloadTooLarge, ClientGone, or TimeoutError if it trickles in."""
    length = head.get(b"content-length")
    if length is not None and length.isdecimal() and int(length) > limit:
        raise PayloadTooLarge(limit)
    try:
        with Deadline(timeout):
            return await _whole(receive, limit)
    except CallTimeout as exc:
        raise TimeoutError from exc


async def _whole(receive: Receive, limit: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise PayloadTooLarge(limit)
        return body
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


def again(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then what comes after it."""
    is_read = False

    async def replay() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


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
