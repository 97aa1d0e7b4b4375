"""New jobs, a group at a time: in one statement that is a transaction by itself, or in a transaction with other writes.

What holds:
- Jobs are inserted in the order of their owners' keys, so two nodes never wait for each other.
- New jobs are inserted first; jobs whose key or id is taken are looked up afterwards, in a transaction. If the job in
  the way is gone by then, that transaction restarts.
- The single statement takes all moments from the server's clock. Its jobs are drafted at the moment 0, and the server
  adds its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import AcceptResult, JobSummary, NewJob, create_job, match_existing_job
from a2a_fabric.core.stores import WORK_TOPIC
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.errors import RestartTransaction
from a2a_fabric.stores.postgres.transactions import (
    PostgresTransaction,
    SingleStatement,
    build_single_statement,
    to_columns,
    unnest_parameters,
)
from a2a_fabric.stores.rows import (
    FIXED_COLUMNS,
    JOB_COLUMNS,
    MUTABLE_COLUMNS,
    EncodedJob,
    summary_from_row,
    to_fixed_values,
    to_mutable_values,
)

_COLUMN_TYPES = {
    "job_id": "text", "owner": "text", "agent_id": "text", "capability": "text", "priority": "int4",
    "expires_at": "float8", "key": "text", "digest": "text", "created_at": "float8", "retention": "float8",
    "meta": "bytea", "state": "text", "run_at": "float8", "attempt": "int8", "fence": "int8", "worker": "text",
    "lease_until": "float8", "cancel_requested": "bool", "updated_at": "float8", "started_at": "float8",
    "ended_at": "float8", "events": "int8", "size": "int8", "version": "int8", "error": "bytea",
    "keep_until": "float8",
}  # fmt: skip
MUTABLE_TYPES = tuple(_COLUMN_TYPES[name] for name in MUTABLE_COLUMNS)

SELECT_JOBS = f"SELECT {JOB_COLUMNS} FROM a2a_fabric.jobs AS jobs"  # noqa: S608

_INSERT_COLUMNS = ", ".join((*FIXED_COLUMNS, *MUTABLE_COLUMNS))
_INSERT_TYPES = (*(_COLUMN_TYPES[name] for name in FIXED_COLUMNS), *MUTABLE_TYPES)
EVENT_TYPES = ("int8", "int8", "float8", "text", "bytea")
_RUN_AT = MUTABLE_COLUMNS.index("run_at")


def _build_insert(first: int, moments: Mapping[str, str] = MappingProxyType({}), clock: str = "") -> str:
    """The parts of a statement that insert jobs, their calls and their events; its values begin with $`first`.

    `moments` are expressions for columns that are not inserted as they are given. `clock` joins the server's clock.
    """
    columns = ", ".join(moments.get(name, f"given.{name}") for name in (*FIXED_COLUMNS, *MUTABLE_COLUMNS))
    return f"""
    given AS (
        SELECT * FROM unnest({unnest_parameters((*_INSERT_TYPES, "bytea"), first)}) AS given ({_INSERT_COLUMNS}, call)
    ), made AS (
        INSERT INTO a2a_fabric.jobs ({_INSERT_COLUMNS}) SELECT {columns} FROM given{clock}
        ON CONFLICT DO NOTHING RETURNING seq, job_id
    ), called AS (
        INSERT INTO a2a_fabric.job_calls (job, call) SELECT seq, call FROM made JOIN given USING (job_id)
    ), logged AS (
        INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
        SELECT seq, number, {moments.get("created_at", "event.at")}, kind, data
        FROM unnest({unnest_parameters(("text", *EVENT_TYPES[1:]), first + len(_INSERT_TYPES) + 1)})
        AS event (job_id, number, at, kind, data)
        JOIN made USING (job_id){clock}
    )
    """  # noqa: S608


_INSERT_JOBS = f"WITH {_build_insert(1)} SELECT job_id FROM made"  # noqa: S608
_MOMENTS = {
    "created_at": "mark.at",
    "updated_at": "mark.at",
    "run_at": "coalesce(given.run_at, mark.at)",
    "started_at": "mark.at + given.started_at",
    "lease_until": "mark.at + given.lease_until",
}
_ACCEPT_JOBS = build_single_statement(
    f"{_build_insert(3, _MOMENTS, ' CROSS JOIN mark')} SELECT mark.at, seq, job_id FROM mark LEFT JOIN made ON true"  # noqa: S608
)
_FIND_ACCEPTED = """
SELECT $1::float8, seq, job_id FROM a2a_fabric.jobs WHERE job_id = ANY($2::text[]) AND created_at = $1
"""
_FIND_EXISTING = f"""
{SELECT_JOBS} WHERE jobs.job_id = ANY($1::text[])
UNION ALL
SELECT {JOB_COLUMNS} FROM unnest($2::text[], $3::text[]) AS wanted (owner, key)
JOIN a2a_fabric.jobs AS jobs ON jobs.owner = wanted.owner AND jobs.key = wanted.key
"""  # noqa: S608


OnHeld = Callable[[int, JobSummary], None]  # with the job's seq


class JobToAccept(EncodedJob):
    def __init__(self, new: NewJob) -> None:
        super().__init__(new.call, new.events)
        self.new = new


class ExistingJobs:
    """Jobs that exist already, by id and by their owners' keys."""

    def __init__(self, jobs: Iterable[JobSummary] = ()) -> None:
        self._by_id = {job.job_id: job for job in jobs}
        self._by_key = {(job.owner, job.key): job for job in self._by_id.values() if job.key is not None}

    def find(self, new: NewJob) -> JobSummary | None:
        by_key = self._by_key.get((new.owner, new.key)) if new.key is not None else None
        return by_key or self._by_id.get(new.job_id)

    def add(self, job: JobSummary) -> None:
        self._by_id[job.job_id] = job
        if job.key is not None:
            self._by_key[job.owner, job.key] = job


