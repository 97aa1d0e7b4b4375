"""Follows a job's event log from any number: stored events first, then live ones, without gap or repeat.

All readers of one job in this process share one tail, which polls the store and
buffers a bounded number of the newest events. A reader that is further behind reads
the store at its own pace, so a slow reader costs the others nothing. A caller that
only waits for the end reads nothing while this process runs the job."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal, TypeVar

import msgspec

from a2a_fabric.core.errors import STORE_AWAY, FabricError, JobNotFound, StoreError, StoreUnavailable
from a2a_fabric.core.job import EventPage, Job, JobEvent, JobState, is_final_state
from a2a_fabric.core.stores import Store, WakeHandle, job_topic, retry_store_call

T = TypeVar("T")

_log = logging.getLogger(__name__)
_POLL_INTERVAL = 5.0
_RETRY_PAUSE = 0.5
_BUFFERED_EVENTS = 1000
_BUFFERED_BYTES = 256 * 1024
_FIRST_PAGE = 64  # a log of at most this length is read at once
_FIRST_PAGE_BYTES = 64 * 1024
_STORE_WAIT_MESSAGE = "readers of job %s wait for the store: %s"
_AFTER_LAST = 2**53  # larger than every event number

LocalState = Literal["elsewhere", "working", "leaving"]


class JobReader:
    """`local_state_of` says whether this process runs a job or is about to release it; then no other process ends it.

    If the process loses the job to another worker, it posts the job's topic as soon as it notices.
    """

    def __init__(self, store: Store, local_state_of: Callable[[str], LocalState]) -> None:
        self._store = store
        self._local_state_of = local_state_of
        self._tails: dict[str, _Tail] = {}
        self._waiters: set[WakeHandle] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """Readers get an error that says to continue later or at another node, after the last number they have."""
        self._is_stopping = True
        for tail in self._tails.values():
            tail.fail(_stopping_error())
        for wake_handle in self._waiters:
            wake_handle.wake()

    async def wait_until_settled(self, job_id: str, *, past_questions: bool = False) -> Job:
        """The job, once it has ended, or (unless `past_questions`) waits for an answer.

        Raises JobNotFound, StoreUnavailable when the node stops.
        """
        with self._watch_job(job_id) as wake_handle:
            was_woken = False
            while not self._is_stopping:
                local_state = self._local_state_of(job_id)
                if not (was_woken and local_state == "working"):
                    is_releasing = local_state == "leaving"
                    if is_releasing or is_settled(await self._read_state(job_id), past_questions=past_questions):
                        job = await self._read_job(job_id)
                        if is_settled(job.state, past_questions=past_questions):
                            return job
                was_woken = await wake_handle.wait(_POLL_INTERVAL)
        raise _stopping_error()

    async def _read_state(self, job_id: str) -> JobState:
        """Reads no call and result, which may be large."""
        return (
            await self._retry_read(job_id, lambda: self._store.jobs.events(job_id, after=_AFTER_LAST, limit=1))
        ).state

    async def _read_job(self, job_id: str) -> Job:
        job = await self._retry_read(job_id, lambda: self._store.jobs.get(job_id))
        if job is None:
            raise JobNotFound(job_id)
        return job

    async def _retry_read(self, job_id: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read until the store is available."""
        is_logged = False  # log it once: many readers may wait
        while not self._is_stopping:
            try:
                return await operation()
            except JobNotFound:
                raise
            except StoreError as error:
                if not is_logged:
                    _log.warning(_STORE_WAIT_MESSAGE, job_id, error.message, extra=STORE_AWAY)
                is_logged = True
                await asyncio.sleep(_RETRY_PAUSE)
        raise _stopping_error()

    async def follow(self, job_id: str, after: int = 0, *, past_questions: bool = False) -> AsyncGenerator[JobEvent]:
        """Ends when the job has; unless `past_questions`, also while it waits for an answer.

        Raises JobNotFound, StoreUnavailable.
        """
        if self._is_stopping:
            raise _stopping_error()
        with self._open_tail(job_id) as tail:
            await tail.is_ready.wait()
            while True:
                changed = tail.changed
                events = tail.events_after(after)
                if events is None:
                    events = (await retry_store_call(self._store.jobs.events, job_id, after=after)).events
                for event in events:
                    yield event
                    after = event.number
                if events:
                    continue
                if tail.error is not None:
                    raise tail.error
                if is_settled(tail.state, past_questions=past_questions):
                    return
                await changed.wait()

    @contextmanager
    def _watch_job(self, job_id: str) -> Iterator[WakeHandle]:
        with self._store.notices.watch(job_topic(job_id)) as wake_handle:
            self._waiters.add(wake_handle)
            try:
                yield wake_handle
            finally:
                self._waiters.discard(wake_handle)

    @contextmanager
    def _open_tail(self, job_id: str) -> Iterator[_Tail]:
        tail = self._tails.get(job_id)
        if tail is None or tail.error is not None:
            tail = self._tails[job_id] = _Tail(self._store, job_id)
        tail.readers += 1
        try:
            yield tail
        finally:
            tail.readers -= 1
            if not tail.readers:
                tail.task.cancel()
                if self._tails.get(job_id) is tail:
                    del self._tails[job_id]


