"""A call that outlives its caller's patience becomes a job: born running, with all its events from the first on.

The caller gets the handle, the work goes on untouched. If the store cannot take the
job the caller simply keeps waiting, as for any call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Result
from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.jobs.recorder import Recorder, size_of
from a2a_fabric.jobs.work import asked

_log = logging.getLogger(__name__)
_MOST_EVENTS = 1000
_MOST_BYTES = 1 << 20


class Desk(Protocol):
    """Who writes the job down and sees it through."""

    async def born(self, events: Sequence[Event]) -> tuple[JobSummary, Recorder]:
        """Raises StoreError."""
        ...

    def adopt(self, job: JobSummary, task: asyncio.Task[Result], recorder: Recorder) -> None: ...


class Early:
    """The events of a call that is no job yet; afterwards they go to the recorder."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.news = asyncio.Event()
        self.recorder: Recorder | None = None
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """More is not kept in memory: time to write it down."""
        return len(self.events) >= _MOST_EVENTS or self._bytes >= _MOST_BYTES

    async def emit(self, event: Event) -> None:
        if self.recorder is not None:
            await self.recorder.emit(event)
            return
        self._bytes += size_of(event)
        self.events.append(event)
        self.news.set()

    def go_on_with(self, recorder: Recorder, written: int) -> None:
        """In one step of the event loop, so that no event overtakes another."""
        self.recorder = recorder
        with suppress(FabricError):  # the recorder remembers what it refused
            for event in self.events[written:]:
                recorder.add(event)


class HandOver:
    def __init__(self, handler: Handler, desk: Desk, call: Call, emit: Emit) -> None:
        self._handler = handler
        self._desk = desk
        self._call = call
        self._emit = emit
        self._early = Early()
        self._told = 0
        self._is_handing_over = False
        self._has_left = False

    async def wait(self, patience: float) -> Result | JobSummary:
        """The answer if it comes in time, else the job. Cancelling it before that cancels the agent's work."""
        work = asyncio.create_task(asked(self._handler, self._call, self._early.emit))
        try:
            if not await self._is_done(work, time.monotonic() + patience):
                self._is_handing_over = True
                job = await asyncio.shield(asyncio.ensure_future(self._hand_over(work)))
                if job is not None:
                    await self._tell(job.events)
                    return job
                await self._is_done(work, None)
            return work.result()
        except BaseException:
            self._has_left = True
            if not self._is_handing_over:
                await _cancelled(work)
            raise

    async def _is_done(self, work: asyncio.Task[Result], ends_at: float | None) -> bool:
        """Passes events on to a caller who listens, until the work is done or time is up."""
        while True:
            self._early.news.clear()
            await self._tell(len(self._early.events))
            if work.done():
                return True
            if ends_at is not None and (ends_at <= time.monotonic() or self._early.is_full):
                return False
            news = asyncio.ensure_future(self._early.news.wait())
            timeout = None if ends_at is None else ends_at - time.monotonic()
            try:
                await asyncio.wait({work, news}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()

    async def _tell(self, upto: int) -> None:
        while self._told < upto:
            self._told += 1
            await self._emit(self._early.events[self._told - 1])

    async def _hand_over(self, work: asyncio.Task[Result]) -> JobSummary | None:
        written = tuple(self._early.events)
        try:
            job, recorder = await self._desk.born(written)
        except StoreError as error:
            _log.warning("a long call could not become a job: %s", error.message)
            self._is_handing_over = False
            if self._has_left:
                work.cancel()
            return None
        self._early.go_on_with(recorder, len(written))
        self._desk.adopt(job, work, recorder)
        return job


async def _cancelled(work: asyncio.Task[Result]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
