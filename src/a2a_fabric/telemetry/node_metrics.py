"""Metrics about the node itself: its process, its event loop, its store, and what is in use of its limits.

They are computed at a scrape, except two: how late the event loop runs its timers, and how long calls to the store
take. The store is asked for its numbers at most every `_MIN_REFRESH` seconds, and less often if it takes long: the
questions cost at most a hundredth of its time. A store that does not answer leaves the last numbers out."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, cast

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.job import JOB_STATES
from a2a_fabric.core.keys import KeyStore
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.logins import LoginStore
from a2a_fabric.core.node_health import OK, NodeCheck
from a2a_fabric.core.receipts import ReceiptStore
from a2a_fabric.core.spans import CallStore
from a2a_fabric.core.stores import (
    DescriptionStore,
    HealthLog,
    JobStore,
    MessageStore,
    RegistrationStore,
    Store,
    StoreStatus,
)
from a2a_fabric.telemetry.metrics import (
    CallTally,
    Labels,
    render_counter,
    render_family,
    render_histogram,
    render_value,
)

_LAG_INTERVAL = 0.5
_LAG_WINDOW = 15.0  # seconds for which a late timer counts against the health of the node
_TOO_LATE = 1.0
_MIN_REFRESH = 10.0
_REFRESH_SHARE = 100  # the store works on its numbers at most one part in so many of the time
_STATUS_TIMEOUT = 2.0


class LagTally(CallTally):
    """How late timers were."""

    __slots__ = ()
    bounds: ClassVar = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class EventLoopLag:
    """Sets a timer twice a second and notes how late it runs. `run` until cancelled."""

    def __init__(self) -> None:
        self._tally = LagTally()
        self._late: tuple[float, float] = (0.0, float("-inf"))  # the longest delay of late, and when it was

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + _LAG_INTERVAL
            await asyncio.sleep(_LAG_INTERVAL)
            now = loop.time()
            self._note(max(0.0, now - due_at), now)

    def _note(self, delay: float, now: float) -> None:
        self._tally.add(delay)
        if delay >= self._late[0] or now - self._late[1] > _LAG_WINDOW:
            self._late = delay, now

    def check(self) -> NodeCheck:
        delay, at = self._late
        if delay < _TOO_LATE or asyncio.get_running_loop().time() - at > _LAG_WINDOW:
            return OK
        return NodeCheck(status="degraded", reason=f"The event loop was blocked for {delay:.1f} s")

    def render(self) -> Iterator[str]:
        yield from render_histogram(
            "fabric_event_loop_lag_seconds", "How late timers of the event loop ran", (), [((), self._tally)]
        )


class ProcessMetrics:
    """The process, under the names that Prometheus' own clients use. What the system does not tell is left out."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._started_at = self._read_start()

    def _read_start(self) -> float:
        """When the process started; where the system does not tell, when its node did."""
        try:
            fields = (self._proc / "self/stat").read_text().rpartition(")")[2].split()
            booted = next(line for line in (self._proc / "stat").read_text().splitlines() if line.startswith("btime "))
            return int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, StopIteration, AttributeError):
            return time.time()

    def render(self) -> Iterator[str]:
        used = os.times()
        yield render_value("process_cpu_seconds_total", "counter", "User and system CPU time", used.user + used.system)
        yield render_value("process_start_time_seconds", "gauge", "When the process started", self._started_at)
        yield "".join(self._render_memory())
        yield "".join(self._render_files())

    def _render_memory(self) -> Iterator[str]:
        try:
            virtual, resident = (self._proc / "self/statm").read_text().split()[:2]
            page = os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            return
        yield render_value("process_virtual_memory_bytes", "gauge", "Virtual memory", int(virtual) * page)
        yield render_value("process_resident_memory_bytes", "gauge", "Resident memory", int(resident) * page)

    def _render_files(self) -> Iterator[str]:
        if sys.platform == "win32":
            return
        try:
            opened = len(os.listdir(self._proc / "self/fd"))
            limit = os.sysconf("SC_OPEN_MAX")
        except (OSError, ValueError):
            return
        yield render_value("process_open_fds", "gauge", "Open files and sockets", opened)
        yield render_value("process_max_fds", "gauge", "Most open files and sockets", limit)


class StoreTally(CallTally):
    """Calls to one part of the store."""

    __slots__ = ()
    bounds: ClassVar = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


_PORTS: dict[str, type] = {
    "jobs": JobStore,
    "registrations": RegistrationStore,
    "health": HealthLog,
    "descriptions": DescriptionStore,
    "messages": MessageStore,
    "logins": LoginStore,
    "keys": KeyStore,
    "receipts": ReceiptStore,
    "calls": CallStore,
}


