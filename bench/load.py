"""A closed-loop load generator: N connections, each sending the next request when the last reply is complete.

The protocol is hand-written, because a client library would be slower than what it
measures. Connections and sessions are opened before the measurement starts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httptools

LONGEST = 600.0  # seconds; every run ends by itself before that


@dataclass(frozen=True)
class Load:
    """The figures of one run."""

    calls: int
    seconds: float
    latencies: list[float]
    failures: int = 0
    first_event: list[float] | None = None
    events: int = 0
    cpu: float = 0.0  # seconds that the measured process spent on it

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


@dataclass(frozen=True)
class RequestPlan:
    """The request that a connection repeats, the text that each reply must hold, and the last request."""

    message: bytes
    expected: bytes = b""
    last_request: bytes = b""


class Connection(asyncio.Protocol):
    """One keep-alive connection; `send` sends a request and waits for the whole reply."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[int] | None = None
        self.first_at = 0.0
        self.events = 0
        self.body = b""  # of the last reply
        self.session = ""  # that the server has opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self.session = value.decode()

    def on_body(self, body: bytes) -> None:
        if not self.first_at:
            self.first_at = time.perf_counter()
        self.body += body
        self.events += body.count(b'"event":"token"')

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError("closed"))

    async def send(self, request: bytes) -> int:
        """The status. Raises ConnectionError."""
        if self.transport.is_closing():
            raise ConnectionError("closed")
        self._reply = asyncio.get_running_loop().create_future()
        self.first_at = 0.0
        self.body = b""
        self.transport.write(request)
        return await self._reply


OpenConnection = Callable[[Connection], Awaitable[RequestPlan]]


def repeat_request(message: bytes, expected: bytes = b"") -> OpenConnection:
    """For servers that need no handshake."""

    async def open_connection(connection: Connection) -> RequestPlan:
        return RequestPlan(message, expected)

    return open_connection


def request(
    port: int,
    path: str,
    body: bytes,
    *,
    token: str = "",
    accept: str = "application/json",
    headers: Mapping[str, str] = {},  # read-only
    method: str = "POST",
) -> bytes:
    given = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    more = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(
    port: int,
    open_connection: OpenConnection,
    connections: int,
    until: Callable[[int, float], bool],
    cpu: Callable[[], float] = time.process_time,
) -> Load:
    """Load one server until `until(calls, seconds)` is true; `cpu` returns the CPU seconds of the server."""
    async with asyncio.timeout(LONGEST):
        crowd = await asyncio.gather(*(_open(port, open_connection) for _ in range(connections)))
        try:
            return await _measure(crowd, until, cpu)
        finally:
            await asyncio.gather(*(_close(connection, talk) for connection, talk in crowd))


async def _open(port: int, open_connection: OpenConnection) -> tuple[Connection, RequestPlan]:
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    try:
        return connection, await open_connection(connection)
    except BaseException:
        transport.close()
        raise


async def _close(connection: Connection, talk: RequestPlan) -> None:
    try:
        if talk.last_request:
            await connection.send(talk.last_request)
    except ConnectionError:
        pass  # it is gone already
    finally:
        connection.transport.close()


async def _measure(
    crowd: Sequence[tuple[Connection, RequestPlan]], until: Callable[[int, float], bool], cpu: Callable[[], float]
) -> Load:
    latencies: list[float] = []
    first: list[float] = []
    failures = 0
    began, used = time.perf_counter(), cpu()

    async def work(connection: Connection, talk: RequestPlan) -> None:
        nonlocal failures
        while not until(len(latencies), (started := time.perf_counter()) - began):
            try:
                status = await connection.send(talk.message)
            except ConnectionError:
                failures += 1
                return
            latencies.append(time.perf_counter() - started)
            first.append(connection.first_at - started)
            failures += status not in (200, 201) or talk.expected not in connection.body

    await asyncio.gather(*(work(*each) for each in crowd))
    seconds, events = time.perf_counter() - began, sum(connection.events for connection, _ in crowd)
    return Load(len(latencies), seconds, latencies, failures, first, events, cpu() - used)
