"""Each change of a job as a piece of work for the writer: read the row, ask core/lifecycle.py, write the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from a2a_fabric.core import lifecycle
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import PRIORITIES, Accepted, Held, JobSummary, NewJob, Outcome, Pulse
from a2a_fabric.core.store_errors import JobNotFound, LeaseLost
from a2a_fabric.core.stores import WORK, job_topic
from a2a_fabric.stores.job_rows import Lines, changing, encode, fixed, lines_of, size_of, summary_from
from a2a_fabric.stores.sqlite.job_rows import INSERT, INSERT_AS, SELECT, UPDATE
from a2a_fabric.stores.sqlite.writer import Common, Transaction

_BY_ID = f"{SELECT} WHERE job_id = ?"
_BY_KEY = f"{SELECT} WHERE owner = ? AND key = ?"
_HAS_KEY = "SELECT 1 FROM jobs WHERE owner = ? AND key = ?"
_LAST = "SELECT coalesce(max(seq), 0) FROM jobs"
_INSERT_CALL = "INSERT INTO job_calls (job, call) VALUES (?, ?)"
_INSERT_EVENT = "INSERT INTO job_events (job, number, at, kind, data) VALUES (?, ?, ?, ?, ?)"
_APPEND = """
UPDATE jobs SET events = events + ?, size = size + ?, version = version + 1, updated_at = ?
WHERE job_id = ? AND fence = ? AND state = 'running'
RETURNING seq, events
"""
_RENEW = "UPDATE jobs SET lease_until = ? WHERE seq = ?"
_ASK = """
INSERT INTO job_bodies (job, question) VALUES (?, ?)
ON CONFLICT (job) DO UPDATE SET question = excluded.question, answer = NULL
"""
_ANSWER = "UPDATE job_bodies SET answer = ? WHERE job = ?"
_END = "INSERT OR REPLACE INTO job_bodies (job, result) VALUES (?, ?)"

S = TypeVar("S", bound=JobSummary)


class Acceptance(Common):
    """A job as it will be written; encoded before the writer is asked, so that it only writes.

    If it `is_announced`, whoever waits for work was told already, and comes after it.
    """

    __slots__ = ("call", "is_announced", "lines", "new", "size")

    def __init__(self, new: NewJob, *, is_announced: bool = False) -> None:
        self.new = new
        self.is_announced = is_announced
        self.call = encode(new.call)
        self.lines = lines_of(new.events)
        self.size = len(self.call) + size_of(self.lines)

    def __call__(self, tx: Transaction) -> Accepted:
        new = self.new
        if new.key is not None and (known := tx.execute(_BY_KEY, (new.owner, new.key)).fetchone()):
            return Accepted(lifecycle.same_again(summary_from(known), new), False)
        job = lifecycle.accepted(new, self.size, tx.now)
        cursor = tx.execute(INSERT, (*fixed(job), *changing(job)))
        if cursor.rowcount == 0:
            return Accepted(lifecycle.same_again(known_job(tx, new.job_id)[1], new), False)
        seq = cursor.lastrowid or 0
        tx.execute(_INSERT_CALL, (seq, self.call))
        write_lines(tx, seq, 1, self.lines)
        if not self.is_announced:
            tx.topics.add(WORK)
        return Accepted(job, True)

    @staticmethod
    def together(tx: Transaction, several: Sequence[Acceptance]) -> Sequence[Accepted | FabricError]:
        """Those that are new in one go; after them, one by one, those whose key is known, and what is refused."""
        new: dict[object, Acceptance] = {}
        for each in several:
            if each._is_new(tx):
                new.setdefault((each.new.owner, each.new.key) if each.new.key is not None else each, each)
        made = {id(each): Accepted(job, True) for each, job in _inserted(tx, list(new.values()))}
        return [made.get(id(each)) or each._alone(tx) for each in several]

    def _is_new(self, tx: Transaction) -> bool:
        """As far as its key goes; the same id once more is rare, and undoes the whole group."""
        new = self.new
        if new.priority not in PRIORITIES:
            return False
        return new.key is None or tx.execute(_HAS_KEY, (new.owner, new.key)).fetchone() is None

    def _alone(self, tx: Transaction) -> Accepted | FabricError:
        try:
            return self(tx)
        except FabricError as exc:
            return exc


def _inserted(tx: Transaction, several: Sequence[Acceptance]) -> list[tuple[Acceptance, JobSummary]]:
    jobs = [(each, lifecycle.accepted(each.new, each.size, tx.now)) for each in several]
    (last,) = tx.execute(_LAST).fetchone()
    tx.executemany(INSERT_AS, [(seq, *fixed(job), *changing(job)) for seq, (_, job) in enumerate(jobs, last + 1)])
    tx.executemany(_INSERT_CALL, [(seq, each.call) for seq, each in enumerate(several, last + 1)])
    lines = [
        (seq, number, tx.now, kind, data)
        for seq, each in enumerate(several, last + 1)
        for number, (kind, data) in enumerate(each.lines, 1)
    ]
    tx.executemany(_INSERT_EVENT, lines)
    if not all(each.is_announced for each in several):
        tx.topics.add(WORK)
    return jobs


class Departure:
    """How a holder leaves a job, encoded beforehand."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.lines = lines_of(outcome.events)
        self.result = None if outcome.result is None else encode(outcome.result)
        self.question = None if outcome.question is None else encode(outcome.question)
        self.follow_ups = [Acceptance(new) for new in outcome.follow_ups]
        self.size = size_of(self.lines) + len(self.result or b"") + len(self.question or b"")

    def settle(self, tx: Transaction, held: Held) -> JobSummary:
        seq, job = known_job(tx, held.job_id)
        return self._leave(tx, seq, lifecycle.settled(job, held, self.outcome, self.size, tx.now))

    def cancel(self, tx: Transaction, job_id: str) -> JobSummary:
        seq, known = known_job(tx, job_id)
        job = lifecycle.cancelled(known, self.outcome, self.size, tx.now)
        if job is known:
            return known
        if job.has_ended:
            return self._leave(tx, seq, job)
        return write_job(tx, seq, job)

    def _leave(self, tx: Transaction, seq: int, job: JobSummary) -> JobSummary:
        for accept in self.follow_ups:
            accept(tx)
        if job.has_ended:
            tx.execute(_END, (seq, self.result))
        elif job.state == "input_required":
            tx.execute(_ASK, (seq, self.question))
        return write_job(tx, seq, job, self.lines)


