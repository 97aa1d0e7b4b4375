"""Writes a job's events as they happen: many at a time, in order, each once, and never more than policy allows.

While one batch is being written the next one gathers. An agent that is faster than
the store waits for the store; nobody waits for readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from a2a_fabric.core.errors import FabricError, UpstreamFailed
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.store_errors import StoreUnavailable
from a2a_fabric.core.stores import Jobs

_GATHERING = 0.002  # seconds; what happens in one breath is written in one go
_MOST_WAITING = 1000
_MOST_WAITING_BYTES = 1 << 20
_PAUSE = 0.25
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)


class EventsTooLarge(FabricError):
    """No other agent is asked, and nothing is repeated: it would only write as much again."""

    code = "UPSTREAM_ERROR"
    never_ran = False

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The agent sent more than {limit} bytes of events, the most that is kept of one job",
            reason="events_too_large",
            limit=limit,
        )


def size_of(event: Event) -> int:
    """Raises UpstreamFailed for what JSON cannot hold."""
    try:
        return len(msgspec.json.encode(event.data))
    except _NOT_JSON as exc:
        raise UpstreamFailed(f"An event of the agent is not JSON: {exc}"[:300]) from exc


class Recorder:
    """The log of one job, for whoever holds it. `lost` is called when somebody else does."""

    def __init__(self, jobs: Jobs, job: JobSummary, limit: int, lost: Callable[[], None]) -> None:
        self.has_streamed = False
        self.refusal: FabricError | None = None
        self._jobs = jobs
        self._held = job.held
        self._last = job.events
        self._room = limit - job.size
        self._limit = limit
        self._lost = lost
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_gathering = False

    async def emit(self, event: Event) -> None:
        self.add(event)
        while self._is_full and self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing}, timeout=_PAUSE)

    def add(self, event: Event) -> None:
        """To be written soon, without waiting. Raises EventsTooLarge, UpstreamFailed."""
        size = size_of(event)
        self._room -= size
        if self._room < 0:
            self.refusal = EventsTooLarge(self._limit)
            raise self.refusal
        self.has_streamed = self.has_streamed or event.kind in ("token", "artifact")
        self._waiting.append(event)
        self._waiting_bytes += size
        if self._writing is None or self._writing.done():
            self._is_gathering = True
            self._writing = asyncio.ensure_future(self._write())

    async def close(self) -> tuple[Event, ...]:
        """What is not written yet goes into the job's last write."""
        self._is_closing = True
        if self._writing is not None:
            if self._is_gathering:  # nothing of it is being written
                self._writing.cancel()
            await asyncio.wait({self._writing})
        return tuple(self._waiting)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= _MOST_WAITING or self._waiting_bytes >= _MOST_WAITING_BYTES

    async def _write(self) -> None:
        await asyncio.sleep(_GATHERING)
        self._is_gathering = False
        try:
            while self._waiting and not self._is_closing:
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
                await self._append(batch)
        except FabricError:  # LeaseLost, or the job is gone
            self._lost()

    async def _append(self, batch: Sequence[Event]) -> None:
        """A write whose fate is open is looked for before it is repeated: we alone write to this log."""
        expected = self._last + len(batch)
        while True:
            try:
                self._last = await self._jobs.append(self._held, batch)
                return
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE)
            if await self._has_reached(expected):
                self._last = expected
                return

    async def _has_reached(self, number: int) -> bool:
        try:
            return (await self._jobs.events(self._held.job_id, after=number - 1, limit=1)).last >= number
        except StoreUnavailable:
            return False
