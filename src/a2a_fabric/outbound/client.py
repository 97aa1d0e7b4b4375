"""OutboundClient: the port's one implementation, made for many small calls to a few servers.

The way of a request: `head` writes it, `pool` gives it a connection (through
`connector` if a new one is needed), `connection` sends it and hears the reply.
A request is never sent twice: if a kept-alive connection breaks, that is
Interrupted; idle ones are closed before servers usually do, so it is rare.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from ssl import SSLContext
from types import TracebackType
from typing import NamedTuple

from a2a_fabric.outbound.connection import Connection
from a2a_fabric.outbound.connector import Connector
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.head import end_without_body, fields, start_of_head
from a2a_fabric.outbound.pool import Origin, Pool
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, Reply, StreamedReply
from a2a_fabric.outbound.streamed import Streamed
from a2a_fabric.outbound.tls import client_context
from a2a_fabric.outbound.url import parse_url

IDLE_TIMEOUT = 4.0  # seconds; common servers close after 5, 15, 60 or 75
PREPARED = 1024
PREPARED_URL_LENGTH = 512
_OTHER_LOOP = "An OutboundClient serves the event loop that used it first; build another one for this loop"


class _Prepared(NamedTuple):
    """What all requests with one method to one URL have in common."""

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
            return client_context(client_cert, ca, verify)

        if client_cert is not None or ca is not None:
            tls()  # what is wrong with them is said now; otherwise many clients never need it
        self._guard = guard
        self._connector = Connector(guard, connect_timeout, tls)
        self._max_connections = max_connections
        self._idle_timeout = idle_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: Pool  # as soon as there is a loop
        self._prepared: dict[tuple[str, str], _Prepared] = {}
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
    ) -> Reply:
        prepared, head = self._written(method, url, headers, body, timeout)
        connection = self._pool.take_idle(prepared.origin)
        if connection is None:
            connection, timeout = await self._connected(prepared.origin, timeout)
        waiter = connection.send(head, body, limit, timeout, prepared.is_head, False)
        try:
            reply: Reply = await waiter
        except BaseException:
            connection.abandon(waiter)
            del waiter  # it holds the error, whose traceback holds this frame: a circle
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
        return _Streaming(self, method, url, headers, body, timeout, limit)

    async def aclose(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            if self._loop is not asyncio.get_running_loop():
                raise RuntimeError(_OTHER_LOOP)
            self._loop = None
            await self._pool.aclose()
        self._loop = None
        self._is_closed = True

    async def open_stream(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float, limit: int
    ) -> tuple[Connection, asyncio.Future[Streamed]]:
        prepared, head = self._written(method, url, headers, body, timeout)
        connection = self._pool.take_idle(prepared.origin)
        if connection is None:
            connection, timeout = await self._connected(prepared.origin, timeout)
        return connection, connection.send(head, body, limit, timeout, prepared.is_head, True)

    def _written(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> tuple[_Prepared, bytes]:
        """The head, ready to be sent. Raises ConnectFailed if it cannot be."""
        if timeout <= 0:
            raise DeadlineExceeded("No time left to send the request")
        if self._loop is not asyncio.get_running_loop():
            self._settle()
        prepared = self._prepared.get((method, url)) or self._prepare(method, url)
        end = f"content-length: {len(body)}\r\n\r\n" if body else prepared.end_without_body
        try:
            return prepared, f"{prepared.start}{fields(headers)}{end}".encode("latin-1")
        except UnicodeEncodeError as exc:
            raise ConnectFailed("A header with characters beyond Latin-1 cannot be sent") from exc

    def _prepare(self, method: str, url: str) -> _Prepared:
        parsed = self._guard.check_url(url) if self._guard else parse_url(url)
        start = start_of_head(method, parsed)
        prepared = _Prepared(self._pool.origin(parsed), start, end_without_body(method), method == "HEAD")
        if len(self._prepared) >= PREPARED:
            self._prepared.clear()
        if len(url) <= PREPARED_URL_LENGTH:
            self._prepared[method, url] = prepared
        return prepared

    async def _connected(self, origin: Origin, timeout: float) -> tuple[Connection, float]:
        """A connection, and the time that is left. Waiting for a free one and making one count."""
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                connection = await self._pool.get(origin)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"No connection to {origin.url.host} within {timeout:g} s") from exc
        return connection, max(0.0, timeout - (time.monotonic() - began_at))

    def _settle(self) -> None:
        """In the running event loop, for good."""
        if self._is_closed:
            raise ConnectFailed("The client is closed")
        if self._loop is not None:
            raise RuntimeError(_OTHER_LOOP)
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(self._loop, self._connector, self._max_connections, self._idle_timeout)


class _Streaming:
    """A streamed request as a block; nothing is sent before it is entered."""

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

    async def __aenter__(self) -> Streamed:
        self._connection, self._waiter = await self._client.open_stream(*self._request)
        try:
            return await self._waiter
        except BaseException:
            self._connection.abandon(self._waiter)
            del self._waiter  # as above
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:
            self._connection.leave(self._waiter)
        else:
            self._connection.abandon(self._waiter)
