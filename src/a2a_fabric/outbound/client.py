"""OutboundClient, the implementation of the HTTP port, built for many small requests to few servers.

The client renders the request head (`headers`), its pool provides a connection (through the connector if a new one is
needed), and `connection` sends the request and parses the reply. A request is never sent twice: if a kept-alive
connection breaks, that is Interrupted; idle connections are closed before servers usually close them, so that is
rare."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache
from ipaddress import ip_address
from math import inf
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from a2a_fabric.core.json_text import LONG, find_number_problem
from a2a_fabric.core.tasks import DeadlineSweep
from a2a_fabric.outbound.connection import Connection, HTTPStreamedReply, ReplyHead
from a2a_fabric.outbound.guard import Guard, Url, look_up_addresses, parse_url
from a2a_fabric.outbound.headers import TOKEN, render_headers
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPReply,
    Interrupted,
    ReplyTooLarge,
    StreamedReply,
)


def make_client_context(client_cert: bytes | None, ca: bytes | None, verify: bool) -> ssl.SSLContext:
    """Trusts the system's authorities and those of `ca`; presents `client_cert` (chain and key) to servers that ask."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    if client_cert is not None:
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # `ssl` reads only files; this one is private
            file.write(client_cert)
            file.flush()
            context.load_cert_chain(file.name)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# What a client does with a request when `max_connections` are in use. For what callers ask for it opens one more: a
# node bounds its calls and the share of each caller, and in a queue beside that, one could keep all others waiting.
WhenFull = Literal["queue", "open"]
DNS_CACHE_SECONDS = 10.0  # seconds for which the addresses of a host are used again
MAX_CACHED_HOSTS = 1024
_LISTEN_PAUSE = 0.05  # seconds until a process that is starting is tried again
_MAX_WAITING = 500  # connections to one process that is starting; a pool has twice as many


class Connector:
    """Looks up a host, checks its addresses and tries one after the other. Belongs to one event loop.

    Only addresses that the lookup returned and the guard allows are connected to, never the name; TLS still
    requires a certificate for the name.
    """

    def __init__(self, guard: Guard | None, timeout: float, tls: Callable[[], ssl.SSLContext]) -> None:
        self._resolve = guard.resolve_addresses if guard else _resolve_unguarded
        self._timeout = timeout
        self._tls = tls
        self._dns_cache: dict[str, tuple[float, list[str]]] = {}

    async def connect(self, url: Url, make: Callable[[], Connection]) -> Connection:
        """Raises ConnectFailed, or AddressRefused, which is one."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._connect_first(url, make, await self._look_up(url))
        except TimeoutError as exc:
            raise ConnectFailed(f"No connection to {url.host} within {self._timeout:g} s") from exc

    async def _look_up(self, url: Url) -> list[str]:
        now = asyncio.get_running_loop().time()
        expires_at, addresses = self._dns_cache.get(url.host, (0.0, []))
        if expires_at <= now:
            addresses = await self._resolve(url.host, url.port)
            if len(self._dns_cache) >= MAX_CACHED_HOSTS:
                self._dns_cache.clear()
            self._dns_cache[url.host] = (now + DNS_CACHE_SECONDS, addresses)
        return addresses

    async def _connect_first(self, url: Url, make: Callable[[], Connection], addresses: list[str]) -> Connection:
        """Connect to the first address that answers. Each gets an equal share of the time left."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout
        failure: Exception | None = None
        for number, address in enumerate(addresses):
            share = (ends_at - loop.time()) / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    return await self._attempt(url, address, make())
            except (OSError, ValueError) as exc:  # ValueError: a host name that TLS does not accept
                failure = exc
        self._dns_cache.pop(url.host, None)  # the host may have moved
        reason = str(failure) or f"no answer within {self._timeout:g} s"
        raise ConnectFailed(f"No connection to {url.host}: {reason}") from failure

    async def _attempt(self, url: Url, address: str, connection: Connection) -> Connection:
        is_tls = url.scheme == "https"
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address,
                url.port,
                ssl=self._tls() if is_tls else None,
                server_hostname=url.server_name if is_tls else None,
            )
        except BaseException:
            connection.discard()
            raise
        if connection.is_closing:
            raise ConnectionError("closed as soon as it was made")
        return connection


