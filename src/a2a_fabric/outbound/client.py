"""OutboundClient, the implementation of the HTTP port, built for many small requests to few servers.

This module renders the request head; `pool` provides a connection (through `connector` if a new one is
needed), and `connection` sends the request and parses the reply. Header names are checked once per set of
names and kept as a template; values are checked with one scan per request. A request is never sent twice: if
a kept-alive connection breaks, that is Interrupted; idle connections are closed before servers usually close
them, so that is rare."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from ssl import SSLContext
from types import TracebackType
from typing import NamedTuple

import msgspec

from a2a_fabric.outbound.connection import Connection, HTTPStreamedReply
from a2a_fabric.outbound.connector import Connector, make_client_context
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.pool import ConnectionPool, Origin
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, HTTPReply, StreamedReply
from a2a_fabric.outbound.url import Url, parse_url
from a2a_fabric.version import __version__

MAX_TEMPLATES = 512
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a value may hold tabs
_CLIENT_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect"}
)
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})  # these send a content-length even if it is 0
_templates: dict[tuple[str, ...], str] = {}
_as_json = msgspec.json.Encoder().encode


def render_head_start(method: str, url: Url) -> str:
    if not _TOKEN.fullmatch(method) or method == "CONNECT":
        raise ConnectFailed(f"{method[:20]!r} is not an HTTP method that can be sent")
    return f"{method} {url.target} HTTP/1.1\r\nhost: {url.authority}\r\n"


def render_bodyless_end(method: str) -> str:
    return "content-length: 0\r\n\r\n" if method in _BODY_METHODS else "\r\n"


def render_headers(headers: Mapping[str, str]) -> str:
    """All header lines of the caller, with our user-agent unless the caller sets one."""
    names, values = tuple(headers), tuple(headers.values())
    template = _templates.get(names) or _make_template(names)
    text = "".join(values)
    if not _is_plain(text) and _FORBIDDEN.search(text):
        raise ConnectFailed("A header with control characters cannot be sent")
    return template % values


def _is_plain(text: str) -> bool:
    """Whether the text certainly has no control characters. False means: look closer.

    A JSON string is longer than its text if it holds any, except DEL. Encoding it is several times faster than a
    regular expression.
    """
    try:
        return len(_as_json(text)) == len(text) + 2 and "\x7f" not in text
    except UnicodeEncodeError:  # a lone surrogate, which cannot be sent either
        return False


def _make_template(names: tuple[str, ...]) -> str:
    lowered = {name.lower() for name in names}
    if lowered & _CLIENT_HEADERS:
        raise ConnectFailed(f"The client itself sets the header {min(lowered & _CLIENT_HEADERS)}")
    if not all(map(_TOKEN.fullmatch, names)):
        raise ConnectFailed("A header whose name is not well-formed cannot be sent")
    template = "".join(f"{name.replace('%', '%%')}: %s\r\n" for name in names)
    if "user-agent" not in lowered:
        template += f"user-agent: a2a-fabric/{__version__}\r\n"
    if len(_templates) >= MAX_TEMPLATES:
        _templates.clear()
    _templates[names] = template
    return template


IDLE_TIMEOUT = 4.0  # seconds; common servers close after 5, 15, 60 or 75
MAX_PREPARED = 1024
MAX_PREPARED_URL_LENGTH = 512
_WRONG_LOOP = "An OutboundClient serves the event loop that used it first; build another one for this loop"


class _PreparedRequest(NamedTuple):
    """What all requests with the same method and URL have in common."""

    origin: Origin
    start: str
    end_without_body: str
    is_head: bool


class OutboundClient:
    """Belongs to the event loop that sends its first request."""

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        max_connections: int = 1000,
        connect_timeout: float = 10.0,
        idle_timeout: float = IDLE_TIMEOUT,
        client_cert: bytes | None = None,  # PEM: certificate chain and private key
        ca: bytes | None = None,  # PEM: trusted besides the system's
        verify: bool = True,
    ) -> None:
        @cache
        def tls() -> SSLContext:
            return make_client_context(client_cert, ca, verify)

        if client_cert is not None or ca is not None:
            tls()  # report bad certificates now; without them, many clients never need a context
        self._guard = guard
        self._connector = Connector(guard, connect_timeout, tls)
        self._max_connections = max_connections
        self._idle_timeout = idle_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ConnectionPool  # set by the first request
        self._prepared: dict[tuple[str, str], _PreparedRequest] = {}
        self._is_closed = False

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
        prepared, head = self._render_head(method, url, headers, body, timeout)
        connection = self._pool.take_idle(prepared.origin)
        if connection is None:
            connection, timeout = await self._get_connection(prepared.origin, timeout)
        waiter = connection.send(head, body, limit, timeout, prepared.is_head, False)
        try:
            reply: HTTPReply = await waiter
        except BaseException:
            connection.abandon(waiter)
            del waiter  # it holds the error, whose traceback holds this frame: a reference cycle
            raise
        return reply

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
        return _StreamContext(self, method, url, headers, body, timeout, limit)

    async def aclose(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            if self._loop is not asyncio.get_running_loop():
                raise RuntimeError(_WRONG_LOOP)
            self._loop = None
            await self._pool.aclose()
        self._loop = None
        self._is_closed = True

    async def open_stream(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float, limit: int
    ) -> tuple[Connection, asyncio.Future[HTTPStreamedReply]]:
        prepared, head = self._render_head(method, url, headers, body, timeout)
        connection = self._pool.take_idle(prepared.origin)
        if connection is None:
            connection, timeout = await self._get_connection(prepared.origin, timeout)
        return connection, connection.send(head, body, limit, timeout, prepared.is_head, True)

    def _render_head(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> tuple[_PreparedRequest, bytes]:
        """The encoded head. Raises ConnectFailed if it cannot be sent."""
        if timeout <= 0:
            raise DeadlineExceeded("No time left to send the request")
        if self._loop is not asyncio.get_running_loop():
            self._bind_to_loop()
        prepared = self._prepared.get((method, url)) or self._prepare(method, url)
        end = f"content-length: {len(body)}\r\n\r\n" if body else prepared.end_without_body
        try:
            return prepared, f"{prepared.start}{render_headers(headers)}{end}".encode("latin-1")
        except UnicodeEncodeError as exc:
            raise ConnectFailed("A header with characters beyond Latin-1 cannot be sent") from exc

    def _prepare(self, method: str, url: str) -> _PreparedRequest:
        parsed = self._guard.check_url(url) if self._guard else parse_url(url)
        start = render_head_start(method, parsed)
        prepared = _PreparedRequest(self._pool.get_origin(parsed), start, render_bodyless_end(method), method == "HEAD")
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        if len(url) <= MAX_PREPARED_URL_LENGTH:
            self._prepared[method, url] = prepared
        return prepared

    async def _get_connection(self, origin: Origin, timeout: float) -> tuple[Connection, float]:
        """A connection, and the time left. Waiting in the queue and connecting use up the timeout."""
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                connection = await self._pool.get_connection(origin)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"No connection to {origin.url.host} within {timeout:g} s") from exc
        return connection, max(0.0, timeout - (time.monotonic() - began_at))

    def _bind_to_loop(self) -> None:
        """Bind the client to the running event loop, for good."""
        if self._is_closed:
            raise ConnectFailed("The client is closed")
        if self._loop is not None:
            raise RuntimeError(_WRONG_LOOP)
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(self._loop, self._connector, self._max_connections, self._idle_timeout)


class _StreamContext:
    """A streamed request as a context manager; the request is sent when the block is entered."""

    def __init__(
        self,
        client: OutboundClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        limit: int,
    ) -> None:
        self._client = client
        self._request = (method, url, headers, body, timeout, limit)

    async def __aenter__(self) -> HTTPStreamedReply:
        self._connection, self._waiter = await self._client.open_stream(*self._request)
        try:
            return await self._waiter
        except BaseException:
            self._connection.abandon(self._waiter)
            del self._waiter  # breaks the same reference cycle
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:
            self._connection.release(self._waiter)
        else:
            self._connection.abandon(self._waiter)
