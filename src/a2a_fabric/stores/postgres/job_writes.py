"""Changes of jobs, a group at a time: lock the rows, ask core.job about each job, write all.

What holds:
- A change is decided on a row that is locked until the commit, so a fencing token that was valid stays valid.
- A change sees what the earlier changes of its group made of the job, as if each had its own transaction.
- Rows are locked in the order of job ids, so two nodes never wait for each other.
- If another node takes the key of a follow-up job in between, the whole transaction restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.errors import FabricError, JobNotFound
from a2a_fabric.core.job import (
    FencingToken,
    JobOutcome,
    JobSummary,
    answer_job,
    append_events,
    cancel_job,
    create_job,
    is_final_state,
    make_heartbeat_reply,
    match_existing_job,
    release_job,
    renew_lease,
)
from a2a_fabric.core.stores import WORK_TOPIC, job_topic
from a2a_fabric.stores.postgres.errors import RestartTransaction
from a2a_fabric.stores.postgres.job_inserts import (
    EVENT_TYPES,
    MUTABLE_TYPES,
    SELECT_JOBS,
    ExistingJobs,
    JobToAccept,
    find_existing_jobs,
    insert_jobs,
)
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, to_columns, unnest_parameters
from a2a_fabric.stores.rows import (
    MUTABLE_COLUMNS,
    EncodedEvents,
    EncodedOutcome,
    measure_encoded,
    summary_from_row,
    to_mutable_values,
)

_UPDATE_JOBS = f"""
WITH changed AS (
    UPDATE a2a_fabric.jobs AS jobs SET {", ".join(f"{name} = given.{name}" for name in MUTABLE_COLUMNS)}
    FROM unnest({unnest_parameters(("int8", *MUTABLE_TYPES))}) AS given (seq, {", ".join(MUTABLE_COLUMNS)})
    WHERE jobs.seq = given.seq
)
INSERT INTO a2a_fabric.job_events (job, number, at, kind, data)
SELECT * FROM unnest({unnest_parameters(EVENT_TYPES, len(MUTABLE_COLUMNS) + 2)})
"""  # noqa: S608


async def update_jobs(tx: PostgresTransaction, jobs: Sequence[tuple[int, JobSummary, EncodedEvents]]) -> None:
    """Write the new states, each job once, and the events that led to them: the last ones of its numbering."""
    rows = [(seq, *to_mutable_values(job)) for seq, job, _ in jobs]
    await tx.write(_UPDATE_JOBS, *to_columns(rows, len(MUTABLE_COLUMNS) + 1), *to_event_columns(jobs, tx.now))
    if any(job.state == "queued" for _, job, _ in jobs):
        tx.topics.add(WORK_TOPIC)
    tx.topics.update(job_topic(job.job_id) for _, job, _ in jobs)


def to_event_columns(jobs: Sequence[tuple[int, JobSummary, EncodedEvents]], now: float) -> list[list[Any]]:
    rows = [
        (seq, number, now, kind, data)
        for seq, job, added in jobs
        for number, (kind, data) in enumerate(added, job.events - len(added) + 1)
    ]
    return to_columns(rows, len(EVENT_TYPES))


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
    is_of_holder: bool = False  # made by the job's worker, which appends to the log or ends the job, and nothing else


def make_append(token: FencingToken, encoded_events: EncodedEvents) -> JobChange:
    size = measure_encoded(encoded_events)

    def decide(job: JobSummary | None, now: float) -> JobUpdate:
        current = _require_job(job, token.job_id)
        updated = append_events(current, token, len(encoded_events), size, now)
        return JobUpdate(job=updated, events=encoded_events, reply=updated.events)

    return JobChange(job_id=token.job_id, decide=decide, size=size, is_of_holder=bool(encoded_events))


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

    return JobChange(
        job_id=token.job_id,
        decide=decide,
        size=encoded.size,
        follow_ups=_encode_follow_ups(outcome),
        is_of_holder=is_final_state(outcome.state) and outcome.run_at is None and not outcome.follow_ups,
    )


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
    jobs = {row[1]: (row[0], summary_from_row(row)) for row in rows}
    batch = ChangeBatch(jobs, await find_existing_jobs(tx, follow_ups), tx.now)
    replies = [batch.apply(each) for each in changes]
    await batch.write(tx)
    return replies


class ChangeBatch:
    """The jobs of one group (seq and job, by id) as its changes leave them, and what is to be written."""

    def __init__(self, jobs: Mapping[str, tuple[int, JobSummary]], existing: ExistingJobs, now: float) -> None:
        self._now = now
        self._existing = existing
        self._seqs = {job_id: seq for job_id, (seq, _) in jobs.items()}
        self._jobs = {job_id: job for job_id, (_, job) in jobs.items()}
        self._events: dict[str, list[tuple[str, bytes]]] = {}  # of all jobs that changed
        self._renewed: set[str] = set()
        self.outcome_bodies: dict[str, tuple[bytes | None, bytes | None]] = {}
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
            self.outcome_bodies[job_id] = update.outcome_body
            self._answers.pop(job_id, None)
        if update.answer is not None:
            self._answers[job_id] = update.answer

    def list_changed(self) -> list[tuple[int, JobSummary, EncodedEvents]]:
        """The jobs with the events that were added to them."""
        return [(self._seqs[each], self._jobs[each], events) for each, events in self._events.items()]

    async def write(self, tx: PostgresTransaction) -> None:
        if self._accepted:
            inserted = await insert_jobs(tx, self._accepted)
            if len(inserted) != len(self._accepted):
                raise RestartTransaction("another node accepted a job with the same key at the same time")
        await self._write_bodies(tx)
        if self._events:
            await update_jobs(tx, self.list_changed())
        renewed = [(self._seqs[each], self._jobs[each]) for each in self._renewed - self._events.keys()]
        if renewed:
            rows = [(seq, job.lease.until if job.lease else None, job.updated_at) for seq, job in renewed]
            await tx.write(_RENEW_LEASES, *to_columns(rows, 3))

    async def _write_bodies(self, tx: PostgresTransaction) -> None:
        if self.outcome_bodies:
            await tx.write(
                _PUT_OUTCOMES,
                *to_columns([(self._seqs[each], *body) for each, body in self.outcome_bodies.items()], 3),
            )
        if self._answers:
            await tx.write(
                _PUT_ANSWERS, *to_columns([(self._seqs[each], answer) for each, answer in self._answers.items()], 2)
            )


def _require_job(job: JobSummary | None, job_id: str) -> JobSummary:
    if job is None:
        raise JobNotFound(job_id)
    return job
