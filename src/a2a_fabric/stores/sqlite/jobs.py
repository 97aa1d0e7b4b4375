"""The jobs port over SQLite: writes go to the writer, reads are done here."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    PRIORITIES,
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
from a2a_fabric.core.states import JOB_STATES
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.stores import PAGE_BYTES
from a2a_fabric.stores.cursors import read_cursor
from a2a_fabric.stores.sqlite import job_queue, job_writes
from a2a_fabric.stores.sqlite.job_rows import SELECT, SELECT_WHOLE, encode, event_from, job_from, summary_from
from a2a_fabric.stores.sqlite.reader import Reader, Row
from a2a_fabric.stores.sqlite.writer import Writer

_WHOLE_BY_ID = f"{SELECT_WHOLE} WHERE jobs.job_id = ?"
_WHOLE_BY_KEY = f"{SELECT_WHOLE} WHERE jobs.owner = ? AND jobs.key = ?"
_STATE = "SELECT seq, state, events FROM jobs WHERE job_id = ?"
_EVENTS = "SELECT number, at, kind, data FROM job_events WHERE job = ? AND number > ? ORDER BY number LIMIT ?"
_DUE = "SELECT 1 FROM jobs WHERE state = 'queued' AND priority = ? AND run_at <= ? LIMIT 1"
_AT_ONCE = 256  # events read in one go, so that large ones cannot fill the memory


class SqliteJobs:
    def __init__(self, writer: Writer, reader: Reader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def accept(self, new: NewJob) -> Accepted:
        return await self._writer.run(job_writes.Acceptance(new))

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

    async def claim(self, wish: ClaimWish) -> Sequence[Job]:
        if not self.has_due():
            return []
        lines = job_writes.lines_of(wish.events)
        return await self._writer.run(lambda tx: job_queue.claim(tx, wish, lines))

    async def take_over(self, hold: Hold, limit: int = 100) -> Sequence[Job]:
        if not self._reader.one(job_queue.ABANDONED, {"now": self._clock(), "limit": 1}):
            return []
        return await self._writer.run(lambda tx: job_queue.take_over(tx, hold, limit))

    async def heartbeat(self, held: Sequence[Held], lease: float) -> Sequence[Pulse]:
        return await self._writer.run(lambda tx: job_writes.heartbeat(tx, held, lease))

    async def append(self, held: Held, events: Sequence[Event]) -> int:
        lines = job_writes.lines_of(events)
        size = job_writes.size_of(lines)
        return await self._writer.run(lambda tx: job_writes.append(tx, held, lines, size))

    async def settle(self, held: Held, outcome: Outcome) -> JobSummary:
        departure = job_writes.Departure(outcome)
        return await self._writer.run(lambda tx: departure.settle(tx, held))

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        said, lines = encode(answer), job_writes.lines_of(events)
        return await self._writer.run(lambda tx: job_writes.answer(tx, job_id, said, lines, part_of))

    async def cancel(self, job_id: str, outcome: Outcome) -> JobSummary:
        departure = job_writes.Departure(outcome)
        return await self._writer.run(lambda tx: departure.cancel(tx, job_id))

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = max(0, after)
        with self._reader.snapshot():
            known = self._reader.one(_STATE, (job_id,))
            if known is None:
                raise JobNotFound(job_id)
            seq, state, last = known
            lines = self._lines(seq, after, limit, max_bytes) if after < last else []
        upto = lines[-1].number if lines else after
        return EventPage(events=tuple(lines), state=state, last=last, upto=upto)

    async def prune(self, keep: Keep, limit: int = 1000) -> Pruned:
        return await self._writer.run(lambda tx: job_queue.prune(tx, keep, limit))

    def has_due(self) -> bool:
        """Whether it is worth asking the writer for work."""
        now = self._clock()
        return any(self._reader.one(_DUE, (priority, now)) for priority in PRIORITIES)

    def _newest(self, wish: JobFilter, before: int, limit: int) -> Sequence[Row]:
        conditions: list[str] = ["seq < ?"]
        values: list[Any] = [before]
        for column, wanted in (("owner", wish.owner), ("agent_id", wish.agent_id)):
            if wanted is not None:
                conditions.append(f"{column} = ?")
                values.append(wanted)
        states = wish.states
        if states is None and len(values) > 1:
            states = JOB_STATES
        if states is None:
            return self._reader.all(_newest_sql(conditions), (*values, limit))
        sql = _newest_sql([*conditions, "state = ?"])
        stretches = [self._reader.all(sql, (*values, state, limit)) for state in dict.fromkeys(states)]
        return list(islice(heapq.merge(*stretches, key=_age, reverse=True), limit))

    def _lines(self, seq: int, after: int, limit: int, max_bytes: int) -> Sequence[JobEvent]:
        found: list[JobEvent] = []
        while limit > 0:
            rows = self._reader.all(_EVENTS, (seq, after, min(limit, _AT_ONCE)))
            for row in rows:
                max_bytes -= len(row[3])
                if max_bytes < 0 and found:
                    return found
                found.append(event_from(row))
            if len(rows) < min(limit, _AT_ONCE):
                break
            limit -= len(rows)
            after = rows[-1][0]
        return found


def _newest_sql(conditions: Sequence[str]) -> str:
    return f"{SELECT} WHERE {' AND '.join(conditions)} ORDER BY seq DESC LIMIT ?"


def _age(row: Row) -> int:
    return int(row[0])
