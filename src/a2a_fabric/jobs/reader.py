"""Follows a job's log from any number: what is written already, then what comes, without gap or repeat.

All who follow one job in this process share one tail, which asks the store and keeps
a bounded stretch of the newest events. Whoever is further behind than that reads the
store at their own pace: a slow reader costs nobody anything. Those who only wait for
its end read nothing while this process is at work on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal, TypeVar

import msgspec

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import EventPage, Job, JobEvent
from a2a_fabric.core.states import JobState, has_ended
from a2a_fabric.core.store_errors import JobNotFound, StoreError, StoreUnavailable
from a2a_fabric.core.stores import Store, Watch, job_topic
from a2a_fabric.jobs.patience import patiently

T = TypeVar("T")

_log = logging.getLogger(__name__)
_POLL = 5.0
_PAUSE = 0.5
_KEPT = 1000
_KEPT_BYTES = 256 * 1024
_FIRST = 64  # a log that is no longer than this is read in one go
_FIRST_BYTES = 64 * 1024
_WAITING = "readers of job %s wait for the store: %s"
_NEWEST = 2**53  # beyond every log

Standing = Literal["elsewhere", "working", "leaving"]


class Reader:
    """`standing` says whether this process works on a job, or is about to leave it: nobody else can end it then.

    Should it lose the job to another without knowing, its topic is to be posted once it learns of that.
    """

    def __init__(self, store: Store, standing: Callable[[str], Standing]) -> None:
        self._store = store
        self._standing = standing
        self._tails: dict[str, _Tail] = {}
        self._waiting: set[Watch] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """Readers are told to come back later or elsewhere, with the last number that they have."""
        self._is_stopping = True
        for tail in self._tails.values():
            tail.end(_stopping())
        for bell in self._waiting:
            bell.ring()

    async def settled(self, job_id: str, *, past_questions: bool = False) -> Job:
        """The job, once it has ended, or (unless `past_questions`) waits for an answer.

        Raises JobNotFound, StoreUnavailable when the node stops.
        """
        with self._bell(job_id) as bell:
            was_told = False
            while not self._is_stopping:
                standing = self._standing(job_id)
                if not (was_told and standing == "working"):
                    is_likely = standing == "leaving"
                    if is_likely or _is_settled(await self._state(job_id), past_questions=past_questions):
                        job = await self._whole(job_id)
                        if _is_settled(job.state, past_questions=past_questions):
                            return job
                was_told = await bell.wait(_POLL)
        raise _stopping()

    async def _state(self, job_id: str) -> JobState:
        """Without the job's call and result, which may be large."""
        return (await self._asked(job_id, lambda: self._store.jobs.events(job_id, after=_NEWEST, limit=1))).state

    async def _whole(self, job_id: str) -> Job:
        job = await self._asked(job_id, lambda: self._store.jobs.get(job_id))
        if job is None:
            raise JobNotFound(job_id)
        return job

    async def _asked(self, job_id: str, ask: Callable[[], Awaitable[T]]) -> T:
        """As soon as the store can be asked."""
        was_said = False  # once is enough: there may be many who wait
        while not self._is_stopping:
            try:
                return await ask()
            except JobNotFound:
                raise
            except StoreError as error:
                if not was_said:
                    _log.warning(_WAITING, job_id, error.message)
                was_said = True
                await asyncio.sleep(_PAUSE)
        raise _stopping()

    async def follow(self, job_id: str, after: int = 0, *, past_questions: bool = False) -> AsyncGenerator[JobEvent]:
        """Ends when the job has; unless `past_questions`, also while it waits for an answer.

        Raises JobNotFound, StoreUnavailable.
        """
        if self._is_stopping:
            raise _stopping()
        with self._tail(job_id) as tail:
            await tail.is_ready.wait()
            while True:
                changed = tail.changed
                lines = tail.beyond(after)
                if lines is None:
                    lines = (await patiently(lambda at=after: self._store.jobs.events(job_id, after=at))).events  # type: ignore[misc]
                for line in lines:
                    yield line
                    after = line.number
                if lines:
                    continue
                if tail.error is not None:
                    raise tail.error
                if _is_settled(tail.state, past_questions=past_questions):
                    return
                await changed.wait()

    @contextmanager
    def _bell(self, job_id: str) -> Iterator[Watch]:
        with self._store.notices.watch(job_topic(job_id)) as bell:
            self._waiting.add(bell)
            try:
                yield bell
            finally:
                self._waiting.discard(bell)

    @contextmanager
    def _tail(self, job_id: str) -> Iterator[_Tail]:
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
    """The end of one log: `last` and `state` belong together, and `changed` is set when they do not hold any more."""

    def __init__(self, store: Store, job_id: str) -> None:
        self.readers = 0
        self.is_ready = asyncio.Event()
        self.changed = asyncio.Event()
        self.error: FabricError | None = None
        self.last = 0
        self.state: JobState = "queued"
        self._store = store
        self._job_id = job_id
        self._lines: deque[tuple[JobEvent, int]] = deque()
        self._bytes = 0
        self.task = asyncio.create_task(self._watch())

    def beyond(self, after: int) -> Sequence[JobEvent] | None:
        """What comes after this number; None if that is no longer here."""
        behind = self.last - after
        if behind <= 0:
            return ()
        if behind > len(self._lines):
            return None
        return [line for line, _ in islice(self._lines, len(self._lines) - behind, None)]

    def end(self, error: FabricError) -> None:
        self.error = error
        self.is_ready.set()
        self._ring()

    async def _watch(self) -> None:
        with self._store.notices.watch(job_topic(self._job_id)) as bell:
            while not (self.error or (self.is_ready.is_set() and has_ended(self.state))):
                try:
                    if await self._read():
                        await bell.wait(_POLL)
                except JobNotFound as error:
                    self.end(error)
                except StoreError as error:
                    _log.warning(_WAITING, self._job_id, error.message)
                    await asyncio.sleep(_PAUSE)
                except Exception:
                    _log.exception("following job %s failed", self._job_id)
                    self.end(StoreUnavailable("The log cannot be read now; see the node's log"))

    async def _read(self) -> bool:
        """Whether this was all there is."""
        if not self.is_ready.is_set():
            page = await self._store.jobs.events(self._job_id, limit=_FIRST, max_bytes=_FIRST_BYTES)
            if page.upto >= page.last:
                self._keep(page)
            self.last, self.state = page.last, page.state  # of a longer log we only know now where its end is
            self.is_ready.set()
            self._ring()
            return True
        page = await self._store.jobs.events(self._job_id, after=self.last)
        self._keep(page)
        return page.upto >= page.last

    def _keep(self, page: EventPage) -> None:
        for line in page.events:
            size = len(msgspec.json.encode(line.event.data))
            self._lines.append((line, size))
            self._bytes += size
        while len(self._lines) > 1 and (len(self._lines) > _KEPT or self._bytes > _KEPT_BYTES):
            self._bytes -= self._lines.popleft()[1]
        is_all = page.upto >= page.last
        if page.events or (is_all and page.state != self.state):
            self.last = page.upto
            self.state = page.state if is_all else self.state
            self._ring()

    def _ring(self) -> None:
        """Each bell rings once; whoever waits next gets a new one."""
        self.changed.set()
        self.changed = asyncio.Event()


def _is_settled(state: JobState, *, past_questions: bool) -> bool:
    return has_ended(state) or (state == "input_required" and not past_questions)


def _stopping() -> StoreUnavailable:
    return StoreUnavailable("The node is being stopped: go on later, or at another node, after the last event you have")
