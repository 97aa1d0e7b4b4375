"""Inserts and changes of jobs, a group at a time: lock the rows, ask core.job about each job, write all.

What holds:
- A change is decided on a row that is locked until the commit, so a fencing token that was valid stays valid.
- A change sees what the earlier changes of its group made of the job, as if each had its own transaction.
- Rows are locked in the order of job ids and inserted in the order of keys, so two nodes never wait for each other.
- New jobs are inserted first; jobs whose key or id is taken are looked up afterwards. If the job in the way is gone
  by then, or another node took a key in between, the whole transaction restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.errors import FabricError, JobNotFound
from a2a_fabric.core.job import (
    AcceptResult,
    FencingToken,
    JobOutcome,
    JobSummary,
    NewJob,
    answer_job,
    append_events,
    cancel_job,
    create_job,
    make_heartbeat_reply,
    match_existing_job,
    release_job,
    renew_lease,
)
from a2a_fabric.core.stores import WORK_TOPIC, job_topic
from a2a_fabric.stores.postgres.errors import RestartTransaction
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, to_columns, unnest_parameters
from a2a_fabric.stores.rows import (
    FIXED_COLUMNS,
    JOB_COLUMNS,
    MUTABLE_COLUMNS,
    EncodedEvents,
    EncodedJob,
    EncodedOutcome,
    measure_encoded,
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
_MUTABLE_TYPES = tuple(_COLUMN_TYPES[name] for name in MUTABLE_COLUMNS)

SELECT_JOBS = f"SELECT {JOB_COLUMNS} FROM a2a_fabric.jobs AS jobs"  # noqa: S608

_INSERT_COLUMNS = ", ".join((*FIXED_COLUMNS, *MUTABLE_COLUMNS))
_INSERT_TYPES = (*(_COLUMN_TYPES[name] for name in FIXED_COLUMNS), *_MUTABLE_TYPES)
_EVENT_TYPES = ("int8", "int8", "float8", "text", "bytea")

_INSERT_JOBS = f"""
WITH given AS (
    SELECT * FROM unnest({unnest_parameters((*_INSERT_TYPES, "bytea"))}) AS given ({_INSERT_COLUMNS}, call)
), made AS (
    INSERT INTO a2a_fabric.jobs ({_INSERT_COLUMNS}) SELECT {_INSERT_COLUMNS} FROM given
    ON CONFLICT DO NOTHING RETURNING seq, job_id
), called AS (
    INSERT INTO a2a_fabric.job_calls (job, call) SELECT seq, call FROM made JOIN given USING (job_id)
), logged AS (
    INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
    SELECT seq, number, at, kind, data
    FROM unnest({unnest_parameters(("text", *_EVENT_TYPES[1:]), len(_INSERT_TYPES) + 2)})
    AS event (job_id, number, at, kind, data)
    JOIN made USING (job_id)
)
SELECT job_id FROM made
"""  # noqa: S608
_UPDATE_JOBS = f"""
WITH changed AS (
    UPDATE a2a_fabric.jobs AS jobs SET {", ".join(f"{name} = given.{name}" for name in MUTABLE_COLUMNS)}
    FROM unnest({unnest_parameters(("int8", *_MUTABLE_TYPES))}) AS given (seq, {", ".join(MUTABLE_COLUMNS)})
    WHERE jobs.seq = given.seq
)
INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
SELECT * FROM unnest({unnest_parameters(_EVENT_TYPES, len(MUTABLE_COLUMNS) + 2)})
"""  # noqa: S608
_FIND_EXISTING = f"""
{SELECT_JOBS} WHERE jobs.job_id = ANY($1::text[])
UNION ALL
SELECT {JOB_COLUMNS} FROM unnest($2::text[], $3::text[]) AS wanted (owner, key)
JOIN a2a_fabric.jobs AS jobs ON jobs.owner = wanted.owner AND jobs.key = wanted.key
"""  # noqa: S608


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
    event_rows = [
        (job.job_id, number, job.created_at, kind, data)
        for encoded_job, job in jobs
        for number, (kind, data) in enumerate(encoded_job.events, 1)
    ]
    inserted = await tx.write(
        _INSERT_JOBS, *to_columns(rows, len(_INSERT_TYPES) + 1), *to_columns(event_rows, len(_EVENT_TYPES))
    )
    ids = {row[0] for row in inserted}
    if any(job.state == "queued" and job.job_id in ids for _, job in jobs):
        tx.topics.add(WORK_TOPIC)
    return ids


async def update_jobs(tx: PostgresTransaction, jobs: Sequence[tuple[int, JobSummary, EncodedEvents]]) -> None:
    """Write the new states, each job once, and the events that led to them: the last ones of its numbering."""
    rows = [(seq, *to_mutable_values(job)) for seq, job, _ in jobs]
    event_rows = [
        (seq, number, tx.now, kind, data)
        for seq, job, added in jobs
        for number, (kind, data) in enumerate(added, job.events - len(added) + 1)
    ]
    await tx.write(
        _UPDATE_JOBS, *to_columns(rows, len(MUTABLE_COLUMNS) + 1), *to_columns(event_rows, len(_EVENT_TYPES))
    )
    if any(job.state == "queued" for _, job, _ in jobs):
        tx.topics.add(WORK_TOPIC)
    tx.topics.update(job_topic(job.job_id) for _, job, _ in jobs)


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


_LOCK_JOBS = f"{SELECT_JOBS} WHERE jobs.job_id = ANY($1::text[]) ORDER BY jobs.job_id FOR UPDATE"
_RENEW_LEASES = """
UPDATE a2a_fabric.jobs AS jobs SET lease_until = given.lease_until, updated_at = given.updated_at
FROM unnest($1::int8[], $2::float8[], $3::float8[]) AS given (seq, lease_until, updated_at)
WHERE jobs.seq = given.seq
"""
_PUT_OUTCOMES = """
INSERT INTO a2a_fabric.job_bodies (job, result, question) SELECT * FROM unnest($1::int8[], $2::bytea[], $3::bytea[])
ON CONFLICT (job) DO UPDATE SET result = excluded.result, question = excluded.question, answer = NULL
"""
_PUT_ANSWERS = """
UPDATE a2a_fabric.job_bodies AS bodies SET answer = given.answer
FROM unnest($1::int8[], $2::bytea[]) AS given (job, answer) WHERE bodies.job = given.job
"""


class JobUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What one change makes of a job; `job` is None when nothing is to be written."""

    reply: Any
    job: JobSummary | None = None
    events: EncodedEvents = ()
    outcome_body: tuple[bytes | None, bytes | None] | None = None  # result and question of a job that was left
    answer: bytes | None = None
    is_renewal: bool = False  # only the lease changes; no waiter is woken


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """`decide` says what becomes of the job. It raises FabricError; then nothing of this change is written."""

    job_id: str
    decide: Callable[[JobSummary | None, float], JobUpdate]
    size: int = 0
    follow_ups: Sequence[JobToAccept] = ()


