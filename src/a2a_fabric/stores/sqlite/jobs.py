"""The job store over SQLite: reads run on the event loop, changes are units of work for the writer.

A unit reads the row, asks core.job, and writes the row. It checks everything
before it writes anything: the fencing token against the row, the key and the id of a new
job against existing jobs. Units of one database never overlap, so what a unit has read
stays true until it commits.

The store remembers each job that it gave to a worker, so the end of a job needs no read: it is written if the row
still has the version that is remembered. Every change of a job has a new version, except a renewed lease, which the
end discards. If the row has another version, the end is decided on the row itself.

A claim reads the head of the queue first. It goes through the agents one by one only when
the head holds too many jobs of agents at their limit, so a backlog of one busy agent costs
the others nothing."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from a2a_fabric.core.errors import FabricError, JobNotFound, LeaseLost
from a2a_fabric.core.job import (
    JOB_STATES,
    PRIORITIES,
    AcceptResult,
    AgentQuota,
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
    answer_job,
    append_events,
    cancel_job,
    claim_job,
    compute_retention_end,
    create_job,
    is_final_state,
    is_held_by,
    make_heartbeat_reply,
    match_existing_job,
    release_job,
    summary_from_job,
    take_over_job,
)
from a2a_fabric.core.result import Event
from a2a_fabric.core.stores import PAGE_BYTES, WORK_TOPIC, job_topic
from a2a_fabric.stores.rows import (
    FIXED_COLUMNS,
    JOB_COLUMNS,
    MAX_SEQ,
    MUTABLE_COLUMNS,
    EncodedEvents,
    EncodedJob,
    EncodedOutcome,
    encode,
    encode_events,
    encode_optional,
    event_page,
    job_from_optional_row,
    job_from_row,
    job_page_from_rows,
    measure_encoded,
    read_cursor,
    select_excess,
    summary_from_row,
    to_fixed_values,
    to_mutable_values,
)
from a2a_fabric.stores.sqlite.database import BatchedWork, Row, SqliteReader, SqliteTransaction, Writer
from a2a_fabric.stores.sqlite.statements import RowStatement

_INSERT_COLUMNS = ", ".join((*FIXED_COLUMNS, *MUTABLE_COLUMNS))
_INSERT_VALUES = ", ".join(["{}"] * len((*FIXED_COLUMNS, *MUTABLE_COLUMNS)))
_INSERT_JOB = RowStatement(f"INSERT INTO jobs ({_INSERT_COLUMNS}) VALUES ({_INSERT_VALUES}) ON CONFLICT DO NOTHING")  # noqa: S608
_INSERT_JOB_WITH_SEQ = RowStatement(f"INSERT INTO jobs (seq, {_INSERT_COLUMNS}) VALUES ({{}}, {_INSERT_VALUES})")  # noqa: S608
_UPDATE_COLUMNS = ", ".join(f"{name} = {{}}" for name in MUTABLE_COLUMNS)
_UPDATE_JOB = RowStatement(f"UPDATE jobs SET {_UPDATE_COLUMNS} WHERE seq = {{}}")  # noqa: S608

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
_END_JOB = RowStatement("""
UPDATE jobs SET state = {}, worker = NULL, lease_until = NULL, updated_at = {}, ended_at = {}, events = {}, size = {},
    version = {}, error = {}, keep_until = {}
WHERE seq = {} AND job_id = {} AND version = {} AND fence = {} AND state = 'running'
""")
_RENEW_LEASE = "UPDATE jobs SET lease_until = ? WHERE seq = ?"
_PUT_QUESTION = """
INSERT INTO job_bodies (job, question) VALUES (?, ?)
ON CONFLICT (job) DO UPDATE SET question = excluded.question, answer = NULL
"""
_PUT_ANSWER = "UPDATE job_bodies SET answer = ? WHERE job = ?"
_PUT_RESULT = "INSERT OR REPLACE INTO job_bodies (job, result) VALUES (?, ?)"
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
SELECT count(*) FROM (
    SELECT 1 FROM jobs INDEXED BY jobs_waiting
    WHERE owner = ? AND state = 'queued' AND state IN ('queued', 'input_required') LIMIT ?
)
"""
_DUE = """
SELECT 1 FROM jobs INDEXED BY jobs_queue
WHERE state = 'queued' AND priority IN (1, 2, 3, 4) AND run_at <= ? LIMIT 1
"""


