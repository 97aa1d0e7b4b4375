"""The HTTP edge that all doors share: headers, bounded bodies, disconnects, anonymous callers, event streams.

The order is the same at every door: the caller is identified from the headers alone, and only then is the
body read. So nothing of a refused request is stored, parsed or logged. A slow reader of an event stream
delays no other client; a client that reads nothing is disconnected after a time-out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from msgspec import UNSET

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.delegation import DELEGATION_HEADER_BYTES, MaybeChain, chain_from_header
from a2a_fabric.core.errors import BadInput, CallTimeout, Forbidden, PayloadTooLarge, Unauthenticated
from a2a_fabric.core.json_depth import MAX_JSON_DEPTH, is_too_deep
from a2a_fabric.core.trace import Trace, trace_from_traceparent
from a2a_fabric.doors.context import DoorContext, Receive, Send
from a2a_fabric.identity.resolver import Credentials

T = TypeVar("T")

BODY_TIMEOUT = 30.0
_MAX_EVENT_ID_DIGITS = 15
_SEPARATORS = frozenset(' \t,"()<>@:\\[]?={}')  # no part of a media type's name
# A server that can tell at once when a client leaves puts a function of this name into the scope.
ON_DISCONNECT_KEY = "fabric.on_disconnect"
# On a hot path our own server also puts a `Shortcut` there.
SHORTCUT_KEY = "fabric.shortcut"
HEAD_KEY = "fabric.head"  # there too: the `Head` of the request


class Shortcut(Protocol):
    """Beside ASGI's `receive` and `send`: the same at once, where there is nothing to wait for.

    When the client leaves, the task that works on its request is cancelled.
    """

    client_disconnected: bool  # whether it was that

    def take_body(self) -> bytes | None:
        """The whole body if it has come already; then `receive` has nothing more to give."""
        ...

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        """A whole reply; `head` is its header lines but for the content's length."""
        ...

    def write(self, chunk: bytes) -> bool:
        """A further piece of a reply that `send` has begun; False if it cannot go at once, so `send` must wait."""
        ...


class ClientDisconnected(Exception):
    """The client closed the connection; there is nobody to answer."""


