"""The connection pool: a request gets an idle connection of its origin, a new one, or a place in the queue.

A slot is the right to have one connection. It is taken before connecting and returned when the connection
is closed; if a request is queued, the slot goes straight to it. So idle connections and free slots exist only
while the queue is empty."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from weakref import WeakValueDictionary

from a2a_fabric.core.deadline import DeadlineSweep
from a2a_fabric.outbound.connection import Connection
from a2a_fabric.outbound.connector import Connector
from a2a_fabric.outbound.port import ConnectFailed, Interrupted
from a2a_fabric.outbound.url import Url

MAX_IDLE_PER_ORIGIN = 256
CLOSING_STEPS = 100


class Origin:
    """One scheme, host and port, and the idle connections to it."""

    __slots__ = ("__weakref__", "idle", "url")

    def __init__(self, url: Url) -> None:
        self.url = url
        self.idle: list[Connection] = []  # last in, first out


class ConnectionPool:
    """Belongs to one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connector: Connector, max_connections: int, idle_timeout: float
    ) -> None:
        self._loop = loop
        self._connector = connector
        self._deadlines = DeadlineSweep(loop)
        self._idle_timeout = idle_timeout
        self._slots = max_connections
        self._origins: WeakValueDictionary[tuple[str, str, int], Origin] = WeakValueDictionary()
        self._connections: set[Connection] = set()
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
            if connection.is_usable and self._loop.time() - idle_since < self._idle_timeout:
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
            if connection.is_usable:
                return connection
            connection.discard()

    async def aclose(self) -> None:
        self._is_closed = True
        while self._queue:
            waiter = self._queue.popleft()[1]
            if not waiter.done():
                waiter.set_exception(ConnectFailed("The client is closed"))
        for connection in list(self._connections):
            connection.close(Interrupted("The client was closed"))
        for _ in range(CLOSING_STEPS):
            if self._connections:
                await asyncio.sleep(0)

    # Called by connections

    def on_free(self, connection: Connection) -> None:
        origin: Origin = connection.origin
        if self._queue:
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
        return False

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
                self._leave_queue(origin, waiter)
            elif waiter.exception() is None:
                self._return_grant(waiter.result())
            raise

    def _leave_queue(self, origin: Origin, waiter: asyncio.Future[Connection | None]) -> None:
        with suppress(ValueError):  # a connection or slot that was just freed has removed it
            self._queue.remove((origin, waiter))

    def _return_grant(self, grant: Connection | None) -> None:
        if grant is None:
            self._return_slot()
        elif not grant.is_closing:
            self.on_free(grant)

    async def _open_connection(self, origin: Origin) -> Connection:
        """Open a connection; the caller has taken a slot. If opening fails, the slot is returned."""
        try:
            if self._is_closed:
                raise ConnectFailed("The client is closed")
            connection = await self._connector.connect(
                origin.url, lambda: Connection(self._loop, self._deadlines, self, origin)
            )
        except BaseException:
            self._return_slot()
            raise
        self._connections.add(connection)
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
