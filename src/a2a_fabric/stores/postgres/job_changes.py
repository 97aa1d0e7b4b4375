"""Changes of jobs that exist, a group at a time: lock the rows, ask core/lifecycle.py about each, write all.

A change sees what the ones before it in its group made of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from a2a_fabric.core import lifecycle
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.job import Held, JobSummary, Outcome, Pulse
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.stores.job_rows import Lines, encode, lines_of, size_of, summary_from
from a2a_fabric.stores.postgres.arrays import columns_of
from a2a_fabric.stores.postgres.errors import Again
from a2a_fabric.stores.postgres.job_rows import SELECT
from a2a_fabric.stores.postgres.job_writes import Acceptance, Known, change_jobs, find_known, insert_jobs
from a2a_fabric.stores.postgres.transaction import Transaction

_LOCK = f"{SELECT} WHERE jobs.job_id = ANY($1::text[]) ORDER BY jobs.job_id FOR UPDATE"
_RENEW = """
UPDATE a2a_fabric.jobs AS jobs SET lease_until = given.lease_until, updated_at = given.updated_at
FROM unnest($1::int8[], $2::float8[], $3::float8[]) AS given (seq, lease_until, updated_at)
WHERE jobs.seq = given.seq
"""
_LEAVE = """
INSERT INTO a2a_fabric.job_bodies (job, result, question) SELECT * FROM unnest($1::int8[], $2::bytea[], $3::bytea[])
ON CONFLICT (job) DO UPDATE SET result = excluded.result, question = excluded.question, answer = NULL
"""
_ANSWER = """
UPDATE a2a_fabric.job_bodies AS bodies SET answer = given.answer
FROM unnest($1::int8[], $2::bytea[]) AS given (job, answer) WHERE bodies.job = given.job
"""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one change makes of a job; `job` is None when nothing is to be written."""

    reply: Any
    job: JobSummary | None = None
    lines: Lines = ()
    left: tuple[bytes | None, bytes | None] | None = None  # result and question, of a job that is left
    answer: bytes | None = None
    is_pulse: bool = False  # only the lease; nobody is told


class Change(Protocol):
    job_id: str
    follow_ups: Sequence[Acceptance]
    size: int

    def decide(self, job: JobSummary | None, now: float) -> Step:
        """Raises FabricError; then nothing of it is written."""
        ...


class Append:
    follow_ups: Sequence[Acceptance] = ()

    def __init__(self, held: Held, lines: Lines) -> None:
        self.job_id = held.job_id
        self.size = size_of(lines)
        self._held = held
        self._lines = lines

    def decide(self, job: JobSummary | None, now: float) -> Step:
        going = lifecycle.appended(_known(job, self.job_id), self._held, len(self._lines), self.size, now)
        return Step(job=going, lines=self._lines, reply=going.events)


class Beat:
    follow_ups: Sequence[Acceptance] = ()
    size = 0

    def __init__(self, held: Held, lease: float) -> None:
        self.job_id = held.job_id
        self._held = held
        self._lease = lease

    def decide(self, job: JobSummary | None, now: float) -> Step:
        said: Pulse = lifecycle.pulse(job, self._held)
        if job is None or not said.is_held:
            return Step(reply=said)
        return Step(job=lifecycle.renewed(job, self._lease, now), reply=said, is_pulse=True)


class Answer:
    follow_ups: Sequence[Acceptance] = ()

    def __init__(self, job_id: str, said: bytes, lines: Lines, part_of: int | None) -> None:
        self.job_id = job_id
        self.size = size_of(lines) + len(said)
        self._said = said
        self._part_of = part_of
        self._lines = lines

    def decide(self, job: JobSummary | None, now: float) -> Step:
        going = lifecycle.answered(_known(job, self.job_id), len(self._lines), self.size, now, self._part_of)
        return Step(job=going, lines=self._lines, answer=self._said, reply=going)


class _Departure:
    """How a job is left, encoded beforehand."""

    def __init__(self, job_id: str, outcome: Outcome) -> None:
        self.job_id = job_id
        self.follow_ups: Sequence[Acceptance] = [Acceptance(new) for new in outcome.follow_ups]
        self._outcome = outcome
        self._lines = lines_of(outcome.events)
        self._result = None if outcome.result is None else encode(outcome.result)
        self._question = None if outcome.question is None else encode(outcome.question)
        self.size = size_of(self._lines) + len(self._result or b"") + len(self._question or b"")

    def _leave(self, job: JobSummary) -> Step:
        if job.has_ended:
            return Step(job=job, lines=self._lines, left=(self._result, None), reply=job)
        if job.state == "input_required":
            return Step(job=job, lines=self._lines, left=(None, self._question), reply=job)
        return Step(job=job, lines=self._lines, reply=job)