class _HeldJob(NamedTuple):
    """A job as a worker was given it."""

    seq: int
    job: JobSummary


class SqliteJobs:
    def __init__(self, writer: Writer, reader: SqliteReader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._held: OrderedDict[str, _HeldJob] = OrderedDict()

    async def accept(self, new: NewJob) -> AcceptResult:
        work = AcceptJob(new, is_announced=new.hold is None)
        if new.hold is None:
            return await self._writer.run_announced(WORK_TOPIC, work)
        accepted = await self._writer.run(work)
        if accepted.is_new:
            self._remember(_HeldJob(work.seq, accepted.job))
        return accepted

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
        claimed = await self._writer.run(lambda tx: _claim(tx, request, encoded_events))
        for seq, job in claimed:
            self._remember(_HeldJob(seq, summary_from_job(job)))
        return [job for _, job in claimed]

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        if not self._reader.fetch_one(_ABANDONED, {"now": self._clock(), "limit": 1}):
            return []
        return await self._writer.run(lambda tx: _take_over(tx, hold, limit))

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        return await self._writer.run(lambda tx: [_renew_lease(tx, each, lease) for each in tokens])

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        encoded_events = encode_events(events)
        size = measure_encoded(encoded_events)
        held = self._held.pop(token.job_id, None)
        last, now = await self._writer.run(lambda tx: (_append_events(tx, token, encoded_events, size), tx.now))
        if held is not None:
            job = append_events(held.job, token, len(encoded_events), size, now)
            if job.events == last:
                self._remember(_HeldJob(held.seq, job))
        return last

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        held = self._held.pop(token.job_id, None)
        return await self._writer.run(ReleaseJob(token, LeaveJob(outcome), held))

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        encoded_answer, encoded_events = encode(answer), encode_events(events)
        return await self._writer.run_announced(
            WORK_TOPIC, lambda tx: _answer_job(tx, job_id, encoded_answer, encoded_events, part_of)
        )

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        work = LeaveJob(outcome)
        return await self._writer.run(lambda tx: work.cancel(tx, job_id))

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = min(max(0, after), MAX_SEQ)
        with self._reader.iterate_rows(_EVENTS, (after, job_id, limit)) as rows:
            return event_page(rows, job_id, after, max_bytes)

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        return await self._writer.run(lambda tx: _prune(tx, retention, limit))

    def _remember(self, held: _HeldJob) -> None:
        self._held[held.job.job_id] = held
        if len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)

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
            self._reader.fetch_all(_build_state_query(names, state), (before, *values, limit))
            for state in dict.fromkeys(states)
        ]
        newest = islice(heapq.merge(*rows_by_state, reverse=True), limit)
        return self._reader.fetch_all(_BY_SEQS, (encode([seq for (seq,) in newest]).decode(),))


def _build_state_query(columns: Sequence[str], state: JobState) -> str:
    """The newest rows in one state. SQLite takes a partial index only if the query repeats its condition.

    Lists of one owner come from an index alone. Ended jobs of an agent, or of all, are looked for from the newest on.
    """
    if is_final_state(state):
        index, condition = _ENDED_INDEXES.get(tuple(columns), "NOT INDEXED"), "ended_at IS NOT NULL"
    elif state == "running":  # few, so they may be sorted
        index, condition = "INDEXED BY jobs_running", "state = 'running'"
    elif state == "queued" and columns == ["agent_id"]:
        index, condition = "INDEXED BY jobs_agent_queue", "state = 'queued'"
    else:
        index, condition = "INDEXED BY jobs_waiting", "state IN ('queued', 'input_required')"
    conditions = "".join(f" AND {name} = ?" for name in columns)
    return f"""
    SELECT seq FROM jobs {index} WHERE state = '{state}' AND {condition} AND seq < ?{conditions}
    ORDER BY seq DESC LIMIT ?
    """  # noqa: S608


_ENDED_INDEXES = {
    ("owner",): "INDEXED BY jobs_owner",
    ("owner", "agent_id"): "INDEXED BY jobs_owner_agent",
}

S = TypeVar("S", bound=JobSummary)