def make_append(token: FencingToken, encoded_events: EncodedEvents) -> JobChange:
    size = measure_encoded(encoded_events)

    def decide(job: JobSummary | None, now: float) -> JobUpdate:
        current = _require_job(job, token.job_id)
        updated = append_events(current, token, len(encoded_events), size, now)
        return JobUpdate(job=updated, events=encoded_events, reply=updated.events)

    return JobChange(job_id=token.job_id, decide=decide, size=size)


def make_renewal(token: FencingToken, lease: float) -> JobChange:
    def decide(job: JobSummary | None, now: float) -> JobUpdate:
        reply = make_heartbeat_reply(job, token)
        if job is None or not reply.is_held:
            return JobUpdate(reply=reply)
        return JobUpdate(job=renew_lease(job, lease, now), reply=reply, is_renewal=True)

    return JobChange(job_id=token.job_id, decide=decide)


def make_answer(job_id: str, answer: bytes, encoded_events: EncodedEvents, part_of: int | None) -> JobChange:
    size = measure_encoded(encoded_events) + len(answer)

    def decide(job: JobSummary | None, now: float) -> JobUpdate:
        current = _require_job(job, job_id)
        updated = answer_job(current, len(encoded_events), size, now, part_of)
        return JobUpdate(job=updated, events=encoded_events, answer=answer, reply=updated)

    return JobChange(job_id=job_id, decide=decide, size=size)


def make_release(token: FencingToken, outcome: JobOutcome) -> JobChange:
    encoded = EncodedOutcome(outcome)

    def decide(job: JobSummary | None, now: float) -> JobUpdate:
        current = _require_job(job, token.job_id)
        return _leave_job(release_job(current, token, outcome, encoded.size, now), encoded)

    return JobChange(job_id=token.job_id, decide=decide, size=encoded.size, follow_ups=_encode_follow_ups(outcome))


def make_cancellation(job_id: str, outcome: JobOutcome) -> JobChange:
    encoded = EncodedOutcome(outcome)

    def decide(job: JobSummary | None, now: float) -> JobUpdate:
        current = _require_job(job, job_id)
        updated = cancel_job(current, outcome, encoded.size, now)
        if updated is current:
            return JobUpdate(reply=current)
        return _leave_job(updated, encoded) if updated.has_ended else JobUpdate(job=updated, reply=updated)

    return JobChange(job_id=job_id, decide=decide, size=encoded.size, follow_ups=_encode_follow_ups(outcome))


