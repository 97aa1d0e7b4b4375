"""The job store over SQLite: writes go through the writer, reads run on the event loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

from a2a_fabric.core.errors import JobNotFound
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    JOB_STATES,
    AcceptResult,
    ClaimRequest,
    EventPage,
    FencingToken,
    HeartbeatReply,
    HoldRequest,
    Job,
    JobFilter,
    JobOutcome,
    JobPage,
    JobState,
    JobSummary,
    NewJob,
    PruneResult,
    RetentionPolicy,
    is_final_state,
)
from a2a_fabric.core.stores import PAGE_BYTES, WORK_TOPIC
from a2a_fabric.stores.rows import (
    MAX_SEQ,
    encode,
    encode_events,
    event_page,
    job_from_optional_row,
    job_page_from_rows,
    measure_encoded,
    read_cursor,
    take_fitting,
)
from a2a_fabric.stores.sqlite import job_queue, job_writes
from a2a_fabric.stores.sqlite.connections import Row, SqliteReader
from a2a_fabric.stores.sqlite.job_writes import SELECT_FULL_JOBS, SELECT_JOBS
from a2a_fabric.stores.sqlite.writer import Writer

_FULL_JOB_BY_ID = f"{SELECT_FULL_JOBS} WHERE jobs.job_id = ?"
_FULL_JOB_BY_KEY = f"{SELECT_FULL_JOBS} WHERE jobs.owner = ? AND jobs.key = ?"
_EVENTS = """
SELECT jobs.state, jobs.events, number, at, kind, data
FROM jobs LEFT JOIN job_events ON job_events.job = jobs.seq AND job_events.number > ?
WHERE jobs.job_id = ? ORDER BY number LIMIT ?
"""
_NEWEST = f"{SELECT_JOBS} WHERE seq < ? ORDER BY seq DESC LIMIT ?"
_BY_SEQS = f"{SELECT_JOBS} WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq DESC"  # noqa: S608
_COUNT_QUEUED = """
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
    ("owner", "agent_id"): "jobs_owner",  # for jobs that have not ended, which are few
}


class SqliteJobs:
    def __init__(self, writer: Writer, reader: SqliteReader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def accept(self, new: NewJob) -> AcceptResult:
        return await self._writer.run_announced(WORK_TOPIC, job_writes.AcceptJob(new, is_announced=True))

    async def get(self, job_id: str) -> Job | None:
        return job_from_optional_row(self._reader.fetch_one(_FULL_JOB_BY_ID, (job_id,)))

    async def find(self, owner: str, key: str) -> Job | None:
        return job_from_optional_row(self._reader.fetch_one(_FULL_JOB_BY_KEY, (owner, key)))

    async def list(self, query: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        before = read_cursor(cursor)
        with self._reader.snapshot():
            rows = self._read_newest(query, before, limit + 1)
        return job_page_from_rows(rows, limit)

    async def count_waiting(self, owner: str, most: int) -> int:
        (count,) = self._reader.fetch_one(_COUNT_QUEUED, (owner, most)) or (0,)
        return int(count)

    async def claim(self, request: ClaimRequest) -> Sequence[Job]:
        if not self._writer.expects(WORK_TOPIC) and not self.has_due():
            return []
        encoded_events = encode_events(request.events)
        return await self._writer.run(lambda tx: job_queue.claim(tx, request, encoded_events))

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        if not self._reader.fetch_one(job_queue.ABANDONED, {"now": self._clock(), "limit": 1}):
            return []
        return await self._writer.run(lambda tx: job_queue.take_over(tx, hold, limit))

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        return await self._writer.run(lambda tx: job_writes.renew_leases(tx, tokens, lease))

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        encoded_events = encode_events(events)
        size = measure_encoded(encoded_events)
        return await self._writer.run(lambda tx: job_writes.append_events(tx, token, encoded_events, size))

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        work = job_writes.LeaveJob(outcome)
        return await self._writer.run(lambda tx: work.release(tx, token))

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        encoded_answer, encoded_events = encode(answer), encode_events(events)
        return await self._writer.run_announced(
            WORK_TOPIC, lambda tx: job_writes.answer_job(tx, job_id, encoded_answer, encoded_events, part_of)
        )

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        work = job_writes.LeaveJob(outcome)
        return await self._writer.run(lambda tx: work.cancel(tx, job_id))

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = min(max(0, after), MAX_SEQ)
        with self._reader.iterate_rows(_EVENTS, (after, job_id, limit)) as rows:
            first = next(rows, None)
            if first is None:
                raise JobNotFound(job_id)
            event_rows = take_fitting(chain((first,), rows), max_bytes) if first[2] is not None else ()
            return event_page((row[2:] for row in event_rows), first[0], first[1], after)

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        return await self._writer.run(lambda tx: job_queue.prune(tx, retention, limit))

    def has_due(self) -> bool:
        """Whether a claim may find a job; saves an empty transaction."""
        return self._reader.fetch_one(_DUE, (self._clock(),)) is not None

    def _read_newest(self, query: JobFilter, before: int, limit: int) -> Sequence[Row]:
        conditions = [
            (name, value) for name, value in (("owner", query.owner), ("agent_id", query.agent_id)) if value is not None
        ]
        states = query.states if query.states is not None else JOB_STATES if conditions else None
        if states is None:
            return self._reader.fetch_all(_NEWEST, (before, limit))
        names, values = [name for name, _ in conditions], [value for _, value in conditions]
        rows_by_state = [
            self._reader.fetch_all(_build_state_query(names, state), (state, before, *values, limit))
            for state in dict.fromkeys(states)
        ]
        newest = islice(heapq.merge(*rows_by_state, reverse=True), limit)
        return self._reader.fetch_all(_BY_SEQS, (encode([seq for (seq,) in newest]).decode(),))


def _build_state_query(columns: Sequence[str], state: JobState) -> str:
    """The newest rows in one state, from the index alone."""
    index = _INDEXES[tuple(columns)]
    conditions = "".join(f" AND {name} = ?" for name in columns)
    if len(columns) > 1 and is_final_state(state):
        index, conditions = "jobs_owner_agent", f"{conditions} AND ended_at IS NOT NULL"
    return f"""
    SELECT seq FROM jobs INDEXED BY {index} WHERE state = ? AND seq < ?{conditions} ORDER BY seq DESC LIMIT ?
    """  # noqa: S608