class AcceptJob(BatchedWork):
    """A job to accept, encoded before the writer's turn, so that the writer only writes.

    If it `is_announced`, the writer itself posts the topic of new work (see `Writer.run_announced`).
    """

    __slots__ = ("encoded", "is_announced", "new", "seq")

    def __init__(self, new: NewJob, *, is_announced: bool = False) -> None:
        self.new = new
        self.seq = 0  # set when it is written
        self.is_announced = is_announced
        self.encoded = EncodedJob(new.call, new.events)

    def __call__(self, tx: SqliteTransaction) -> AcceptResult:
        new = self.new
        if new.key is not None and (existing := tx.execute(_BY_KEY, (new.owner, new.key)).fetchone()):
            return AcceptResult(match_existing_job(summary_from_row(existing), new), False)
        job = create_job(new, self.encoded.size, tx.now)
        seq = insert_job(tx, job, self.encoded)
        if seq is None:
            return AcceptResult(match_existing_job(read_job(tx, new.job_id)[1], new), False)
        self.seq = seq
        if job.state == "queued" and not self.is_announced:
            tx.topics.add(WORK_TOPIC)
        return AcceptResult(job, True)

    @staticmethod
    def run_batch(tx: SqliteTransaction, batch: Sequence[AcceptJob]) -> Sequence[AcceptResult | FabricError]:
        """Insert the new jobs together; then do those with an existing key, and those that are refused, one by one."""
        new: dict[object, AcceptJob] = {}
        for each in batch:
            if each._is_new(tx):
                new.setdefault((each.new.owner, each.new.key) if each.new.key is not None else each, each)
        accepted = {id(each): AcceptResult(job, True) for each, job in insert_jobs(tx, list(new.values()))}
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
    cursor = tx.execute(*_INSERT_JOB.bind((*to_fixed_values(job), *to_mutable_values(job))))
    if cursor.rowcount == 0:
        return None
    seq = cursor.lastrowid or 0
    tx.execute(_INSERT_CALL, (seq, bytearray(encoded.call)))
    _write_events(tx, seq, 1, encoded.events)
    return seq


def insert_jobs(tx: SqliteTransaction, batch: Sequence[AcceptJob]) -> list[tuple[AcceptJob, JobSummary]]:
    """Insert jobs whose ids and keys are new; otherwise SQLite raises, and the group is run again, each unit alone."""
    jobs = [(each, create_job(each.new, each.encoded.size, tx.now)) for each in batch]
    (last,) = tx.execute(_LAST_SEQ).fetchone()
    for seq, each in enumerate(batch, last + 1):
        each.seq = seq
    rows = ((seq, *to_fixed_values(job), *to_mutable_values(job)) for seq, (_, job) in enumerate(jobs, last + 1))
    for sql, parameters in _INSERT_JOB_WITH_SEQ.bind_all(rows).items():
        tx.executemany(sql, parameters)
    tx.executemany(_INSERT_CALL, [(seq, bytearray(each.encoded.call)) for seq, each in enumerate(batch, last + 1)])
    event_rows = [
        row for seq, each in enumerate(batch, last + 1) for row in _build_event_rows(tx, seq, 1, each.encoded.events)
    ]
    tx.executemany(_INSERT_EVENT, event_rows)
    if not all(each.is_announced or job.state != "queued" for each, job in jobs):
        tx.topics.add(WORK_TOPIC)
    return jobs