class RequestHead:
    """The headers of a request, decoded as they are asked for; of several alike the last one counts.

    Clients say the same again and again, so our server keeps the head of a connection's last
    request; `concluded` holds what doors have worked out from it alone.
    """

    __slots__ = ("_credentials", "_headers", "derived", "has_journey")

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = dict(headers)
        self._credentials: Credentials | None = None
        self.derived: dict[str, str] = {}
        # Whether there is anything to be read of where the request comes from; nearly always there is not.
        self.has_journey = b"traceparent" in self._headers or DELEGATION_HEADER_BYTES in self._headers

    def with_headers(self, headers: list[tuple[bytes, bytes]]) -> RequestHead:
        """The same head with another length of the body, on which nothing depends that was worked out from it."""
        head = RequestHead(headers)
        head._credentials, head.derived = self._credentials, self.derived
        return head

    def get(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def get_raw(self, name: bytes) -> bytes | None:
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
        header = self._headers.get(b"traceparent")
        return trace_from_traceparent(header.decode("latin-1")) if header else None

    @property
    def delegation_chain(self) -> MaybeChain:
        """The nodes and agents that the request has passed. Raises BadInput."""
        header = self._headers.get(DELEGATION_HEADER_BYTES)
        return chain_from_header(header.decode("latin-1")) if header else UNSET

    @property
    def last_event_id(self) -> int | None:
        """What a client that comes back has heard last; None for what is no number of ours."""
        header = (self.get(b"last-event-id") or "").strip()
        return int(header) if header.isascii() and header.isdigit() and len(header) <= _MAX_EVENT_ID_DIGITS else None

    @property
    def error_format(self) -> str | None:
        return self.get(b"x-fabric-error-format")


def head_from_scope(scope: Any) -> RequestHead:
    head: RequestHead | None = scope.get(HEAD_KEY)
    return head if head is not None else RequestHead(scope["headers"])


def take_buffered_body(shortcut: Shortcut | None, limit: int) -> bytes | None:
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


JSON_TOO_DEEP = f"The JSON is nested more than {MAX_JSON_DEPTH} levels deep"


def check_json_depth(body: bytes) -> None:
    """Raises BadInput. To be called before anything decodes the body."""
    if is_too_deep(body):
        raise BadInput(JSON_TOO_DEEP)


async def read_body(receive: Receive, head: RequestHead, limit: int, timeout: float = BODY_TIMEOUT) -> bytes:
    """The whole body. Raises PayloadTooLarge, ClientGone, or TimeoutError if it trickles in."""
    length = head.get(b"content-length")
    if length is not None and length.isdecimal() and int(length) > limit:
        raise PayloadTooLarge(limit)
    try:
        with Deadline(timeout):
            return await _read_all(receive, limit)
    except CallTimeout as exc:
        raise TimeoutError from exc


async def _read_all(receive: Receive, limit: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise PayloadTooLarge(limit)
        return body
    return await _read_chunks(receive, message.get("body", b""), limit)


async def _read_chunks(receive: Receive, first: bytes, limit: int) -> bytes:
    chunks = [first]
    size = len(first)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise PayloadTooLarge(limit)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then what comes after it."""
    is_read = False

    async def replay() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def run_until_disconnect(scope: dict[str, Any], receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; if the client leaves meanwhile, cancel it and raise ClientGone."""
    subscribe = scope.get(ON_DISCONNECT_KEY)
    if subscribe is None:
        return await _run_beside_watcher(receive, work)
    task = asyncio.current_task()
    assert task is not None  # noqa: S101
    is_disconnected = False

    def on_disconnect() -> None:
        nonlocal is_disconnected
        is_disconnected = True
        task.cancel()

    subscribe(on_disconnect)
    try:
        return await work()
    except asyncio.CancelledError:
        if is_disconnected and task.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        subscribe(None)


async def _run_beside_watcher(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """For other ASGI servers: a second task waits for the disconnect message."""
    running = asyncio.ensure_future(work())

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        running.cancel()

    watcher = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({running, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if watcher.done() and not running.done():
            await asyncio.wait({running})
        if running.cancelled():
            raise ClientDisconnected
        return running.result()
    finally:
        watcher.cancel()
        running.cancel()


_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


class AnonymousPolicy:
    """The node's own rules, but that this door may be open to callers who show nothing."""

    def __init__(self, identify: Callable[[Credentials], Principal], anonymous_trust: TrustTier | None) -> None:
        self._identify = identify
        self._anonymous = (
            None if anonymous_trust is None else Principal(mode="none", principal_id="anonymous", trust=anonymous_trust)
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
            if self._anonymous is None:
                raise
            if self._anonymous.trust == "local" and credentials.is_cross_site:
                raise Forbidden("Without credentials only programs are let in, not pages of other sites") from None
            return self._anonymous


def base_url_for(public_url: str | None, scope: Any, head: RequestHead) -> str:
    """Where this caller reaches us: as the operator says, else as they did."""
    if public_url is not None:
        return public_url.rstrip("/")
    host = head.get(b"host") or ""
    return f"{scope.get('scheme', 'http')}://{host if _HOST.fullmatch(host) else 'localhost'}"


HeaderList = list[tuple[bytes, bytes]]

JSON_MEDIA_TYPE = b"application/json"
KEEPALIVE = b": still here\n\n"
READ_TIMEOUT = 60.0
_BODILESS_STATUSES = (204, 304)
_EVENT_STREAM_HEADERS: HeaderList = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def send_reply(
    send: Send, status: int, body: bytes, headers: HeaderList, media_type: bytes = JSON_MEDIA_TYPE
) -> None:
    has_body = status not in _BODILESS_STATUSES
    content_headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))] if has_body else []
    await send({"type": "http.response.start", "status": status, "headers": [*content_headers, *headers]})
    await send({"type": "http.response.body", "body": body if has_body else b""})


def encode_event(event: str | None, number: int | None, data: bytes) -> bytes:
    """A server-sent event."""
    event_field = b"" if event is None else b"event: %b\n" % event.encode()
    id_field = b"" if number is None else b"id: %d\n" % number
    return b"%b%bdata: %b\n\n" % (event_field, id_field, data)


class EventStreamReply:
    """`pause` is the longest silence, in seconds, and `sign` what breaks it: proxies close what is silent.

    Who takes nothing for `read_within` seconds is given up.
    """

    def __init__(
        self,
        context: DoorContext,
        send: Send,
        keepalive_interval: float,
        keepalive: bytes = KEEPALIVE,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self.is_open = False
        self._context = context
        self._send = send
        self._keepalive_interval = keepalive_interval
        self._keepalive = keepalive
        self._read_timeout = read_timeout

    async def send_frames(self, frames: AsyncGenerator[bytes], headers: HeaderList, principal_id: str | None) -> None:
        """Raises RateLimited if this principal has its share of streams; then nothing has been sent.

        Raises ClientGone, and what the stream raises; then the reply is still open.
        """
        async with aclosing(frames):
            self._context.acquire_stream(principal_id)
            try:
                await self._send_head(headers)
                self.is_open = True
                await self._forward_frames(frames)
            finally:
                self._context.release_stream(principal_id)

    async def end(self, last_chunk: bytes = b"") -> None:
        """Raises ClientGone."""
        self.is_open = False
        await self._write(last_chunk, more=False)

    async def _send_head(self, headers: HeaderList) -> None:
        await self._send_message(
            {"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM_HEADERS, *headers]}
        )

    async def _forward_frames(self, frames: AsyncGenerator[bytes]) -> None:
        while True:
            next_frame = asyncio.ensure_future(anext(frames, None))
            try:
                while not (await asyncio.wait({next_frame}, timeout=self._keepalive_interval))[0]:
                    await self._write(self._keepalive)
            finally:
                if not next_frame.done():
                    next_frame.cancel()
                    await asyncio.wait({next_frame})
            chunk = next_frame.result()
            if chunk is None:
                return
            await self._write(chunk)

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        await self._send_message({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _send_message(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._read_timeout):
                await self._send(message)
        except TimeoutError as exc:
            raise ClientDisconnected from exc