class UnixConnector(Connector):
    """Connects to one socket of this machine, whatever host the URL names.

    The process behind it may be starting, so the connector waits until it listens, within the timeout. Only so many
    connections wait at a time: requests come here before their credentials are checked.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__(None, timeout, ssl.create_default_context)
        self._path = str(path)
        self._waiting = 0

    async def connect(self, url: Url, make: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout
        while True:
            connection = make()
            try:
                async with asyncio.timeout_at(ends_at):
                    await loop.create_unix_connection(lambda: connection, self._path)  # noqa: B023  # awaited here
                return connection
            except (FileNotFoundError, ConnectionRefusedError) as exc:
                connection.discard()
                if loop.time() + _LISTEN_PAUSE >= ends_at or self._waiting >= _MAX_WAITING:
                    raise ConnectFailed(f"Nothing listens at {self._path}") from exc
            except OSError as exc:  # a TimeoutError is one
                connection.discard()
                raise ConnectFailed(f"No connection to {self._path}: {exc}") from exc
            except BaseException:
                connection.discard()
                raise
            self._waiting += 1
            try:
                await asyncio.sleep(_LISTEN_PAUSE)
            finally:
                self._waiting -= 1


async def _resolve_unguarded(host: str, port: int) -> list[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    try:
        return await asyncio.to_thread(look_up_addresses, host, port)
    except (OSError, UnicodeError) as exc:
        raise ConnectFailed(f"No address for {host}: {exc}") from exc


MAX_IDLE_PER_ORIGIN = 256
CLOSING_STEPS = 100


class Origin:
    """One scheme, host and port, the idle connections to it, and the heads of replies from it."""

    __slots__ = ("__weakref__", "idle", "reply_heads", "url")

    def __init__(self, url: Url) -> None:
        self.url = url
        self.idle: list[Connection] = []  # last in, first out
        self.reply_heads: dict[bytes, ReplyHead] = {}


class ConnectionPool:
    """A request gets an idle connection of its origin, a new one, or a place in the queue. Belongs to one event loop.

    A slot is the right to have one connection. It is taken before connecting and returned when the connection
    is closed; if a request is queued, the slot goes straight to it. So idle connections and free slots exist
    only while the queue is empty.

    A stream without a deadline gets a connection of its own, outside the slots, which is closed after it: such
    streams stay open for hours, and would leave no connections for the requests of others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connector: Connector,
        max_connections: int,
        idle_timeout: float,
        when_full: WhenFull,
    ) -> None:
        self._loop = loop
        self._connector = connector
        self._deadlines = DeadlineSweep(loop)
        self._idle_timeout = idle_timeout
        self._slots = max_connections  # below zero while more are in use (`when_full`)
        self._opens_more = when_full == "open"
        self._origins: WeakValueDictionary[tuple[str, str, int], Origin] = WeakValueDictionary()
        self._connections: set[Connection] = set()
        self._unpooled: set[Connection] = set()  # of streams without a deadline
        self._idle: dict[Connection, float] = {}  # idle since when; oldest first
        self._queue: deque[tuple[Origin, asyncio.Future[Connection | None]]] = deque()
        self._is_closed = False
        self._is_sweeping = False

    def get_origin(self, url: Url) -> Origin:
        key = (url.scheme, url.host, url.port)
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = Origin(url)
        return origin

    def take_idle(self, origin: Origin) -> Connection | None:
        while origin.idle:
            connection = origin.idle.pop()
            idle_since = self._idle.pop(connection)
            if connection.is_usable() and self._loop.time() - idle_since < self._idle_timeout:
                return connection
            connection.discard()
        return None

    async def get_connection(self, origin: Origin) -> Connection:
        """Raises ConnectFailed. Waits without a limit: the caller applies the deadline."""
        while True:
            connection = self.take_idle(origin)
            if connection is None and not self._try_take_slot():
                connection = await self._wait_in_queue(origin)
            if connection is None:
                return await self._open_connection(origin)
            if connection.is_usable():
                return connection
            connection.discard()

    async def open_unpooled(self, origin: Origin) -> Connection:
        """A connection for one stream without a deadline. Raises ConnectFailed."""
        connection = await self._connect(origin)
        self._unpooled.add(connection)
        return connection

    async def aclose(self) -> None:
        self._is_closed = True
        while self._queue:
            waiter = self._queue.popleft()[1]
            if not waiter.done():
                waiter.set_exception(ConnectFailed("The client is closed"))
        for connection in [*self._connections, *self._unpooled]:
            connection.close(Interrupted("The client was closed"))
        for _ in range(CLOSING_STEPS):
            if self._connections or self._unpooled:
                await asyncio.sleep(0)

    def count_connections(self) -> tuple[int, int, int]:
        """Connections in use, idle ones, and requests that wait for one."""
        idle = len(self._idle)
        return len(self._connections) + len(self._unpooled) - idle, idle, len(self._queue)

    # Called by connections

    def on_free(self, connection: Connection) -> None:
        origin: Origin = connection.origin
        if connection in self._unpooled:
            connection.discard()
        elif self._queue:
            self._assign_to_waiter(connection)
        elif len(origin.idle) >= MAX_IDLE_PER_ORIGIN:
            connection.discard()
        else:
            origin.idle.append(connection)
            self._idle[connection] = self._loop.time()
            if not self._is_sweeping:
                self._is_sweeping = True
                self._loop.call_later(self._idle_timeout, self._sweep)

    def on_closed(self, connection: Connection) -> None:
        self._unpooled.discard(connection)
        if connection not in self._connections:
            return  # the connection never held a slot
        self._connections.remove(connection)
        if self._idle.pop(connection, None) is not None:
            connection.origin.idle.remove(connection)
        self._return_slot()

    # Slots and the queue

    def _try_take_slot(self) -> bool:
        if self._slots > 0:
            self._slots -= 1
            return True
        if self._idle:
            self._discard_idle(next(iter(self._idle)))  # frees a slot soon; the request queues until then
        if self._opens_more:
            self._slots -= 1
        return self._opens_more

    def _discard_idle(self, connection: Connection) -> None:
        del self._idle[connection]
        connection.origin.idle.remove(connection)
        connection.discard()

    def _return_slot(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
                return
        self._slots += 1

    def _assign_to_waiter(self, connection: Connection) -> None:
        """Give it to the first request in the queue; if that goes to another origin, give it the slot instead."""
        while self._queue and self._queue[0][1].done():
            self._queue.popleft()
        if not self._queue:
            self.on_free(connection)
        elif self._queue[0][0] is connection.origin:
            self._queue.popleft()[1].set_result(connection)
        else:
            connection.discard()

    async def _wait_in_queue(self, origin: Origin) -> Connection | None:
        """A connection to `origin`, or None for a slot."""
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._queue.append((origin, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # a connection or slot that was just freed has removed it
                    self._queue.remove((origin, waiter))
            elif waiter.exception() is None:
                if (granted := waiter.result()) is None:
                    self._return_slot()
                elif not granted.is_closing:
                    self.on_free(granted)
            raise

    async def _open_connection(self, origin: Origin) -> Connection:
        """Open a connection; the caller has taken a slot. If opening fails, the slot is returned."""
        try:
            connection = await self._connect(origin)
        except BaseException:
            self._return_slot()
            raise
        self._connections.add(connection)
        return connection

    async def _connect(self, origin: Origin) -> Connection:
        if self._is_closed:
            raise ConnectFailed("The client is closed")
        connection = await self._connector.connect(
            origin.url, lambda: Connection(self._loop, self._deadlines, self, origin)
        )
        if self._is_closed:
            connection.discard()
            raise ConnectFailed("The client is closed")
        return connection

    def _sweep(self) -> None:
        """Close connections idle for too long: the server is about to close them, perhaps just as we send."""
        too_old = self._loop.time() - self._idle_timeout
        for connection, idle_since in list(self._idle.items()):
            if idle_since > too_old:
                break
            self._discard_idle(connection)
        self._is_sweeping = bool(self._idle) and not self._is_closed
        if self._is_sweeping:
            self._loop.call_later(self._idle_timeout / 4, self._sweep)


_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})  # these send a content-length even if it is 0
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
        when_full: WhenFull = "queue",
        connect_timeout: float = 10.0,
        idle_timeout: float = IDLE_TIMEOUT,
        client_cert: bytes | None = None,  # PEM: certificate chain and private key
        ca: bytes | None = None,  # PEM: trusted besides the system's
        verify: bool = True,
        tls: Callable[[], SSLContext] | None = None,  # for new connections, instead of the three above
        unix_socket: Path | None = None,  # all requests go there
    ) -> None:
        @cache
        def make_context() -> SSLContext:
            return make_client_context(client_cert, ca, verify)

        tls = tls or make_context
        if client_cert is not None or ca is not None:
            tls()  # report bad certificates now; without them, many clients never need a context
        self._guard = guard
        self._connector = (
            Connector(guard, connect_timeout, tls)
            if unix_socket is None
            else UnixConnector(unix_socket, connect_timeout)
        )
        self._max_connections = max_connections
        self._when_full: WhenFull = when_full
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
        if len(reply.body) > LONG and (problem := find_number_problem(reply.body)):
            raise ReplyTooLarge(problem)
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

    def count_connections(self) -> tuple[int, int, int]:
        """Connections in use, idle ones, and requests that wait for one."""
        return (0, 0, 0) if self._loop is None else self._pool.count_connections()

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
        if timeout == inf:
            connection: Connection | None = await self._pool.open_unpooled(prepared.origin)
        else:
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
        if not TOKEN.fullmatch(method) or method == "CONNECT":
            raise ConnectFailed(f"{method[:20]!r} is not an HTTP method that can be sent")
        start = f"{method} {parsed.target} HTTP/1.1\r\nhost: {parsed.authority}\r\n"
        end = "content-length: 0\r\n\r\n" if method in _BODY_METHODS else "\r\n"
        prepared = _PreparedRequest(self._pool.get_origin(parsed), start, end, method == "HEAD")
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
        self._pool = ConnectionPool(
            self._loop, self._connector, self._max_connections, self._idle_timeout, self._when_full
        )


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
