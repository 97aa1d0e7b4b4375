"""Promotion of a running call to a job, once it takes longer than its caller wants to wait.

The job is created in state `running`, with all events from the first one. The caller
gets the job handle and the work continues untouched. If the store cannot accept the
job, the caller keeps waiting, as for any call."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from a2a_fabric.core.call import Call, Emit, Handler
from a2a_fabric.core.errors import FabricError, StoreError
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.recording import current_origin
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.jobs.run import Recorder, measure_event, run_handler

_log = logging.getLogger(__name__)
_MAX_EVENTS = 1000
_MAX_BYTES = 1 << 20


class JobCreator(Protocol):
    """Stores the job and looks after the running work."""

    async def create_job(self, events: Sequence[Event]) -> tuple[JobSummary, Recorder]:
        """Raises StoreError."""
        ...

    def attach(self, job: JobSummary, task: asyncio.Task[Result], recorder: Recorder) -> None: ...


class EventBuffer:
    """The events of a call that is not a job yet; afterwards they go to the recorder."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.updated = asyncio.Event()
        self.recorder: Recorder | None = None
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more events are kept in memory, so that the call must become a job now."""
        return len(self.events) >= _MAX_EVENTS or self._bytes >= _MAX_BYTES

    async def emit(self, event: Event) -> None:
        if self.recorder is not None:
            await self.recorder.emit(event)
            return
        self._bytes += measure_event(event)
        self.events.append(event)
        self.updated.set()

    def switch_to(self, recorder: Recorder, written_count: int) -> None:
        """Must not await: it runs in one step of the event loop, so that events keep their order."""
        self.recorder = recorder
        with suppress(FabricError):  # the recorder remembers what it refused
            for event in self.events[written_count:]:
                recorder.add(event)


class Promotion:
    def __init__(self, handler: Handler, creator: JobCreator, call: Call, emit: Emit) -> None:
        self._handler = handler
        self._creator = creator
        self._call = call
        self._emit = emit
        self._buffer = EventBuffer()
        self._origin = copy.copy(current_origin.get())
        self._relayed = 0
        self._is_promoting = False
        self._is_abandoned = False

    async def wait(self, timeout: float) -> Result | JobSummary:
        """The answer if it comes in time, else the job. Cancelling it before that cancels the agent's work."""
        task = asyncio.create_task(run_handler(self._handler, self._call, self._buffer.emit, self._origin))
        try:
            if not await self._relay_until_done(task, time.monotonic() + timeout):
                self._is_promoting = True
                job = await asyncio.shield(asyncio.ensure_future(self._promote(task)))
                if job is not None:
                    await self._relay_events(job.events)
                    return job
                await self._relay_until_done(task, None)
            return task.result()
        except BaseException:
            self._is_abandoned = True
            if not self._is_promoting:
                await cancel_and_wait(task)
            raise

    async def _relay_until_done(self, task: asyncio.Task[Result], ends_at: float | None) -> bool:
        """Relay events until the work is done or `ends_at` has come. Returns whether the work is done."""
        while True:
            self._buffer.updated.clear()
            await self._relay_events(len(self._buffer.events))
            if task.done():
                return True
            if ends_at is not None and (ends_at <= time.monotonic() or self._buffer.is_full):
                return False
            update = asyncio.ensure_future(self._buffer.updated.wait())
            timeout = None if ends_at is None else ends_at - time.monotonic()
            try:
                await asyncio.wait({task, update}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                update.cancel()

    async def _relay_events(self, end: int) -> None:
        while self._relayed < end:
            self._relayed += 1
            await self._emit(self._buffer.events[self._relayed - 1])

    async def _promote(self, task: asyncio.Task[Result]) -> JobSummary | None:
        written_events = tuple(self._buffer.events)
        try:
            job, recorder = await self._creator.create_job(written_events)
        except StoreError as error:
            _log.warning("a long call could not become a job, so its caller waits: %s", error.message)
            self._is_promoting = False
            if self._is_abandoned:
                task.cancel()
            return None
        self._buffer.switch_to(recorder, len(written_events))
        self._creator.attach(job, task, recorder)
        self._origin.job_id = job.job_id
        return job
