"""A closed-loop load generator: N connections, each sending the next request when the last reply is whole.

A hand-written protocol, because a client library would be slower than what it measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools


@dataclass(frozen=True)
class Load:
    """What one run of the load came to."""

    calls: int
    seconds: float
    latencies: list[float]
    failures: int = 0
    first_event: list[float] | None = None
    events: int = 0

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Connection(asyncio.Protocol):
    """One keep-alive connection; `ask` sends a request and waits for the whole reply."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[int] | None = None
        self.first_at = 0.0
        self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self.first_at:
            self.first_at = time.perf_counter()
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
        self._reply = asyncio.get_running_loop().create_future()
        self.first_at = 0.0
        self.transport.write(request)
        return await self._reply


def request(port: int, path: str, body: bytes, *, token: str = "", accept: str = "application/json") -> bytes:
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\n{auth}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(port: int, message: bytes, connections: int, until: Callable[[int], bool]) -> Load:
    """Load one server until `until(calls so far)` says stop."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    first: list[float] = []
    failures = events = 0

    async def one() -> None:
        nonlocal failures, events
        transport, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        try:
            while not until(len(latencies)):
                started = time.perf_counter()
                status = await connection.ask(message)
                latencies.append(time.perf_counter() - started)
                first.append(connection.first_at - started)
                failures += status != 200
            events += connection.events
        finally:
            transport.close()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return Load(len(latencies), time.perf_counter() - started, latencies, failures, first, events)
