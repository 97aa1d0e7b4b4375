"""Many jobs in one statement: inserted, changed, and found by what their callers call them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from a2a_fabric.core.call import Call
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import JobSummary, NewJob
from a2a_fabric.core.stores import WORK, job_topic
from a2a_fabric.stores.job_rows import (
    CHANGING,
    COLUMNS,
    FIXED,
    Lines,
    changing,
    encode,
    fixed,
    lines_of,
    size_of,
    summary_from,
)
from a2a_fabric.stores.postgres.arrays import arrays, columns_of
from a2a_fabric.stores.postgres.job_rows import CHANGING_TYPES, FIXED_TYPES, SELECT
from a2a_fabric.stores.postgres.transaction import Transaction

_NAMES = ", ".join((*FIXED, *CHANGING))
_TYPES = (*FIXED_TYPES, *CHANGING_TYPES)
_LINE = ("int8", "int8", "float8", "text", "bytea")

_INSERT = f"""
WITH given AS (
    SELECT * FROM unnest({arrays((*_TYPES, "bytea"))}) AS given ({_NAMES}, call)
), made AS (
    INSERT INTO a2a_fabric.jobs ({_NAMES}) SELECT {_NAMES} FROM given ON CONFLICT DO NOTHING RETURNING seq, job_id
), called AS (
    INSERT INTO a2a_fabric.job_calls (job, call) SELECT seq, call FROM made JOIN given USING (job_id)
), logged AS (
    INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
    SELECT seq, number, at, kind, data
    FROM unnest({arrays(("text", *_LINE[1:]), len(_TYPES) + 2)}) AS line (job_id, number, at, kind, data)
    JOIN made USING (job_id)
)
SELECT job_id FROM made
"""  # noqa: S608
_CHANGE = f"""
WITH changed AS (
    UPDATE a2a_fabric.jobs AS jobs SET {", ".join(f"{name} = given.{name}" for name in CHANGING)}
    FROM unnest({arrays(("int8", *CHANGING_TYPES))}) AS given (seq, {", ".join(CHANGING)})
    WHERE jobs.seq = given.seq
)
INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
SELECT * FROM unnest({arrays(_LINE, len(CHANGING) + 2)})
"""  # noqa: S608
_KNOWN = f"""
{SELECT} WHERE jobs.job_id = ANY($1::text[])
UNION ALL
SELECT {COLUMNS} FROM unnest($2::text[], $3::text[]) AS wanted (owner, key)
JOIN a2a_fabric.jobs AS jobs ON jobs.owner = wanted.owner AND jobs.key = wanted.key
"""  # noqa: S608


class Written:
    """What is written beside a job's row, encoded before its turn comes."""

    def __init__(self, call: Call, events: Sequence[Event] = ()) -> None:
        self.call = encode(call)
        self.lines = lines_of(events)
        self.size = len(self.call) + size_of(self.lines)


class Acceptance(Written):
    """A job that is asked for."""

    def __init__(self, new: NewJob) -> None:
        super().__init__(new.call, new.events)
        self.new = new


class Known:
    """Jobs that exist already, by id and by their owners' keys."""

    def __init__(self, jobs: Iterable[JobSummary] = ()) -> None:
        self._by_id = {job.job_id: job for job in jobs}
        self._by_key = {(job.owner, job.key): job for job in self._by_id.values() if job.key is not None}

    def of(self, new: NewJob) -> JobSummary | None:
        by_key = self._by_key.get((new.owner, new.key)) if new.key is not None else None
        return by_key or self._by_id.get(new.job_id)

    def add(self, job: JobSummary) -> None:
        self._by_id[job.job_id] = job
        if job.key is not None:
            self._by_key[job.owner, job.key] = job


async def find_known(tx: Transaction, wanted: Sequence[NewJob]) -> Known:
    if not wanted:
        return Known()
    keys = [(new.owner, new.key) for new in wanted if new.key is not None]
    rows = await tx.all(_KNOWN, [new.job_id for new in wanted], *columns_of(keys, 2))
    return Known(summary_from(row) for row in rows)


async def insert_jobs(tx: Transaction, jobs: Sequence[tuple[Written, JobSummary]]) -> set[str]:
    """The ids of those that were written; a job whose id or key there is already was not. Ids have to differ."""
    rows = [(*fixed(job), *changing(job), written.call) for written, job in jobs]
    lines = [
        (job.job_id, number, job.created_at, kind, data)
        for written, job in jobs
        for number, (kind, data) in enumerate(written.lines, 1)
    ]
    made = await tx.change(_INSERT, *columns_of(rows, len(_TYPES) + 1), *columns_of(lines, len(_LINE)))
    ids = {row[0] for row in made}
    if any(job.state == "queued" and job.job_id in ids for _, job in jobs):
        tx.topics.add(WORK)
    return ids


async def change_jobs(tx: Transaction, jobs: Sequence[tuple[int, JobSummary, Lines]]) -> None:
    """Rows as they are now, each job once, with the events that were the reason: the last ones of its numbering."""
    rows = [(seq, *changing(job)) for seq, job, _ in jobs]
    lines = [
        (seq, number, tx.now, kind, data)
        for seq, job, added in jobs
        for number, (kind, data) in enumerate(added, job.events - len(added) + 1)
    ]
    await tx.change(_CHANGE, *columns_of(rows, len(CHANGING) + 1), *columns_of(lines, len(_LINE)))
    if any(job.state == "queued" for _, job, _ in jobs):
        tx.topics.add(WORK)
    tx.topics.update(job_topic(job.job_id) for _, job, _ in jobs)