class ReleaseJob(BatchedWork):
    """A worker releases its job. Jobs that are remembered, and that end, are written together."""

    __slots__ = ("held", "leave", "token")

    def __init__(self, token: FencingToken, leave: LeaveJob, held: _HeldJob | None) -> None:
        self.token = token
        self.leave = leave
        self.held = held

    def __call__(self, tx: SqliteTransaction) -> JobSummary:
        [released] = self.run_batch(tx, [self])
        if isinstance(released, FabricError):
            raise released
        return released

    @staticmethod
    def run_batch(tx: SqliteTransaction, batch: Sequence[ReleaseJob]) -> Sequence[JobSummary | FabricError]:
        results: list[tuple[int, bytearray | None]] = []
        event_rows: list[tuple[Any, ...]] = []
        released = [each._end(tx, results, event_rows) for each in batch]
        tx.executemany(_PUT_RESULT, results)
        tx.executemany(_INSERT_EVENT, event_rows)
        return [each._run_alone(tx) if job is None else job for each, job in zip(batch, released, strict=True)]

    def _end(
        self, tx: SqliteTransaction, results: list[tuple[int, bytearray | None]], event_rows: list[tuple[Any, ...]]
    ) -> JobSummary | None:
        """The job with its end, if the row is as it is remembered. Adds the rows that belong to it."""
        encoded = self.leave.encoded
        if self.held is None or not is_final_state(encoded.outcome.state) or encoded.outcome.follow_ups:
            return None
        seq, known = self.held
        if not is_held_by(known, self.token):
            return None
        job = release_job(known, self.token, encoded.outcome, encoded.size, tx.now)
        values = (job.state, tx.now, tx.now, job.events, job.size, job.version, encode_optional(job.error),
                  compute_retention_end(job), seq, job.job_id, known.version, known.fence)  # fmt: skip
        if not tx.execute(*_END_JOB.bind(values)).rowcount:
            return None
        results.append((seq, None if encoded.result is None else bytearray(encoded.result)))
        event_rows += _build_event_rows(tx, seq, known.events + 1, encoded.events)
        tx.topics.add(job_topic(job.job_id))
        return job

    def _run_alone(self, tx: SqliteTransaction) -> JobSummary | FabricError:
        before = tx.connection.total_changes
        try:
            return self.leave.release(tx, self.token)
        except FabricError as exc:
            if tx.connection.total_changes != before:
                raise  # the group is run again, each unit alone
            return exc


class LeaveJob:
    """Writes how a worker or a cancellation leaves a job, and accepts its follow-up jobs in the same transaction."""

    def __init__(self, outcome: JobOutcome) -> None:
        self.encoded = EncodedOutcome(outcome)
        self._follow_ups = [AcceptJob(new) for new in outcome.follow_ups]

    def release(self, tx: SqliteTransaction, token: FencingToken) -> JobSummary:
        seq, job = read_job(tx, token.job_id)
        encoded = self.encoded
        return self._write(tx, seq, release_job(job, token, encoded.outcome, encoded.size, tx.now))

    def cancel(self, tx: SqliteTransaction, job_id: str) -> JobSummary:
        seq, current = read_job(tx, job_id)
        job = cancel_job(current, self.encoded.outcome, self.encoded.size, tx.now)
        if job is current:
            return current
        return self._write(tx, seq, job) if job.has_ended else write_job(tx, seq, job)

    def _write(self, tx: SqliteTransaction, seq: int, job: JobSummary) -> JobSummary:
        for follow_up in self._follow_ups:
            follow_up(tx)  # may refuse; the group is then run again without this unit
        if job.has_ended:
            tx.execute(_PUT_RESULT, (seq, self.encoded.result))
        elif job.state == "input_required":
            tx.execute(_PUT_QUESTION, (seq, self.encoded.question))
        return write_job(tx, seq, job, self.encoded.events)


def _append_events(tx: SqliteTransaction, token: FencingToken, encoded_events: EncodedEvents, size: int) -> int:
    """The number of the last event. The fence is checked by the UPDATE itself: a former holder changes no row."""
    rows = tx.execute(_COUNT_EVENTS, (len(encoded_events), size, tx.now, token.job_id, token.fence)).fetchall()
    if not rows:
        read_job(tx, token.job_id)  # raises JobNotFound
        raise LeaseLost(token.job_id, token.fence)
    seq, last = rows[0]
    _write_events(tx, seq, last - len(encoded_events) + 1, encoded_events)
    tx.topics.add(job_topic(token.job_id))
    return int(last)


def _answer_job(
    tx: SqliteTransaction, job_id: str, encoded_answer: bytes, encoded_events: EncodedEvents, part_of: int | None
) -> JobSummary:
    seq, job = read_job(tx, job_id)
    updated = answer_job(
        job, len(encoded_events), measure_encoded(encoded_events) + len(encoded_answer), tx.now, part_of
    )
    tx.execute(_PUT_ANSWER, (encoded_answer, seq))
    return write_job(tx, seq, updated, encoded_events)


def _renew_lease(tx: SqliteTransaction, token: FencingToken, lease: float) -> HeartbeatReply:
    row = tx.execute(_BY_ID, (token.job_id,)).fetchone()
    job = summary_from_row(row) if row else None
    reply = make_heartbeat_reply(job, token)
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
    tx.execute(*_UPDATE_JOB.bind((*to_mutable_values(job), seq)))
    _write_events(tx, seq, job.events - len(encoded_events) + 1, encoded_events)
    tx.topics.add(job_topic(job.job_id))
    if job.state == "queued":
        tx.topics.add(WORK_TOPIC)
    return job