def append(tx: Transaction, held: Held, lines: Lines, size: int) -> int:
    written = tx.execute(_APPEND, (len(lines), size, tx.now, held.job_id, held.fence)).fetchall()
    if not written:
        known_job(tx, held.job_id)
        raise LeaseLost(held.job_id, held.fence)
    seq, last = written[0]
    write_lines(tx, seq, last - len(lines) + 1, lines)
    tx.topics.add(job_topic(held.job_id))
    return int(last)


def answer(tx: Transaction, job_id: str, said: bytes, lines: Lines, part_of: int | None) -> JobSummary:
    seq, job = known_job(tx, job_id)
    going = lifecycle.answered(job, len(lines), size_of(lines) + len(said), tx.now, part_of)
    tx.execute(_ANSWER, (said, seq))
    return write_job(tx, seq, going, lines)


def heartbeat(tx: Transaction, held: Sequence[Held], lease: float) -> list[Pulse]:
    return [_beat(tx, each, lease) for each in held]


def _beat(tx: Transaction, held: Held, lease: float) -> Pulse:
    row = tx.execute(_BY_ID, (held.job_id,)).fetchone()
    job = summary_from(row) if row else None
    said = lifecycle.pulse(job, held)
    if said.is_held and row:
        tx.execute(_RENEW, (tx.now + lease, row[0]))
    return said


def known_job(tx: Transaction, job_id: str) -> tuple[int, JobSummary]:
    row = tx.execute(_BY_ID, (job_id,)).fetchone()
    if row is None:
        raise JobNotFound(job_id)
    return row[0], summary_from(row)


def write_job(tx: Transaction, seq: int, job: S, lines: Lines = ()) -> S:
    """The row as it is now, and the events that were the reason."""
    tx.execute(UPDATE, (*changing(job), seq))
    write_lines(tx, seq, job.events - len(lines) + 1, lines)
    tx.topics.add(job_topic(job.job_id))
    if job.state == "queued":
        tx.topics.add(WORK)
    return job


def write_lines(tx: Transaction, seq: int, first: int, lines: Lines) -> None:
    if lines:
        tx.executemany(
            _INSERT_EVENT, [(seq, number, tx.now, kind, data) for number, (kind, data) in enumerate(lines, first)]
        )