class _TimedPort:
    """A part of the store whose methods of the port are timed. Everything else is the part's own."""

    def __init__(self, part: Any, port: type, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._part = part
        for name, _ in inspect.getmembers(port, inspect.iscoroutinefunction):
            setattr(self, name, timed(getattr(part, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class TimedStore:
    """A store, timed. An attribute that is no part of a store is the store's own."""

    def __init__(self, store: Store, metrics: StoreMetrics) -> None:
        self._store = store
        for name, port in _PORTS.items():
            if (part := getattr(store, name, None)) is not None:  # a plug-in's store may keep no calls
                setattr(self, name, _TimedPort(part, port, metrics.timer(name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class StoreMetrics:
    """Time and errors of calls to the store, by part of the store; jobs by state, and the age of the queue."""

    def __init__(
        self,
        on_error: Callable[[StoreError], None] = lambda error: None,
        is_usable: Callable[[], Awaitable[bool]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_usable` says whether the store can be read and written."""
        self._on_error = on_error
        self._is_usable = is_usable
        self._clock = clock
        self._tallies: dict[str, StoreTally] = {}
        self._errors: dict[Labels, int] = {}
        self._status: StoreStatus | None = None
        self._read_status: Callable[[], Awaitable[StoreStatus]] | None = None
        self._refresh_at = float("-inf")
        self._is_up = True

    def wrap(self, store: Store) -> Store:
        self._read_status = store.status
        return cast(Store, TimedStore(store, self))

    def timer(self, part: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        tally = self._tallies.setdefault(part, StoreTally())
        now = time.perf_counter

        def timed(method: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(method)
            async def call(*args: Any, **kwargs: Any) -> Any:
                started = now()
                try:
                    return await method(*args, **kwargs)
                except StoreError as error:  # others are answers, such as a lost lease
                    self._count_error(part, error.code)
                    self._on_error(error)
                    raise
                finally:
                    tally.add(now() - started)

            return call

        return timed

    def _count_error(self, part: str, code: str) -> None:
        self._errors[part, code] = self._errors.get((part, code), 0) + 1

    async def refresh(self) -> None:
        """Ask the store for its numbers, unless they are fresh enough."""
        if self._read_status is None or self._clock() < self._refresh_at:
            return
        started = self._clock()
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT):
                self._status = await self._read_status()
            self._is_up = self._is_usable is None or await self._is_usable()
        except Exception:  # a store may raise any exception; its health says which
            self._status, self._is_up = None, False
        ended = self._clock()
        self._refresh_at = ended + max(_MIN_REFRESH, _REFRESH_SHARE * (ended - started))

    def render(self) -> Iterator[str]:
        tallies = [((part,), tally) for part, tally in self._tallies.items()]
        yield from render_histogram("fabric_store_duration_seconds", "Time of a call to the store", ("part",), tallies)
        yield from render_counter(
            "fabric_store_errors", "Calls to the store that failed", ("part", "error_code"), list(self._errors.items())
        )
        yield render_value("fabric_store_up", "gauge", "1 if the store could be read and written", self._is_up)
        if self._status is not None:
            yield from _render_status(self._status)


def _render_status(status: StoreStatus) -> Iterator[str]:
    states = dict.fromkeys(JOB_STATES, 0) | status.jobs
    jobs = [((state,), float(count)) for state, count in states.items()]
    yield from render_family("fabric_jobs", "gauge", "Jobs in the store", ("state",), jobs)
    if status.queue_age is not None:
        text = "How long the oldest job that is due has waited"
        yield render_value("fabric_job_queue_age_seconds", "gauge", text, status.queue_age)
    if status.bytes is not None:
        yield render_value("fabric_store_size_bytes", "gauge", "Size of the store", status.bytes)
    connections = [((state,), float(count)) for state, count in status.connections.items()]
    if connections:
        text = "Connections to the store's server"
        yield from render_family("fabric_store_connections", "gauge", text, ("state",), connections)


class UsageGauges:
    """What is in use now: limits, connections to agents, sessions, and breakers that are not closed."""

    def __init__(
        self,
        limits: Mapping[str, FairLimit],
        connections: Callable[[], Mapping[str, int]],
        sessions: Mapping[str, Callable[[], int]],
        breakers: Callable[[], tuple[Mapping[str, int], Sequence[str]]],
    ) -> None:
        """`breakers` counts them by state, and names the agents whose breaker is open."""
        self._limits = limits
        self._connections = connections
        self._sessions = sessions
        self._breakers = breakers

    def render(self) -> Iterator[str]:
        used = [((name,), float(limit.in_use)) for name, limit in self._limits.items()]
        # The expositions of all processes are added up: each reports its part of what they share.
        most = [((name,), limit.capacity / limit.processes) for name, limit in self._limits.items()]
        yield from render_family("fabric_limit_used", "gauge", "How much of a limit is in use", ("limit",), used)
        yield from render_family("fabric_limit_max", "gauge", "The limit", ("limit",), most)
        opened = [((state,), float(count)) for state, count in self._connections().items()]
        text = "Connections to agents over HTTP, and requests that wait for one"
        yield from render_family("fabric_outbound_connections", "gauge", text, ("state",), opened)
        sessions = [((kind,), float(count())) for kind, count in self._sessions.items()]
        yield from render_family("fabric_sessions", "gauge", "Open sessions of clients", ("kind",), sessions)
        counts, open_ids = self._breakers()
        states = [((state,), float(count)) for state, count in counts.items()]
        yield from render_family("fabric_breakers", "gauge", "Circuit breakers of agents in use", ("state",), states)
        text = "1 for each agent whose breaker is open"
        yield from render_family(
            "fabric_breaker_open", "gauge", text, ("agent_id",), [((agent_id,), 1.0) for agent_id in open_ids]
        )