async def find_existing_jobs(tx: PostgresTransaction, new_jobs: Sequence[NewJob]) -> ExistingJobs:
    if not new_jobs:
        return ExistingJobs()
    keys = [(new.owner, new.key) for new in new_jobs if new.key is not None]
    rows = await tx.fetch_all(_FIND_EXISTING, [new.job_id for new in new_jobs], *to_columns(keys, 2))
    return ExistingJobs(summary_from_row(row) for row in rows)


async def insert_jobs(tx: PostgresTransaction, jobs: Sequence[tuple[EncodedJob, JobSummary]]) -> set[str]:
    """The ids of the jobs that were written; a job whose id or key is taken is left out. The ids given must differ."""
    rows = [(*to_fixed_values(job), *to_mutable_values(job), encoded_job.call) for encoded_job, job in jobs]
    inserted = await tx.write(_INSERT_JOBS, *to_columns(rows, len(_INSERT_TYPES) + 1), *_to_event_columns(jobs))
    ids = {row[0] for row in inserted}
    if any(job.state == "queued" and job.job_id in ids for _, job in jobs):
        tx.topics.add(WORK_TOPIC)
    return ids


def _to_event_columns(jobs: Sequence[tuple[EncodedJob, JobSummary]]) -> list[list[Any]]:
    rows = [
        (job.job_id, number, job.created_at, kind, data)
        for encoded_job, job in jobs
        for number, (kind, data) in enumerate(encoded_job.events, 1)
    ]
    return to_columns(rows, len(EVENT_TYPES))


