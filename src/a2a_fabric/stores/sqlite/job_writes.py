"""Changes of jobs as units of work for the writer: read the row, ask core.job_lifecycle, write the row.

A unit checks everything before it writes anything: the fencing token against the row, the key and the id of a new
job against existing jobs. Units of one database never overlap, so what a unit has read stays true until it commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from a2a_fabric.core import job_lifecycle
from a2a_fabric.core.errors import FabricError, JobNotFound, LeaseLost
from a2a_fabric.core.job import PRIORITIES, AcceptResult, FencingToken, HeartbeatReply, JobOutcome, JobSummary, NewJob
from a2a_fabric.core.stores import WORK_TOPIC, job_topic
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
from a2a_fabric.stores.sqlite.writer import BatchedWork, SqliteTransaction

_INSERT_COLUMNS = ", ".join((*FIXED_COLUMNS, *MUTABLE_COLUMNS))
_INSERT_PARAMETERS = ", ".join("?" * len((*FIXED_COLUMNS, *MUTABLE_COLUMNS)))
_INSERT_JOB = f"INSERT INTO jobs ({_INSERT_COLUMNS}) VALUES ({_INSERT_PARAMETERS}) ON CONFLICT DO NOTHING"  # noqa: S608
_INSERT_JOB_WITH_SEQ = f"INSERT INTO jobs (seq, {_INSERT_COLUMNS}) VALUES (?, {_INSERT_PARAMETERS})"  # noqa: S608
_UPDATE_JOB = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in MUTABLE_COLUMNS)} WHERE seq = ?"  # noqa: S608

SELECT_JOBS = f"SELECT {JOB_COLUMNS} FROM jobs"  # noqa: S608
SELECT_FULL_JOBS = (
    f"SELECT {JOB_COLUMNS}, job_calls.call, job_bodies.result, job_bodies.question, job_bodies.answer "  # noqa: S608
    "FROM jobs JOIN job_calls ON job_calls.job = jobs.seq LEFT JOIN job_bodies ON job_bodies.job = jobs.seq"
)

_BY_ID = f"{SELECT_JOBS} WHERE job_id = ?"
_BY_KEY = f"{SELECT_JOBS} WHERE owner = ? AND key = ?"
_HAS_KEY = "SELECT 1 FROM jobs WHERE owner = ? AND key = ?"
_LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM jobs"
_INSERT_CALL = "INSERT INTO job_calls (job, call) VALUES (?, ?)"
_INSERT_EVENT = "INSERT INTO job_events (job, number, at, kind, data) VALUES (?, ?, ?, ?, ?)"
_COUNT_EVENTS = """
UPDATE jobs SET events = events + ?, size = size + ?, version = version + 1, updated_at = ?
WHERE job_id = ? AND fence = ? AND state = 'running'
RETURNING seq, events
"""
_RENEW_LEASE = "UPDATE jobs SET lease_until = ? WHERE seq = ?"
_PUT_QUESTION = """
INSERT INTO job_bodies (job, question) VALUES (?, ?)
ON CONFLICT (job) DO UPDATE SET question = excluded.question, answer = NULL
"""
_PUT_ANSWER = "UPDATE job_bodies SET answer = ? WHERE job = ?"
_PUT_RESULT = "INSERT OR REPLACE INTO job_bodies (job, result) VALUES (?, ?)"

S = TypeVar("S", bound=JobSummary)


class AcceptJob(BatchedWork):
    """A job to accept, encoded before the writer's turn, so that the writer only writes.

    If it `is_announced`, the writer itself posts the topic of new work (see `Writer.run_announced`).
    """

    __slots__ = ("encoded", "is_announced", "new")

    def __init__(self, new: NewJob, *, is_announced: bool = False) -> None:
        self.new = new
        self.is_announced = is_announced
        self.encoded = EncodedJob(new.call, new.events)

    def __call__(self, tx: SqliteTransaction) -> AcceptResult:
        new = self.new
        if new.key is not None and (existing := tx.execute(_BY_KEY, (new.owner, new.key)).fetchone()):
            return AcceptResult(job_lifecycle.match_existing_job(summary_from_row(existing), new), False)
        job = job_lifecycle.create_job(new, self.encoded.size, tx.now)
        seq = insert_job(tx, job, self.encoded)
        if seq is None:
            return AcceptResult(job_lifecycle.match_existing_job(read_job(tx, new.job_id)[1], new), False)
        if not self.is_announced:
            tx.topics.add(WORK_TOPIC)
        return AcceptResult(job, True)

    @staticmethod
    def run_batch(tx: SqliteTransaction, batch: Sequence[AcceptJob]) -> Sequence[AcceptResult | FabricError]:
        """Insert the new jobs together; then do those with an existing key, and those that are refused, one by one."""
        new: dict[object, AcceptJob] = {}
        for each in batch:
            if each._is_new(tx):
                new.setdefault((each.new.owner, each.new.key) if each.new.key is not None else each, each)
        accepted = {id(each): AcceptResult(job, True) for each, job in _insert_batch(tx, list(new.values()))}
        return [accepted.get(id(each)) or each._run_alone(tx) for each in batch]

    def _is_new(self, tx: SqliteTransaction) -> bool:
        """Judged by its key alone. A repeated id is rare; the insert fails then, and each unit is run alone."""
        new = self.new
        if new.priority not in PRIORITIES:
            return False
        return new.key is None or tx.execute(_HAS_KEY, (new.owner, new.key)).fetchone() is None

    def _run_alone(self, tx: SqliteTransaction) -> AcceptResult | FabricError:
        try:
            return self(tx)
        except FabricError as exc:
            return exc


def insert_job(tx: SqliteTransaction, job: JobSummary, encoded: EncodedJob) -> int | None:
    """The number of the new row, or None if there is a job with this id or key."""
    cursor = tx.execute(_INSERT_JOB, (*to_fixed_values(job), *to_mutable_values(job)))
    if cursor.rowcount == 0:
        return None
    seq = cursor.lastrowid or 0
    tx.execute(_INSERT_CALL, (seq, encoded.call))
    _write_events(tx, seq, 1, encoded.events)
    return seq


def _insert_batch(tx: SqliteTransaction, batch: Sequence[AcceptJob]) -> list[tuple[AcceptJob, JobSummary]]:
    jobs = [(each, job_lifecycle.create_job(each.new, each.encoded.size, tx.now)) for each in batch]
    (last,) = tx.execute(_LAST_SEQ).fetchone()
    tx.executemany(
        _INSERT_JOB_WITH_SEQ,
        [(seq, *to_fixed_values(job), *to_mutable_values(job)) for seq, (_, job) in enumerate(jobs, last + 1)],
    )
    tx.executemany(_INSERT_CALL, [(seq, each.encoded.call) for seq, each in enumerate(batch, last + 1)])
    event_rows = [
        (seq, number, tx.now, kind, data)
        for seq, each in enumerate(batch, last + 1)
        for number, (kind, data) in enumerate(each.encoded.events, 1)
    ]
    tx.executemany(_INSERT_EVENT, event_rows)
    if not all(each.is_announced for each in batch):
        tx.topics.add(WORK_TOPIC)
    return jobs


class LeaveJob:
    """Writes how a worker or a cancellation leaves a job, and accepts its follow-up jobs in the same transaction."""

    def __init__(self, outcome: JobOutcome) -> None:
        self._encoded = EncodedOutcome(outcome)
        self._follow_ups = [AcceptJob(new) for new in outcome.follow_ups]

    def release(self, tx: SqliteTransaction, token: FencingToken) -> JobSummary:
        seq, job = read_job(tx, token.job_id)
        encoded = self._encoded
        return self._write(tx, seq, job_lifecycle.release_job(job, token, encoded.outcome, encoded.size, tx.now))

    def cancel(self, tx: SqliteTransaction, job_id: str) -> JobSummary:
        seq, current = read_job(tx, job_id)
        job = job_lifecycle.cancel_job(current, self._encoded.outcome, self._encoded.size, tx.now)
        if job is current:
            return current
        return self._write(tx, seq, job) if job.has_ended else write_job(tx, seq, job)

    def _write(self, tx: SqliteTransaction, seq: int, job: JobSummary) -> JobSummary:
        for follow_up in self._follow_ups:
            follow_up(tx)  # may refuse; the group is then run again without this unit
        if job.has_ended:
            tx.execute(_PUT_RESULT, (seq, self._encoded.result))
        elif job.state == "input_required":
            tx.execute(_PUT_QUESTION, (seq, self._encoded.question))
        return write_job(tx, seq, job, self._encoded.events)


def append_events(tx: SqliteTransaction, token: FencingToken, encoded_events: EncodedEvents, size: int) -> int:
    """The number of the last event. The fence is checked by the UPDATE itself: a former holder changes no row."""
    rows = tx.execute(_COUNT_EVENTS, (len(encoded_events), size, tx.now, token.job_id, token.fence)).fetchall()
    if not rows:
        read_job(tx, token.job_id)  # raises JobNotFound
        raise LeaseLost(token.job_id, token.fence)
    seq, last = rows[0]
    _write_events(tx, seq, last - len(encoded_events) + 1, encoded_events)
    tx.topics.add(job_topic(token.job_id))
    return int(last)


def answer_job(
    tx: SqliteTransaction, job_id: str, encoded_answer: bytes, encoded_events: EncodedEvents, part_of: int | None
) -> JobSummary:
    seq, job = read_job(tx, job_id)
    updated = job_lifecycle.answer_job(
        job, len(encoded_events), measure_encoded(encoded_events) + len(encoded_answer), tx.now, part_of
    )
    tx.execute(_PUT_ANSWER, (encoded_answer, seq))
    return write_job(tx, seq, updated, encoded_events)


def renew_leases(tx: SqliteTransaction, tokens: Sequence[FencingToken], lease: float) -> list[HeartbeatReply]:
    return [_renew_lease(tx, each, lease) for each in tokens]


def _renew_lease(tx: SqliteTransaction, token: FencingToken, lease: float) -> HeartbeatReply:
    row = tx.execute(_BY_ID, (token.job_id,)).fetchone()
    job = summary_from_row(row) if row else None
    reply = job_lifecycle.make_heartbeat_reply(job, token)
    if reply.is_held and row:
        tx.execute(_RENEW_LEASE, (tx.now + lease, row[0]))
    return reply


def read_job(tx: SqliteTransaction, job_id: str) -> tuple[int, JobSummary]:
    row = tx.execute(_BY_ID, (job_id,)).fetchone()
    if row is None:
        raise JobNotFound(job_id)
    return row[0], summary_from_row(row)


def write_job(tx: SqliteTransaction, seq: int, job: S, encoded_events: EncodedEvents = ()) -> S:
    """Write the job's new state, and the events that led to it."""
    tx.execute(_UPDATE_JOB, (*to_mutable_values(job), seq))
    _write_events(tx, seq, job.events - len(encoded_events) + 1, encoded_events)
    tx.topics.add(job_topic(job.job_id))
    if job.state == "queued":
        tx.topics.add(WORK_TOPIC)
    return job


def _write_events(tx: SqliteTransaction, seq: int, first: int, encoded_events: EncodedEvents) -> None:
    if encoded_events:
        tx.executemany(
            _INSERT_EVENT,
            [(seq, number, tx.now, kind, data) for number, (kind, data) in enumerate(encoded_events, first)],
        )