def _write_events(tx: SqliteTransaction, seq: int, first: int, encoded_events: EncodedEvents) -> None:
    if encoded_events:
        tx.executemany(_INSERT_EVENT, _build_event_rows(tx, seq, first, encoded_events))


def _build_event_rows(
    tx: SqliteTransaction, seq: int, first: int, encoded_events: EncodedEvents
) -> list[tuple[int, int, float, str, bytearray]]:
    return [(seq, number, tx.now, kind, bytearray(data)) for number, (kind, data) in enumerate(encoded_events, first)]


_WINDOW = 128
_MAX_HELD = 10_000  # that are remembered; those of workers that lost them are forgotten with time

_IS_DUE = "run_at <= :now AND (expires_at IS NULL OR expires_at > :now) AND cancel_requested = 0"
_IS_OPEN = "owner NOT IN (SELECT value FROM json_each(:blocked_owners))"
_HEAD = f"""
SELECT seq, agent_id FROM jobs WHERE state = 'queued' AND priority = :priority AND {_IS_DUE}
ORDER BY run_at, seq LIMIT :limit
"""  # noqa: S608
_HEAD_OF_OTHERS = _HEAD.replace("ORDER BY", f"AND {_IS_OPEN} ORDER BY")
_HEAD_OF_AGENT = f"""
SELECT run_at, seq FROM jobs WHERE state = 'queued' AND agent_id = :agent AND priority = :priority AND {_IS_DUE}
AND {_IS_OPEN} ORDER BY run_at, seq LIMIT :limit
"""  # noqa: S608
_WAITING_AGENTS = """
WITH RECURSIVE waiting (agent_id) AS (
    SELECT min(agent_id) FROM jobs INDEXED BY jobs_agent_queue WHERE state = 'queued'
    UNION ALL
    SELECT (
        SELECT min(agent_id) FROM jobs INDEXED BY jobs_agent_queue
        WHERE state = 'queued' AND agent_id > waiting.agent_id
    )
    FROM waiting WHERE waiting.agent_id IS NOT NULL
)
SELECT agent_id FROM waiting WHERE agent_id IS NOT NULL
"""
_RUNNING = "SELECT count(*) FROM jobs INDEXED BY jobs_running WHERE agent_id = ? AND state = 'running'"
_ABANDONED = """
SELECT seq FROM jobs INDEXED BY jobs_running WHERE state = 'running' AND lease_until <= :now
UNION
SELECT seq FROM jobs INDEXED BY jobs_expiry
WHERE state IN ('queued', 'input_required') AND expires_at IS NOT NULL AND expires_at <= :now
UNION
SELECT seq FROM jobs INDEXED BY jobs_cancelled WHERE state IN ('queued', 'input_required') AND cancel_requested = 1
LIMIT :limit
"""
_FULL_JOB_BY_SEQ = f"{SELECT_FULL_JOBS} WHERE jobs.seq = ?"
_EXPIRED = """
SELECT seq, size FROM jobs WHERE keep_until IS NOT NULL AND keep_until <= :now
UNION ALL SELECT seq, size FROM jobs WHERE ended_at IS NOT NULL AND ended_at <= :before AND retention IS NULL
LIMIT :limit
"""
_TOTAL = "SELECT coalesce(sum(size), 0) FROM jobs WHERE ended_at IS NOT NULL"
_OLDEST = "SELECT seq, size FROM jobs WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT ?"
_DELETE_JOB = (
    "DELETE FROM job_events WHERE job = ?",
    "DELETE FROM job_bodies WHERE job = ?",
    "DELETE FROM job_calls WHERE job = ?",
    "DELETE FROM jobs WHERE seq = ?",
)


def _claim(tx: SqliteTransaction, request: ClaimRequest, encoded_events: EncodedEvents) -> list[tuple[int, Job]]:
    """The jobs with their seqs."""
    size = measure_encoded(encoded_events)
    return [
        (
            seq,
            write_job(
                tx,
                seq,
                claim_job(_read_full_job(tx, seq), request.hold, len(encoded_events), size, tx.now),
                encoded_events,
            ),
        )
        for seq in _choose_jobs(tx, request)
    ]