async def accept_jobs_alone(
    connections: PostgresConnections, requests: Sequence[JobToAccept], on_held: OnHeld
) -> list[AcceptResult | FabricError]:
    """A result or an error for each request, once all of them are on disk. `on_held` is called for each held job."""
    drafts = [_draft_job(each, 0.0) for each in requests]
    by_id = {
        draft.job_id: (each, draft)
        for each, draft in zip(requests, drafts, strict=True)
        if not isinstance(draft, FabricError)
    }
    accepted = await _accept_drafts(connections, sorted(by_id.values(), key=_key_order), on_held) if by_id else {}
    results: dict[int, AcceptResult | FabricError] = {
        id(each): draft if isinstance(draft, FabricError) else accepted[id(each)]
        for each, draft in zip(requests, drafts, strict=True)
        if isinstance(draft, FabricError) or id(each) in accepted
    }
    # Keys and ids that are taken. If this fails, what was accepted is still accepted.
    if others := [each for each in requests if id(each) not in results]:
        try:
            outcomes = await connections.write(lambda tx: accept_jobs(tx, others))
        except FabricError as exc:
            outcomes = [exc] * len(others)
        results |= {id(each): outcome for each, outcome in zip(others, outcomes, strict=True)}
    return [results[id(each)] for each in requests]


async def _accept_drafts(
    connections: PostgresConnections, drafts: Sequence[tuple[JobToAccept, JobSummary]], on_held: OnHeld
) -> dict[int, AcceptResult]:
    """What was accepted, by the identity of its request. The ids given must differ."""
    rows = [
        (*to_fixed_values(draft), *_with_run_at(to_mutable_values(draft), each.new.run_at), each.call)
        for each, draft in drafts
    ]
    statement = SingleStatement(
        sql=_ACCEPT_JOBS,
        values=[*to_columns(rows, len(_INSERT_TYPES) + 1), *_to_event_columns(drafts)],
        recovery=_FIND_ACCEPTED,
        recovery_values=[[draft.job_id for _, draft in drafts]],
    )
    now, inserted = await connections.write_single(statement)
    seqs = {job_id: seq for _, seq, job_id in inserted}
    accepted = {}
    for each, draft in drafts:
        if draft.job_id in seqs:
            job = create_job(each.new, each.size, now)
            accepted[id(each)] = AcceptResult(job, True)
            if job.lease is not None:
                on_held(seqs[job.job_id], job)
    connections.on_commit({WORK_TOPIC} if any(each.job.state == "queued" for each in accepted.values()) else set())
    return accepted


def _with_run_at(mutable_values: tuple[Any, ...], run_at: float | None) -> tuple[Any, ...]:
    """The values with the moment that the caller gave, or None for that of the server."""
    return (*mutable_values[:_RUN_AT], run_at, *mutable_values[_RUN_AT + 1 :])


async def accept_jobs(tx: PostgresTransaction, requests: Sequence[JobToAccept]) -> list[AcceptResult | FabricError]:
    drafts = [_draft_job(each, tx.now) for each in requests]
    pairs = zip(requests, drafts, strict=True)
    valid = [(each, draft) for each, draft in pairs if not isinstance(draft, FabricError)]
    by_id = {draft.job_id: (each, draft) for each, draft in valid}  # an id given twice is inserted once
    ordered = sorted(by_id.values(), key=_key_order)
    written = await insert_jobs(tx, ordered) if ordered else set()
    inserted = {id(by_id[job_id][0]) for job_id in written}
    existing = await find_existing_jobs(tx, [each.new for each, _ in valid if id(each) not in inserted])
    return [
        draft if isinstance(draft, FabricError)
        else AcceptResult(draft, True) if id(each) in inserted
        else _return_existing(each, existing)
        for each, draft in zip(requests, drafts, strict=True)
    ]  # fmt: skip


def _draft_job(request: JobToAccept, now: float) -> JobSummary | FabricError:
    try:
        return create_job(request.new, request.size, now)
    except FabricError as exc:
        return exc


def _key_order(pair: tuple[JobToAccept, JobSummary]) -> tuple[str, str]:
    new = pair[0].new
    return (new.owner, new.key) if new.key is not None else ("", "")


def _return_existing(request: JobToAccept, existing_jobs: ExistingJobs) -> AcceptResult | FabricError:
    existing = existing_jobs.find(request.new)
    if existing is None:
        raise RestartTransaction(f"the key or id of job {request.new.job_id} was taken, and is free again")
    try:
        return AcceptResult(match_existing_job(existing, request.new), False)
    except FabricError as exc:
        return exc
