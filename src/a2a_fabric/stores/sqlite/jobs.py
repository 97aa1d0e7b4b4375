"""The jobs port over SQLite: writes go to the writer, reads are done here."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    Accepted,
    ClaimWish,
    EventPage,
    Held,
    Hold,
    Job,
    JobEvent,
    JobFilter,
    JobPage,
    JobSummary,
    Keep,
    NewJob,
    Outcome,
    Pruned,
    Pulse,
)
from a2a_fabric.core.states import JOB_STATES, JobState, has_ended
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.stores import PAGE_BYTES, WORK
from a2a_fabric.stores.cursors import NEWEST, read_cursor
from a2a_fabric.stores.job_rows import encode, event_from, job_from, lines_of, size_of, summary_from
from a2a_fabric.stores.sqlite import job_queue, job_writes
from a2a_fabric.stores.sqlite.job_rows import SELECT, SELECT_WHOLE
from a2a_fabric.stores.sqlite.reader import Reader, Row
from a2a_fabric.stores.sqlite.writer import Writer

_WHOLE_BY_ID = f"{SELECT_WHOLE} WHERE jobs.job_id = ?"
_WHOLE_BY_KEY = f"{SELECT_WHOLE} WHERE jobs.owner = ? AND jobs.key = ?"
_EVENTS = """
SELECT jobs.state, jobs.events, number, at, kind, data
FROM jobs LEFT JOIN job_events ON job_events.job = jobs.seq AND job_events.number > ?
WHERE jobs.job_id = ? ORDER BY number LIMIT ?
"""
_NEWEST = f"{SELECT} WHERE seq < ? ORDER BY seq DESC LIMIT ?"
_THESE = f"{SELECT} WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq DESC"  # noqa: S608
_WAITING = """
SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_owner WHERE owner = ? AND state = 'queued' LIMIT ?)
"""
_DUE = """
SELECT 1 FROM jobs INDEXED BY jobs_queue
WHERE state = 'queued' AND priority IN (1, 2, 3, 4) AND run_at <= ? LIMIT 1
"""

_INDEXES = {
    (): "jobs_state",
    ("owner",): "jobs_owner",
    ("agent_id",): "jobs_agent",
    ("owner", "agent_id"): "jobs_owner",  # of those under way, which are few
}


class SqliteJobs:
    def __init__(self, writer: Writer, reader: Reader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def accept(self, new: NewJob) -> Accepted:
        return await self._writer.run_expected(WORK, job_writes.Acceptance(new, is_announced=True))

    async def get(self, job_id: str) -> Job | None:
        row = self._reader.one(_WHOLE_BY_ID, (job_id,))
        return None if row is None else job_from(row)

    async def find(self, owner: str, key: str) -> Job | None:
        row = self._reader.one(_WHOLE_BY_KEY, (owner, key))
        return None if row is None else job_from(row)

    async def list(self, wish: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        before = read_cursor(cursor)
        with self._reader.snapshot():
            rows = self._newest(wish, before, limit + 1)
        jobs = tuple(summary_from(row) for row in rows[:limit])
        return JobPage(jobs, str(rows[limit - 1][0]) if len(rows) > limit else None)

    async def waiting(self, owner: str, most: int) -> int:
        (count,) = self._reader.one(_WAITING, (owner, most)) or (0,)
        return int(count)

    async def claim(self, wish: ClaimWish) -> Sequence[Job]:
        if not self._writer.expects(WORK) and not self.has_due():
            return []
        lines = lines_of(wish.events)
        return await self._writer.run(lambda tx: job_queue.claim(tx, wish, lines))

    async def take_over(self, hold: Hold, limit: int = 100) -> Sequence[Job]:
        if not self._reader.one(job_queue.ABANDONED, {"now": self._clock(), "limit": 1}):
            return []
        return await self._writer.run(lambda tx: job_queue.take_over(tx, hold, limit))

    async def heartbeat(self, held: Sequence[Held], lease: float) -> Sequence[Pulse]:
        return await self._writer.run(lambda tx: job_writes.heartbeat(tx, held, lease))

    async def append(self, held: Held, events: Sequence[Event]) -> int:
        lines = lines_of(events)
        size = size_of(lines)
        return await self._writer.run(lambda tx: job_writes.append(tx, held, lines, size))

    async def settle(self, held: Held, outcome: Outcome) -> JobSummary:
        departure = job_writes.Departure(outcome)
        return await self._writer.run(lambda tx: departure.settle(tx, held))

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        said, lines = encode(answer), lines_of(events)
        return await self._writer.run_expected(WORK, lambda tx: job_writes.answer(tx, job_id, said, lines, part_of))

    async def cancel(self, job_id: str, outcome: Outcome) -> JobSummary:
        departure = job_writes.Departure(outcome)
        return await self._writer.run(lambda tx: departure.cancel(tx, job_id))

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = min(max(0, after), NEWEST)
        with self._reader.rows(_EVENTS, (after, job_id, limit)) as rows:
            first = next(rows, None)
            if first is None:
                raise JobNotFound(job_id)
            lines = tuple(_fitting(chain((first,), rows), max_bytes))
        upto = lines[-1].number if lines else after
        return EventPage(events=lines, state=first[0], last=first[1], upto=upto)

    async def prune(self, keep: Keep, limit: int = 1000) -> Pruned:
        return await self._writer.run(lambda tx: job_queue.prune(tx, keep, limit))

    def has_due(self) -> bool:
        """Whether it is worth asking the writer for work."""
        return self._reader.one(_DUE, (self._clock(),)) is not None

    def _newest(self, wish: JobFilter, before: int, limit: int) -> Sequence[Row]:
        narrowing = [
            (name, value) for name, value in (("owner", wish.owner), ("agent_id", wish.agent_id)) if value is not None
        ]
        states = wish.states if wish.states is not None else JOB_STATES if narrowing else None
        if states is None:
            return self._reader.all(_NEWEST, (before, limit))
        names, values = [name for name, _ in narrowing], [value for _, value in narrowing]
        stretches = [
            self._reader.all(_stretch(names, state), (state, before, *values, limit)) for state in dict.fromkeys(states)
        ]
        found = islice(heapq.merge(*stretches, key=_age, reverse=True), limit)
        return self._reader.all(_THESE, (encode([seq for (seq,) in found]).decode(),))


def _fitting(rows: Iterable[Row], max_bytes: int) -> Iterator[JobEvent]:
    """As many as go into so many bytes, and at least one; none of a log that has none."""
    room = max_bytes
    for place, row in enumerate(rows):
        if row[2] is None:
            return
        room -= len(row[5])
        if room < 0 and place:
            return
        yield event_from(row[2:])


def _stretch(narrowing: Sequence[str], state: JobState) -> str:
    """The ages of the newest in one state, from the index alone."""
    index = _INDEXES[tuple(narrowing)]
    conditions = "".join(f" AND {name} = ?" for name in narrowing)
    if len(narrowing) > 1 and has_ended(state):
        index, conditions = "jobs_owner_agent", f"{conditions} AND ended_at IS NOT NULL"
    return f"""
    SELECT seq FROM jobs INDEXED BY {index} WHERE state = ? AND seq < ?{conditions} ORDER BY seq DESC LIMIT ?
    """  # noqa: S608


def _age(row: Row) -> int:
    return int(row[0])