class Settle(_Departure):
    def __init__(self, held: Held, outcome: Outcome) -> None:
        super().__init__(held.job_id, outcome)
        self._held = held

    def decide(self, job: JobSummary | None, now: float) -> Step:
        known = _known(job, self.job_id)
        return self._leave(lifecycle.settled(known, self._held, self._outcome, self.size, now))


class Cancel(_Departure):
    def decide(self, job: JobSummary | None, now: float) -> Step:
        known = _known(job, self.job_id)
        going = lifecycle.cancelled(known, self._outcome, self.size, now)
        if going is known:
            return Step(reply=known)
        return self._leave(going) if going.has_ended else Step(job=going, reply=going)


async def change(tx: Transaction, changes: Sequence[Change]) -> list[Any]:
    """A reply or a FabricError for each."""
    rows = await tx.all(_LOCK, list({each.job_id for each in changes}))
    wanted = [accept.new for each in changes for accept in each.follow_ups]
    sheet = _Sheet(rows, await find_known(tx, wanted), tx.now)
    replies = [sheet.apply(each) for each in changes]
    await sheet.write(tx)
    return replies


class _Sheet:
    """The jobs of one group, as its changes leave them."""

    def __init__(self, rows: Sequence[Any], known: Known, now: float) -> None:
        self._now = now
        self._known = known
        self._seqs: dict[str, int] = {row[1]: row[0] for row in rows}
        self._jobs: dict[str, JobSummary] = {row[1]: summary_from(row) for row in rows}
        self._lines: dict[str, list[tuple[str, bytes]]] = {}  # of every job that changed
        self._renewed: set[str] = set()
        self._left: dict[str, tuple[bytes | None, bytes | None]] = {}
        self._answers: dict[str, bytes] = {}
        self._accepted: list[tuple[Acceptance, JobSummary]] = []

    def apply(self, change: Change) -> Any:
        try:
            step = change.decide(self._jobs.get(change.job_id), self._now)
            new = self._following(change) if step.job is not None and step.job.state != "running" else []
        except FabricError as exc:
            return exc
        for accept, job in new:
            self._accepted.append((accept, job))
            self._known.add(job)
        self._take(change.job_id, step)
        return step.reply

    def _following(self, change: Change) -> list[tuple[Acceptance, JobSummary]]:
        """Follow-ups that are not there yet. Raises Conflict."""
        found = []
        for accept in change.follow_ups:
            known = self._known.of(accept.new)
            if known is not None:
                lifecycle.same_again(known, accept.new)
            else:
                found.append((accept, lifecycle.accepted(accept.new, accept.size, self._now)))
        return found

    def _take(self, job_id: str, step: Step) -> None:
        if step.job is None:
            return
        self._jobs[job_id] = step.job
        if step.is_pulse:
            self._renewed.add(job_id)
        else:
            self._lines.setdefault(job_id, []).extend(step.lines)
        if step.left is not None:
            self._left[job_id] = step.left
            self._answers.pop(job_id, None)
        if step.answer is not None:
            self._answers[job_id] = step.answer

    async def write(self, tx: Transaction) -> None:
        if self._accepted:
            written = await insert_jobs(tx, self._accepted)
            if len(written) != len(self._accepted):
                raise Again("somebody else took a key at the same time")
        await self._write_bodies(tx)
        if self._lines:
            await change_jobs(tx, [(self._seqs[each], self._jobs[each], lines) for each, lines in self._lines.items()])
        renewed = [(self._seqs[each], self._jobs[each]) for each in self._renewed - self._lines.keys()]
        if renewed:
            rows = [(seq, job.lease.until if job.lease else None, job.updated_at) for seq, job in renewed]
            await tx.change(_RENEW, *columns_of(rows, 3))

    async def _write_bodies(self, tx: Transaction) -> None:
        if self._left:
            await tx.change(_LEAVE, *columns_of([(self._seqs[each], *left) for each, left in self._left.items()], 3))
        if self._answers:
            await tx.change(_ANSWER, *columns_of([(self._seqs[each], said) for each, said in self._answers.items()], 2))


def _known(job: JobSummary | None, job_id: str) -> JobSummary:
    if job is None:
        raise JobNotFound(job_id)
    return job
