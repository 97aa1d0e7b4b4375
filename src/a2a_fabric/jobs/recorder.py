"""Writes a job's events to the store: in batches, in order, each once, up to the size limit of a job.

While one batch is written the next one fills. An agent that is faster than the
store waits for the store; readers are never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from a2a_fabric.core.errors import FabricError, StoreUnavailable, UpstreamFailed
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.stores import JobStore

_BATCH_DELAY = 0.002  # seconds; events that come close together are written together
_MAX_PENDING = 1000
_MAX_PENDING_BYTES = 1 << 20
_RETRY_PAUSE = 0.25
NOT_JSON_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


class EventsTooLarge(FabricError):
    """Neither another agent nor a retry would help: they would write as much again."""

    code = "UPSTREAM_ERROR"
    never_ran = False

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The agent sent more than {limit} bytes of events, which is the limit for one job",
            reason="events_too_large",
            limit=limit,
        )


def measure_event(event: Event) -> int:
    """Raises UpstreamFailed for an event that is not JSON."""
    try:
        return len(msgspec.json.encode(event.data))
    except NOT_JSON_ERRORS as exc:
        raise UpstreamFailed(f"An event of the agent is not JSON: {exc}"[:300]) from exc


class Recorder:
    """Writes the log of one job for its worker. `on_lost` is called when another worker holds the job."""

    def __init__(self, jobs: JobStore, job: JobSummary, limit: int, on_lost: Callable[[], None]) -> None:
        self.has_streamed = False
        self.refusal: FabricError | None = None
        self._jobs = jobs
        self._token = job.fencing_token
        self._last = job.events
        self._bytes_left = limit - job.size
        self._limit = limit
        self._on_lost = on_lost
        self._pending: list[Event] = []
        self._pending_bytes = 0
        self._write_task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_batching = False

    async def emit(self, event: Event) -> None:
        self.add(event)
        while self._is_full and self._write_task is not None and not self._write_task.done():
            await asyncio.wait({self._write_task}, timeout=_RETRY_PAUSE)

    def add(self, event: Event) -> None:
        """Queue an event for writing, without waiting. Raises EventsTooLarge, UpstreamFailed."""
        size = measure_event(event)
        self._bytes_left -= size
        if self._bytes_left < 0:
            self.refusal = EventsTooLarge(self._limit)
            raise self.refusal
        self.has_streamed = self.has_streamed or event.kind in ("token", "artifact")
        self._pending.append(event)
        self._pending_bytes += size
        if self._write_task is None or self._write_task.done():
            self._is_batching = True
            self._write_task = asyncio.ensure_future(self._write())

    async def close(self) -> tuple[Event, ...]:
        """Stop writing. Returns the events that are not written yet; they belong to the job's last write."""
        self._is_closing = True
        if self._write_task is not None:
            if self._is_batching:  # it has not begun to write
                self._write_task.cancel()
            await asyncio.wait({self._write_task})
        return tuple(self._pending)

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= _MAX_PENDING or self._pending_bytes >= _MAX_PENDING_BYTES

    async def _write(self) -> None:
        await asyncio.sleep(_BATCH_DELAY)
        self._is_batching = False
        try:
            while self._pending and not self._is_closing:
                batch, self._pending, self._pending_bytes = self._pending, [], 0
                await self._append(batch)
        except FabricError:  # LeaseLost, or the job is gone
            self._on_lost()

    async def _append(self, batch: Sequence[Event]) -> None:
        """After a write with an unknown outcome, read the log before repeating it: only this recorder writes to it."""
        expected = self._last + len(batch)
        while True:
            try:
                self._last = await self._jobs.append(self._token, batch)
                return
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_PAUSE)
            if await self._has_reached(expected):
                self._last = expected
                return

    async def _has_reached(self, number: int) -> bool:
        try:
            return (await self._jobs.events(self._token.job_id, after=number - 1, limit=1)).last >= number
        except StoreUnavailable:
            return False
