"""The request half of the HTTP edge: headers, bounded bodies, disconnects, anonymous callers."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from msgspec import UNSET

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, CallTimeout, Forbidden, PayloadTooLarge, Unauthenticated
from a2a_fabric.core.json_text import find_json_problem
from a2a_fabric.core.propagation import (
    DELEGATION_HEADER_BYTES,
    MaybeChain,
    Trace,
    chain_from_header,
    trace_from_traceparent,
)
from a2a_fabric.core.scopes import ALL_SCOPES
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.doors.context import DoorContext, Receive
from a2a_fabric.identity.peer import NO_PEER, Peer, peer_from_scope
from a2a_fabric.identity.resolver import Credentials

T = TypeVar("T")

BODY_TIMEOUT = 30.0
_MAX_EVENT_ID_DIGITS = 15
_SEPARATORS = frozenset(' \t,"()<>@:\\[]?={}')  # no part of a media type's name
# A server that notices a disconnect at once puts a function under this key into the scope.
ON_DISCONNECT_KEY = "fabric.on_disconnect"
# On a hot path our own server also puts these two into the scope: a `Shortcut` and the `RequestHead`.
SHORTCUT_KEY = "fabric.shortcut"
HEAD_KEY = "fabric.head"
# The views to which a request narrows itself. A request to `/views/NAME/…` or with `?view=NAME` gets the header, too;
# then the path below which it was sent is in the scope.
VIEW_HEADER = b"x-fabric-view"
PASSPORT_HEADER = b"x-agent-passport"
_COMBINED_HEADERS = (VIEW_HEADER, PASSPORT_HEADER, b"authorization", b"x-api-key")
_PROXY_HEADERS = frozenset((b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"))
TOKEN_PROTOCOL = "fabric.bearer."  # noqa: S105  # the beginning of a WebSocket's subprotocol; the token follows
VIEW_PREFIX_KEY = "fabric.view_prefix"


class Shortcut(Protocol):
    """What our own server offers beside ASGI's `receive` and `send`: the same without waiting.

    When the client disconnects, the server cancels the task that works on its request.
    """

    client_disconnected: bool  # whether a disconnect was the reason of the cancellation

    def take_body(self) -> bytes | None:
        """Return the whole body if it has arrived already; then `receive` returns nothing more."""
        ...

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        """Send a whole reply; `head` holds its header lines except the content length."""
        ...

    def write(self, chunk: bytes) -> bool:
        """Send a further piece of a reply that `send` has begun. False if only `send`, which waits, can do so."""
        ...


class ClientDisconnected(Exception):
    """The client closed the connection, so the reply has no reader."""


class RequestHead:
    """The headers of a request, decoded when read. Of several headers with one name the last counts, except that each
    view narrows the request, and that credentials sent twice are refused.

    A client repeats its headers with every request, so our server keeps the head of a connection's last
    request; `derived` holds what doors have computed from the headers alone.
    """

    __slots__ = ("_credentials", "_headers", "derived", "has_journey", "identity", "peer")

    def __init__(self, headers: list[tuple[bytes, bytes]], identity: str | None = None, peer: Peer = NO_PEER) -> None:
        """`identity` is where the verified identity of the request is kept; see `web.identity_middleware`."""
        self._headers = dict(headers)
        self.identity = identity
        self.peer = peer
        if len(self._headers) < len(headers):
            for combined in _COMBINED_HEADERS:  # joined by commas, two credentials are none
                if combined in self._headers:
                    self._headers[combined] = b",".join(value for name, value in headers if name == combined)
        self._credentials: Credentials | None = None
        self.derived: dict[str, Any] = {}
        # Whether the request names a trace or a delegation chain; most requests name neither.
        self.has_journey = b"traceparent" in self._headers or DELEGATION_HEADER_BYTES in self._headers

    def with_headers(self, headers: list[tuple[bytes, bytes]]) -> RequestHead:
        """The same head with another content length, on which nothing in `derived` depends."""
        head = RequestHead(headers, peer=self.peer)
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
        if authorization is None and b"sec-websocket-protocol" in self._headers:
            authorization = _read_token_protocol(self.get(b"sec-websocket-protocol") or "")
        if authorization is not None:
            return Credentials(
                authorization=authorization,
                api_key=self.get(b"x-api-key"),
                passport=self.get(PASSPORT_HEADER),
                identity=self.identity,
                view=self.get(VIEW_HEADER),
                origin=self.get(b"origin"),
                peer=self.peer,
            )
        return Credentials(
            passport=self.get(PASSPORT_HEADER),
            identity=self.identity,
            view=self.get(VIEW_HEADER),
            api_key=self.get(b"x-api-key"),
            host=self.get(b"host"),
            origin=self.get(b"origin"),
            is_forwarded=not _PROXY_HEADERS.isdisjoint(self._headers),
            peer=self.peer,
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
    def announces_body(self) -> bool:
        length = self._headers.get(b"content-length")
        return b"transfer-encoding" in self._headers if length is None else length != b"0"

    @property
    def last_event_id(self) -> int | None:
        """The last event that a reconnecting client has received; None if the header holds no event number."""
        header = (self.get(b"last-event-id") or "").strip()
        return int(header) if header.isascii() and header.isdigit() and len(header) <= _MAX_EVENT_ID_DIGITS else None

    @property
    def error_format(self) -> str | None:
        return self.get(b"x-fabric-error-format")


def _read_token_protocol(header: str) -> str | None:
    """Browsers cannot set headers of a WebSocket, so they offer the token as a subprotocol, in base64url.

    A token that cannot be read is an `Authorization` without a token, which is refused.
    """
    offered = (name.strip() for name in header.split(","))
    encoded = next((name.removeprefix(TOKEN_PROTOCOL) for name in offered if name.startswith(TOKEN_PROTOCOL)), None)
    if encoded is None:
        return None
    try:
        return f"Bearer {base64.urlsafe_b64decode(encoded + '=' * (-len(encoded) % 4)).decode()}"
    except ValueError:
        return "Bearer"


def head_from_scope(scope: Any) -> RequestHead:
    head: RequestHead | None = scope.get(HEAD_KEY)
    if head is None:
        head = scope[HEAD_KEY] = RequestHead(scope["headers"], peer=peer_from_scope(scope))
    return head


def take_buffered_body(shortcut: Shortcut | None, limit: int) -> bytes | None:
    """The body if it has arrived already. Raises PayloadTooLarge."""
    body = shortcut.take_body() if shortcut is not None else None
    if body is not None and len(body) > limit:
        raise PayloadTooLarge(limit)
    return body


@lru_cache(maxsize=256)
def may_be_json(content_type: str | None) -> bool:
    """Whether a body of this content type may be JSON: `application/json`, `…+json`, or no content type at all."""
    if content_type is None:
        return True
    media_type = content_type.partition(";")[0].strip(" \t").lower()
    kind, _, subtype = media_type.partition("/")
    return bool(kind) and (subtype == "json" or subtype.endswith("+json")) and not _SEPARATORS.intersection(media_type)


def check_json(body: bytes) -> None:
    """Call this before decoding a body. Raises BadInput."""
    if problem := find_json_problem(body):
        raise BadInput(problem)


def check_content_length(head: RequestHead, limit: int) -> None:
    """Raises PayloadTooLarge."""
    length = head.get(b"content-length")
    if length is not None and length.isdecimal() and int(length) > limit:
        raise PayloadTooLarge(limit)


async def read_body(receive: Receive, head: RequestHead, limit: int, timeout: float = BODY_TIMEOUT) -> bytes:
    """The whole body. Raises PayloadTooLarge, ClientDisconnected, or TimeoutError if it arrives too slowly."""
    check_content_length(head, limit)
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
    """A `receive` that returns the body that was read already, then what follows it."""
    is_read = False

    async def replay() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def run_until_disconnect(scope: dict[str, Any], receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; if the client disconnects meanwhile, cancel it and raise ClientDisconnected."""
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
    """The node's authentication, except that a door may admit callers without credentials.

    Such a caller is not the operator, however far the door trusts it: the scope `*` says so. Callers of trust tier
    `public` have no scope, so that they can only call agents.
    """

    def __init__(self, context: DoorContext, anonymous_trust: TrustTier | None) -> None:
        self._identify = context.identify
        self._narrow = context.narrow_to_views
        self._is_node_open = context.admits_anonymous
        scopes = None if anonymous_trust == "public" else (ALL_SCOPES,)
        self._anonymous = (
            None
            if anonymous_trust is None
            else Principal(mode="none", principal_id="anonymous", trust=anonymous_trust, scp=scopes)
        )

    @property
    def is_open(self) -> bool:
        """Whether programs are admitted without credentials."""
        return self._anonymous is not None or self._is_node_open()

    def __call__(self, credentials: Credentials) -> Principal:
        """Raises Unauthenticated, AuthInvalid, AuthExpired or Forbidden."""
        try:
            return self._identify(credentials)
        except Unauthenticated:
            if self._anonymous is None:
                raise
            if self._anonymous.trust == "local" and credentials.is_from_elsewhere:
                raise Forbidden(
                    "Without credentials only local programs are admitted, not proxies or pages of other sites"
                ) from None
            return self._narrow(self._anonymous, credentials)


def base_url_for(public_url: str | None, scope: Any, head: RequestHead) -> str:
    """The URL of this node for this caller: the configured one, else the one that the caller used."""
    prefix: str = scope.get(VIEW_PREFIX_KEY, "")
    if public_url is not None:
        return public_url.rstrip("/") + prefix
    host = head.get(b"host") or ""
    return f"{scope.get('scheme', 'http')}://{host if _HOST.fullmatch(host) else 'localhost'}{prefix}"
