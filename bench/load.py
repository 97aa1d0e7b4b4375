"""A closed-loop load generator: N connections, each sending the next request when the last reply is whole.

A hand-written protocol, because a client library would be slower than what it measures.
Connections are opened, and sessions with them, before the clock starts.
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
    """What one run of the load came to."""

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
class Talk:
    """What a connection says again and again, what every reply must hold, and what it says last."""

    message: bytes
    expected: bytes = b""
    farewell: bytes = b""


class Connection(asyncio.Protocol):
    """One keep-alive connection; `ask` sends a request and waits for the whole reply."""

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

    async def ask(self, request: bytes) -> int:
        """The status. Raises ConnectionError."""
        if self.transport.is_closing():
            raise ConnectionError("closed")
        self._reply = asyncio.get_running_loop().create_future()
        self.first_at = 0.0
        self.body = b""
        self.transport.write(request)
        return await self._reply


Opening = Callable[[Connection], Awaitable[Talk]]


def saying(message: bytes, expected: bytes = b"") -> Opening:
    """For servers that need no opening words."""

    async def opening(connection: Connection) -> Talk:
        return Talk(message, expected)

    return opening


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
    opening: Opening,
    connections: int,
    until: Callable[[int, float], bool],
    cpu: Callable[[], float] = time.process_time,
) -> Load:
    """Load one server until `until(calls so far, seconds so far)` says stop; `cpu` tells what the server has used."""
    async with asyncio.timeout(LONGEST):
        crowd = await asyncio.gather(*(_open(port, opening) for _ in range(connections)))
        try:
            return await _measured(crowd, until, cpu)
        finally:
            await asyncio.gather(*(_close(connection, talk) for connection, talk in crowd))


async def _open(port: int, opening: Opening) -> tuple[Connection, Talk]:
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    try:
        return connection, await opening(connection)
    except BaseException:
        transport.close()
        raise


async def _close(connection: Connection, talk: Talk) -> None:
    try:
        if talk.farewell:
            await connection.ask(talk.farewell)
    except ConnectionError:
        pass  # it is gone already
    finally:
        connection.transport.close()


async def _measured(
    crowd: Sequence[tuple[Connection, Talk]], until: Callable[[int, float], bool], cpu: Callable[[], float]
) -> Load:
    latencies: list[float] = []
    first: list[float] = []
    failures = 0
    began, used = time.perf_counter(), cpu()

    async def work(connection: Connection, talk: Talk) -> None:
        nonlocal failures
        while not until(len(latencies), (started := time.perf_counter()) - began):
            try:
                status = await connection.ask(talk.message)
            except ConnectionError:
                failures += 1
                return
            latencies.append(time.perf_counter() - started)
            first.append(connection.first_at - started)
            failures += status not in (200, 201) or talk.expected not in connection.body

    await asyncio.gather(*(work(*each) for each in crowd))
    seconds, events = time.perf_counter() - began, sum(connection.events for connection, _ in crowd)
    return Load(len(latencies), seconds, latencies, failures, first, events, cpu() - used)
