"""The load generator in Python, for machines without a C compiler; hand-written, as client libraries are slower."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import httptools

from bench import processes
from bench.load import SESSION, Limit, Load, RequestPlan

LONGEST = 600.0  # seconds; every run ends by itself before that


class Connection(asyncio.Protocol):
    """One keep-alive connection; `send` sends a request and waits for the whole reply."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[int] | None = None
        self.first_at = 0.0
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
        self.transport.write(request.replace(SESSION.encode(), self.session.encode()))
        return await self._reply


async def run(port: int, plan: RequestPlan, connections: int, limit: Limit, pid: int | None) -> Load:
    """A closed loop; a rate is kept only as well as a loop in Python can. Raises ConnectionError."""
    async with asyncio.timeout(LONGEST):
        crowd = await asyncio.gather(*(_open(port, plan) for _ in range(connections)))
        try:
            return await _measure(crowd, plan, limit, pid)
        finally:
            await asyncio.gather(*(_close(connection, plan) for connection in crowd))


async def _open(port: int, plan: RequestPlan) -> Connection:
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    try:
        for opening in plan.opening:
            status = await connection.send(opening)
            if status // 100 != 2:
                raise ConnectionError(f"the session was refused with HTTP {status}: {connection.body[:200]!r}")
    except BaseException:
        transport.close()
        raise
    return connection


async def _close(connection: Connection, plan: RequestPlan) -> None:
    try:
        if plan.ending:
            await connection.send(plan.ending)
    except ConnectionError:
        pass  # it is gone already
    finally:
        connection.transport.close()


async def _measure(crowd: Sequence[Connection], plan: RequestPlan, limit: Limit, pid: int | None) -> Load:
    latencies: list[float] = []
    first: list[float] = []
    started = failures = events = 0
    why = ""
    messages = itertools.cycle(plan.messages)
    server_cpu = processes.cpu_seconds(pid) if pid is not None else 0.0
    began, own_cpu = time.perf_counter(), time.process_time()

    def may_send(at: float) -> bool:
        return (not limit.calls or started < limit.calls) and (not limit.seconds or at - began < limit.seconds)

    async def work(connection: Connection) -> None:
        nonlocal started, failures, events, why
        while may_send(at := time.perf_counter()):
            started += 1
            if limit.rate:  # the call is due then, and counts from then on
                at = began + started / limit.rate
                await asyncio.sleep(at - time.perf_counter())
            try:
                status = await connection.send(next(messages))
            except ConnectionError as exc:
                failures += 1
                why = why or str(exc)
                return
            latencies.append(time.perf_counter() - at)
            first.append(connection.first_at - at)
            if status not in (200, 201) or plan.expected not in connection.body:
                failures += 1
                why = why or f"HTTP {status}: {connection.body[:200]!r}"
            if plan.event:
                events += connection.body.count(plan.event)

    await asyncio.gather(*(work(each) for each in crowd))
    seconds = time.perf_counter() - began
    return Load(
        started,
        seconds,
        latencies,
        failures,
        first,
        events,
        processes.cpu_seconds(pid) - server_cpu if pid is not None else 0.0,
        time.process_time() - own_cpu,
        why=why,
    )