def _take_over(tx: SqliteTransaction, hold: HoldRequest, limit: int) -> list[Job]:
    abandoned = tx.execute(_ABANDONED, {"now": tx.now, "limit": limit}).fetchall()
    return [write_job(tx, seq, take_over_job(_read_full_job(tx, seq), hold, tx.now)) for (seq,) in abandoned]


def _prune(tx: SqliteTransaction, retention: RetentionPolicy, limit: int) -> PruneResult:
    before = tx.now - retention.max_age if retention.max_age is not None else -1.0
    expired = tx.execute(_EXPIRED, {"now": tx.now, "before": before, "limit": limit + 1}).fetchall()
    deleted = expired[:limit]
    _delete_jobs(tx, (seq for seq, _ in deleted))
    is_done = len(expired) <= limit
    if is_done and retention.max_bytes is not None:
        oldest, is_done = _select_excess(tx, retention.max_bytes, limit - len(deleted))
        _delete_jobs(tx, (seq for seq, _ in oldest))
        deleted += oldest
    return PruneResult(len(deleted), sum(size for _, size in deleted), is_done)


def _choose_jobs(tx: SqliteTransaction, request: ClaimRequest) -> list[int]:
    quota = AgentQuota(request, lambda agent_id: int(tx.execute(_RUNNING, (agent_id,)).fetchone()[0]))
    blocked_owners = encode(request.blocked_owners).decode()
    chosen: dict[int, None] = {}
    for window in (request.limit, request.limit + _WINDOW):
        head = list(_read_head(tx, window, blocked_owners))
        fresh = ((agent_id, seq) for agent_id, seq in head if seq not in chosen)
        chosen |= dict.fromkeys(quota.choose(fresh, request.limit - len(chosen)))
        if len(chosen) >= request.limit or len(head) < window:
            return list(chosen)
    fresh = (
        (agent_id, seq)
        for agent_id, seq in _read_heads_by_agent(tx, quota, request.limit, blocked_owners)
        if seq not in chosen
    )
    return [*chosen, *quota.choose(fresh, request.limit - len(chosen))]


def _read_head(tx: SqliteTransaction, limit: int, blocked_owners: str) -> Iterator[tuple[str, int]]:
    """Agent and seq of the next jobs, over all agents."""
    remaining = limit
    query = _HEAD if blocked_owners == "[]" else _HEAD_OF_OTHERS
    for priority in PRIORITIES:
        values = {"priority": priority, "now": tx.now, "limit": remaining, "blocked_owners": blocked_owners}
        rows = tx.execute(query, values).fetchall()
        yield from ((agent_id, seq) for seq, agent_id in rows)
        remaining -= len(rows)
        if remaining <= 0:
            return


def _read_heads_by_agent(
    tx: SqliteTransaction, quota: AgentQuota, limit: int, blocked_owners: str
) -> list[tuple[str, int]]:
    heads: list[tuple[int, float, int, str]] = []
    for (agent_id,) in tx.execute(_WAITING_AGENTS).fetchall():
        free = quota.remaining_for(agent_id)
        if free == 0:
            continue
        agent_limit = limit * 2 if free is None else min(limit * 2, free + limit)  # some of them may be chosen already
        for priority in PRIORITIES:
            values = {
                "agent": agent_id,
                "priority": priority,
                "now": tx.now,
                "limit": agent_limit,
                "blocked_owners": blocked_owners,
            }
            heads += [(-priority, run_at, seq, agent_id) for run_at, seq in tx.execute(_HEAD_OF_AGENT, values)]
    return [(agent_id, seq) for _, _, seq, agent_id in sorted(heads)]


def _read_full_job(tx: SqliteTransaction, seq: int) -> Job:
    return job_from_row(tx.execute(_FULL_JOB_BY_SEQ, (seq,)).fetchone())


def _select_excess(tx: SqliteTransaction, max_bytes: int, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The oldest ended jobs, until the rest fits into `max_bytes`; and whether these jobs are enough."""
    excess = tx.execute(_TOTAL).fetchone()[0] - max_bytes
    return select_excess(tx.execute(_OLDEST, (limit,)) if excess > 0 else (), excess)


def _delete_jobs(tx: SqliteTransaction, job_seqs: Iterable[int]) -> None:
    seqs = [(seq,) for seq in job_seqs]
    for statement in _DELETE_JOB:
        tx.executemany(statement, seqs)