def _encode_follow_ups(outcome: JobOutcome) -> list[JobToAccept]:
    return [JobToAccept(new) for new in outcome.follow_ups]


def _leave_job(job: JobSummary, encoded: EncodedOutcome) -> JobUpdate:
    body: tuple[bytes | None, bytes | None] | None = None
    if job.has_ended:
        body = (encoded.result, None)
    elif job.state == "input_required":
        body = (None, encoded.question)
    return JobUpdate(job=job, events=encoded.events, outcome_body=body, reply=job)


async def apply_changes(tx: PostgresTransaction, changes: Sequence[JobChange]) -> list[Any]:
    """A reply or a FabricError for each change."""
    rows = await tx.fetch_all(_LOCK_JOBS, list({each.job_id for each in changes}))
    follow_ups = [request.new for each in changes for request in each.follow_ups]
    batch = _ChangeBatch(rows, await find_existing_jobs(tx, follow_ups), tx.now)
    replies = [batch.apply(each) for each in changes]
    await batch.write(tx)
    return replies


class _ChangeBatch:
    """The jobs of one group as its changes leave them, and what is to be written."""

    def __init__(self, rows: Sequence[Any], existing: ExistingJobs, now: float) -> None:
        self._now = now
        self._existing = existing
        self._seqs: dict[str, int] = {row[1]: row[0] for row in rows}
        self._jobs: dict[str, JobSummary] = {row[1]: summary_from_row(row) for row in rows}
        self._events: dict[str, list[tuple[str, bytes]]] = {}  # of all jobs that changed
        self._renewed: set[str] = set()
        self._outcome_bodies: dict[str, tuple[bytes | None, bytes | None]] = {}
        self._answers: dict[str, bytes] = {}
        self._accepted: list[tuple[JobToAccept, JobSummary]] = []

    def apply(self, change: JobChange) -> Any:
        try:
            update = change.decide(self._jobs.get(change.job_id), self._now)
            follow_ups = (
                self._select_follow_ups(change) if update.job is not None and update.job.state != "running" else []
            )
        except FabricError as exc:
            return exc
        for request, job in follow_ups:
            self._accepted.append((request, job))
            self._existing.add(job)
        self._record(change.job_id, update)
        return update.reply

    def _select_follow_ups(self, change: JobChange) -> list[tuple[JobToAccept, JobSummary]]:
        """The follow-up jobs that do not exist yet. Raises Conflict."""
        follow_ups = []
        for request in change.follow_ups:
            existing = self._existing.find(request.new)
            if existing is not None:
                match_existing_job(existing, request.new)
            else:
                follow_ups.append((request, create_job(request.new, request.size, self._now)))
        return follow_ups

    def _record(self, job_id: str, update: JobUpdate) -> None:
        if update.job is None:
            return
        self._jobs[job_id] = update.job
        if update.is_renewal:
            self._renewed.add(job_id)
        else:
            self._events.setdefault(job_id, []).extend(update.events)
        if update.outcome_body is not None:
            self._outcome_bodies[job_id] = update.outcome_body
            self._answers.pop(job_id, None)
        if update.answer is not None:
            self._answers[job_id] = update.answer

    async def write(self, tx: PostgresTransaction) -> None:
        if self._accepted:
            inserted = await insert_jobs(tx, self._accepted)
            if len(inserted) != len(self._accepted):
                raise RestartTransaction("another node accepted a job with the same key at the same time")
        await self._write_bodies(tx)
        if self._events:
            await update_jobs(
                tx, [(self._seqs[each], self._jobs[each], events) for each, events in self._events.items()]
            )
        renewed = [(self._seqs[each], self._jobs[each]) for each in self._renewed - self._events.keys()]
        if renewed:
            rows = [(seq, job.lease.until if job.lease else None, job.updated_at) for seq, job in renewed]
            await tx.write(_RENEW_LEASES, *to_columns(rows, 3))

    async def _write_bodies(self, tx: PostgresTransaction) -> None:
        if self._outcome_bodies:
            await tx.write(
                _PUT_OUTCOMES,
                *to_columns([(self._seqs[each], *body) for each, body in self._outcome_bodies.items()], 3),
            )
        if self._answers:
            await tx.write(
                _PUT_ANSWERS, *to_columns([(self._seqs[each], answer) for each, answer in self._answers.items()], 2)
            )


def _require_job(job: JobSummary | None, job_id: str) -> JobSummary:
    if job is None:
        raise JobNotFound(job_id)
    return job