class _Tail:
    """The end of one log: `last` and `state` belong together, and `changed` is set when they are outdated."""

    def __init__(self, store: Store, job_id: str) -> None:
        self.readers = 0
        self.is_ready = asyncio.Event()
        self.changed = asyncio.Event()
        self.error: FabricError | None = None
        self.last = 0
        self.state: JobState = "queued"
        self._store = store
        self._job_id = job_id
        self._events: deque[tuple[JobEvent, int]] = deque()
        self._bytes = 0
        self.task = asyncio.create_task(self._follow_log())

    def events_after(self, after: int) -> Sequence[JobEvent] | None:
        """The events after this number; None if they are no longer buffered."""
        backlog = self.last - after
        if backlog <= 0:
            return ()
        if backlog > len(self._events):
            return None
        return [event for event, _ in islice(self._events, len(self._events) - backlog, None)]

    def fail(self, error: FabricError) -> None:
        self.error = error
        self.is_ready.set()
        self._notify()

    async def _follow_log(self) -> None:
        with self._store.notices.watch(job_topic(self._job_id)) as wake_handle:
            while not (self.error or (self.is_ready.is_set() and is_final_state(self.state))):
                try:
                    if await self._read_page():
                        await wake_handle.wait(_POLL_INTERVAL)
                except JobNotFound as error:
                    self.fail(error)
                except StoreError as error:
                    _log.warning(_STORE_WAIT_MESSAGE, self._job_id, error.message, extra=STORE_AWAY)
                    await asyncio.sleep(_RETRY_PAUSE)
                except Exception:
                    _log.exception("following job %s failed", self._job_id)
                    self.fail(StoreUnavailable("The job's events cannot be read now; the node's log says why"))

    async def _read_page(self) -> bool:
        """Returns whether the end of the log was reached."""
        if not self.is_ready.is_set():
            page = await self._store.jobs.events(self._job_id, limit=_FIRST_PAGE, max_bytes=_FIRST_PAGE_BYTES)
            if page.upto >= page.last:
                self._buffer_page(page)
            self.last, self.state = page.last, page.state  # of a longer log only the end is known now
            self.is_ready.set()
            self._notify()
            return True
        page = await self._store.jobs.events(self._job_id, after=self.last)
        self._buffer_page(page)
        return page.upto >= page.last

    def _buffer_page(self, page: EventPage) -> None:
        for event in page.events:
            size = len(msgspec.json.encode(event.event.data))
            self._events.append((event, size))
            self._bytes += size
        while len(self._events) > 1 and (len(self._events) > _BUFFERED_EVENTS or self._bytes > _BUFFERED_BYTES):
            self._bytes -= self._events.popleft()[1]
        is_complete = page.upto >= page.last
        if page.events or (is_complete and page.state != self.state):
            self.last = page.upto
            self.state = page.state if is_complete else self.state
            self._notify()

    def _notify(self) -> None:
        """Wake all readers, and give the next waits a new event."""
        self.changed.set()
        self.changed = asyncio.Event()


def is_settled(state: JobState, *, past_questions: bool) -> bool:
    return is_final_state(state) or (state == "input_required" and not past_questions)


def _stopping_error() -> StoreUnavailable:
    return StoreUnavailable(
        "The node is being stopped: continue later, or at another node, after the last event you have"
    )
