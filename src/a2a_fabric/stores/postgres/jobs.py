"""The job store over PostgreSQL: writes in groups, one query per read; claiming, taking over and pruning jobs.

A claim locks the head of the queue and skips what others have locked. It goes
through the agents one by one only when the head holds too many jobs of agents at
their limit, so a backlog of one busy agent costs the others nothing. A claim that has
to count running jobs takes a lock first, so that two nodes never fill the same slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from a2a_fabric.core.errors import FabricError
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
    JobSummary,
    NewJob,
    PruneResult,
    RetentionPolicy,
    claim_job,
    take_over_job,
)
from a2a_fabric.core.result import Event
from a2a_fabric.core.stores import PAGE_BYTES
from a2a_fabric.stores.postgres import job_writes
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.held_jobs import HeldJobs
from a2a_fabric.stores.postgres.job_inserts import SELECT_JOBS, JobToAccept, accept_jobs_alone
from a2a_fabric.stores.postgres.job_writes import JobChange, update_jobs
from a2a_fabric.stores.postgres.transactions import CLAIM_LOCK, GroupCommit, PostgresTransaction, Row, acquire_lock
from a2a_fabric.stores.rows import (
    JOB_COLUMNS,
    MAX_SEQ,
    EncodedEvents,
    encode,
    encode_events,
    event_page,
    job_from_optional_row,
    job_from_summary,
    job_page_from_rows,
    measure_encoded,
    read_cursor,
    select_excess,
    summary_from_row,
)

# PostgreSQL keeps plans, and makes some of them while the tables are empty or have no statistics. So queries are
# written in such a way that only the right index fits: subqueries that cannot be merged; and for pages of a list an
# order that only one index has. `= ANY` keeps the first column in that order, where after `=` it would be dropped and
# the index of states would do too; one state is bounded from both sides, because a comparison of whole rows does not
# end a scan. Nothing is joined to a page: joins are what a planner without statistics gets wrong most often.
SELECT_FULL_JOBS = f"""
SELECT {JOB_COLUMNS}, calls.call, bodies.result, bodies.question, bodies.answer FROM a2a_fabric.jobs AS jobs
CROSS JOIN LATERAL (SELECT call FROM a2a_fabric.job_calls WHERE job = jobs.seq OFFSET 0) AS calls
LEFT JOIN LATERAL (
    SELECT result, question, answer FROM a2a_fabric.job_bodies WHERE job = jobs.seq OFFSET 0
) AS bodies ON true
"""  # noqa: S608
_FULL_JOB_BY_ID = f"{SELECT_FULL_JOBS} WHERE jobs.job_id = $1"
_FULL_JOB_BY_KEY = f"{SELECT_FULL_JOBS} WHERE jobs.owner = $1 AND jobs.key = $2"
_EVENTS = """
SELECT jobs.state, jobs.events, page.number, page.at, page.kind, page.data
FROM a2a_fabric.jobs AS jobs LEFT JOIN LATERAL (
    SELECT number, at, kind, data, row_number() OVER ordered AS place, sum(octet_length(data)) OVER ordered AS bytes
    FROM (
        SELECT number, at, kind, data FROM a2a_fabric.job_events
        WHERE job = jobs.seq AND number > $2 ORDER BY number LIMIT $3
    ) AS rows
    WINDOW ordered AS (ORDER BY number)
) AS page ON page.bytes <= $4 OR page.place = 1
WHERE jobs.job_id = $1 ORDER BY page.number
"""
_COUNT_QUEUED = """
SELECT count(*) FROM (
    SELECT 1 FROM a2a_fabric.jobs
    WHERE owner = ANY(ARRAY[$1]) AND state >= 'queued' AND (state, seq) < ('queued', 9223372036854775807)
    ORDER BY owner DESC, state DESC, seq DESC LIMIT $2
) AS found
"""
_NEWEST = f"{SELECT_JOBS} WHERE jobs.seq < $1 ORDER BY jobs.seq DESC LIMIT $2"


class PostgresJobs:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._accept_queue: GroupCommit[JobToAccept, AcceptResult] = GroupCommit(
            connections.safe_address, self._write_accepts
        )
        self._change_queue: GroupCommit[JobChange, Any] = GroupCommit(connections.safe_address, self._write_changes)
        self._held_jobs = HeldJobs(connections)
        self._held_queue: GroupCommit[JobChange, Any] = GroupCommit(
            connections.safe_address, self._held_jobs.apply_changes
        )

    async def accept(self, new: NewJob) -> AcceptResult:
        request = JobToAccept(new)
        return await self._accept_queue.add(request, request.size)

    async def get(self, job_id: str) -> Job | None:
        return job_from_optional_row(await self._connections.read_one(_FULL_JOB_BY_ID, job_id))

    async def find(self, owner: str, key: str) -> Job | None:
        return job_from_optional_row(await self._connections.read_one(_FULL_JOB_BY_KEY, owner, key))

    async def list(self, query: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        sql, values = _build_list_query(query)
        rows = await self._connections.read(sql, read_cursor(cursor), limit + 1, *values)
        return job_page_from_rows(rows, limit)

    async def count_waiting(self, owner: str, most: int) -> int:
        (count,) = await self._connections.read_one(_COUNT_QUEUED, owner, most) or (0,)
        return int(count)

    async def claim(self, request: ClaimRequest) -> Sequence[Job]:
        encoded_events = encode_events(request.events)
        return self._hold(await self._connections.write(lambda tx: _claim(tx, request, encoded_events)))

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        return self._hold(await self._connections.write(lambda tx: _take_over(tx, hold, limit)))

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        replies: list[HeartbeatReply] = await asyncio.gather(
            *(self._change_queue.add(job_writes.make_renewal(each, lease)) for each in tokens)
        )
        return replies

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        last: int = await self._apply_change(job_writes.make_append(token, encode_events(events)))
        return last

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        job: JobSummary = await self._apply_change(job_writes.make_release(token, outcome))
        return job

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        change = job_writes.make_answer(job_id, encode(answer), encode_events(events), part_of)
        job: JobSummary = await self._apply_change(change)
        return job

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        job: JobSummary = await self._apply_change(job_writes.make_cancellation(job_id, outcome))
        return job

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = min(max(0, after), MAX_SEQ)
        rows = await self._connections.read(_EVENTS, job_id, after, limit, max_bytes)
        return event_page(rows, job_id, after, max_bytes)

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        return await self._connections.write(lambda tx: _prune(tx, retention, limit))

    async def aclose(self) -> None:
        await asyncio.gather(self._accept_queue.aclose(), self._held_queue.aclose())
        await self._change_queue.aclose()

    def _hold(self, new_jobs: Sequence[_GivenJob]) -> Sequence[Job]:
        for seq, job, _ in new_jobs:
            self._held_jobs.add(seq, job)
        return [full_job for _, _, full_job in new_jobs]

    async def _apply_change(self, change: JobChange) -> Any:
        if change.is_of_holder and change.job_id in self._held_jobs:
            reply = await self._held_queue.add(change, change.size)
            if reply is not None:
                return reply
        return await self._change_queue.add(change, change.size)

    async def _write_accepts(self, requests: Sequence[JobToAccept]) -> Sequence[AcceptResult | FabricError]:
        return await accept_jobs_alone(self._connections, requests, self._held_jobs.add)

    async def _write_changes(self, changes: Sequence[JobChange]) -> Sequence[Any]:
        return await self._connections.write(lambda tx: job_writes.apply_changes(tx, changes))


def _build_list_query(query: JobFilter) -> tuple[str, list[Any]]:
    """One ordered page per state, each by its index, merged; the values follow `before` and `limit`."""
    column, extra_condition, values = _narrow_index(query)
    states = query.states if query.states is not None else JOB_STATES if column else None
    if states is None:
        return _NEWEST, []
    first = f"{column} = ANY(ARRAY[$4]) AND " if column else ""
    order = ", ".join(f"{each} DESC" for each in (column, "jobs.state", "jobs.seq") if each)
    sql = f"""
    SELECT page.* FROM unnest($3::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT {JOB_COLUMNS} FROM a2a_fabric.jobs AS jobs
        WHERE {first}jobs.state >= wanted.state AND (jobs.state, jobs.seq) < (wanted.state, $1){extra_condition}
        ORDER BY {order} LIMIT $2
    ) AS page ORDER BY page.seq DESC LIMIT $2
    """  # noqa: S608
    return sql, [list(dict.fromkeys(states)), *values]


def _narrow_index(query: JobFilter) -> tuple[str, str, list[Any]]:
    """The first column of the index, the condition that it leaves open, and the values from $4 on."""
    owner, agent_id = query.owner, query.agent_id
    if owner is not None and agent_id is not None:
        # Names may hold line ends too, so the owner is compared again; `|| ''` keeps the index of owners out.
        extra_condition = " AND jobs.owner || '' = $5"
        return "(jobs.owner || E'\\n' || jobs.agent_id)", extra_condition, [f"{owner}\n{agent_id}", owner]
    if owner is not None:
        return "jobs.owner", "", [owner]
    return ("", "", []) if agent_id is None else ("jobs.agent_id", "", [agent_id])


_WINDOW = 128

_IS_DUE = "jobs.run_at <= $1 AND (jobs.expires_at IS NULL OR jobs.expires_at > $1) AND NOT jobs.cancel_requested"


def _build_locking_query(*queries: str) -> str:
    """The first $2 rows of these queries in turn, locked as they are read; those locked by others are skipped."""
    parts = [f"SELECT * FROM ({sql} LIMIT $2 FOR UPDATE SKIP LOCKED) AS part" for sql in queries]  # noqa: S608
    return f"{' UNION ALL '.join(parts)} LIMIT $2"


_HEAD = _build_locking_query(*(
    f"{SELECT_JOBS} WHERE jobs.state = 'queued' AND jobs.priority = {priority} AND {_IS_DUE} "
    "ORDER BY jobs.run_at, jobs.seq"
    for priority in PRIORITIES
))  # fmt: skip
_HEAD_OF_OTHERS = _build_locking_query(*(
    f"{SELECT_JOBS} WHERE jobs.state = 'queued' AND jobs.priority = {priority} AND {_IS_DUE} "
    "AND jobs.owner <> ALL($3::text[]) ORDER BY jobs.run_at, jobs.seq"
    for priority in PRIORITIES
))  # fmt: skip
_HEADS_BY_AGENT = f"""
SELECT head.* FROM unnest($2::text[], $3::int8[]) AS wanted (agent_id, places)
CROSS JOIN unnest($4::int4[]) AS level (priority)
CROSS JOIN LATERAL (
    SELECT {JOB_COLUMNS} FROM a2a_fabric.jobs AS jobs
    WHERE jobs.state = 'queued' AND jobs.agent_id = wanted.agent_id AND jobs.priority = level.priority AND {_IS_DUE}
    AND jobs.owner <> ALL($5::text[]) ORDER BY jobs.run_at, jobs.seq LIMIT wanted.places FOR UPDATE SKIP LOCKED
) AS head
"""  # noqa: S608
_WAITING_AGENTS = """
WITH RECURSIVE waiting (agent_id) AS (
    SELECT min(agent_id) FROM a2a_fabric.jobs WHERE state = 'queued'
    UNION ALL
    SELECT (SELECT min(agent_id) FROM a2a_fabric.jobs WHERE state = 'queued' AND agent_id > waiting.agent_id)
    FROM waiting WHERE waiting.agent_id IS NOT NULL
)
SELECT agent_id FROM waiting WHERE agent_id IS NOT NULL
"""
_RUNNING = """
SELECT agent_id, count(*) FROM a2a_fabric.jobs WHERE state = 'running' AND agent_id = ANY($1::text[]) GROUP BY agent_id
"""
_ABANDONED = _build_locking_query(
    f"{SELECT_JOBS} WHERE jobs.state = 'running' AND jobs.lease_until <= $1",
    f"{SELECT_JOBS} WHERE jobs.state IN ('queued', 'input_required') AND jobs.expires_at IS NOT NULL"
    " AND jobs.expires_at <= $1",
    f"{SELECT_JOBS} WHERE jobs.state IN ('queued', 'input_required') AND jobs.cancel_requested",
)
_BODIES = """
SELECT calls.job, calls.call, bodies.result, bodies.question, bodies.answer
FROM a2a_fabric.job_calls AS calls LEFT JOIN a2a_fabric.job_bodies AS bodies USING (job)
WHERE calls.job = ANY($1::int8[])
"""
_EXPIRED = _build_locking_query(
    "SELECT seq, size FROM a2a_fabric.jobs WHERE keep_until IS NOT NULL AND keep_until <= $1",
    "SELECT seq, size FROM a2a_fabric.jobs WHERE ended_at IS NOT NULL AND ended_at <= $3 AND retention IS NULL",
)
_TOTAL = "SELECT coalesce(sum(size), 0)::int8 FROM a2a_fabric.jobs WHERE ended_at IS NOT NULL"
_OLDEST = """
SELECT seq, size FROM a2a_fabric.jobs WHERE ended_at IS NOT NULL
ORDER BY ended_at LIMIT $1 FOR UPDATE SKIP LOCKED
"""
_DELETE_JOBS = """
WITH events AS (DELETE FROM a2a_fabric.job_events WHERE job = ANY($1::int8[])),
     bodies AS (DELETE FROM a2a_fabric.job_bodies WHERE job = ANY($1::int8[])),
     calls AS (DELETE FROM a2a_fabric.job_calls WHERE job = ANY($1::int8[]))
DELETE FROM a2a_fabric.jobs WHERE seq = ANY($1::int8[])
"""

_JobsBySeq = dict[int, JobSummary]
_GivenJob = tuple[int, JobSummary, Job]  # a job that a worker is given, after its seq: without its call, and complete


async def _claim(tx: PostgresTransaction, request: ClaimRequest, encoded_events: EncodedEvents) -> list[_GivenJob]:
    chosen = await _choose_jobs(tx, request)
    size = measure_encoded(encoded_events)
    claimed = {seq: claim_job(job, request.hold, len(encoded_events), size, tx.now) for seq, job in chosen.items()}
    return await _write_jobs(tx, claimed, encoded_events)


async def _take_over(tx: PostgresTransaction, hold: HoldRequest, limit: int) -> list[_GivenJob]:
    abandoned = _index_by_seq(await tx.fetch_all(_ABANDONED, tx.now, limit))
    jobs = {seq: take_over_job(job, hold, tx.now) for seq, job in list(abandoned.items())[:limit]}
    return await _write_jobs(tx, jobs, ())


async def _prune(tx: PostgresTransaction, retention: RetentionPolicy, limit: int) -> PruneResult:
    before = tx.now - retention.max_age if retention.max_age is not None else -1.0
    expired = await tx.fetch_all(_EXPIRED, tx.now, limit + 1, before)
    deleted = [(row[0], row[1]) for row in expired[:limit]]
    await _delete_jobs(tx, deleted)
    is_done = len(expired) <= limit
    if is_done and retention.max_bytes is not None:
        oldest, is_done = await _select_excess(tx, retention.max_bytes, limit - len(deleted))
        await _delete_jobs(tx, oldest)
        deleted += oldest
    return PruneResult(len(deleted), sum(size for _, size in deleted), is_done)


async def _write_jobs(tx: PostgresTransaction, jobs: _JobsBySeq, encoded_events: EncodedEvents) -> list[_GivenJob]:
    """Write the new states; the jobs complete with call, result, question and answer."""
    if not jobs:
        return []
    bodies = {row[0]: row[1:5] for row in await tx.fetch_all(_BODIES, list(jobs))}
    await update_jobs(tx, [(seq, job, encoded_events) for seq, job in jobs.items()])
    return [(seq, job, job_from_summary(job, bodies[seq])) for seq, job in jobs.items()]


async def _choose_jobs(tx: PostgresTransaction, request: ClaimRequest) -> _JobsBySeq:
    if request.default_limit or any(request.limits.values()):
        await acquire_lock(tx, CLAIM_LOCK)
    running: dict[str, int] = {}
    quota = AgentQuota(request, lambda agent_id: running.get(agent_id, 0))
    chosen: _JobsBySeq = {}
    for window in (request.limit, request.limit + _WINDOW):
        head = _index_by_seq(await _read_head(tx, window, request.blocked_owners))
        running |= await _count_running(tx, request, {job.agent_id for job in head.values()} - running.keys())
        _add_within_quota(quota, head, chosen, request.limit)
        if len(chosen) >= request.limit or len(head) < window:
            return chosen
    heads = await _read_heads_by_agent(tx, request, quota, running)
    _add_within_quota(quota, heads, chosen, request.limit)
    return chosen


async def _read_head(tx: PostgresTransaction, limit: int, blocked_owners: Sequence[str]) -> Sequence[Row]:
    if blocked_owners:
        return await tx.fetch_all(_HEAD_OF_OTHERS, tx.now, limit, list(blocked_owners))
    return await tx.fetch_all(_HEAD, tx.now, limit)


def _add_within_quota(quota: AgentQuota, candidates: _JobsBySeq, chosen: _JobsBySeq, limit: int) -> None:
    fresh = ((job.agent_id, seq) for seq, job in candidates.items() if seq not in chosen)
    for seq in quota.choose(fresh, limit - len(chosen)):
        chosen[seq] = candidates[seq]


async def _count_running(tx: PostgresTransaction, request: ClaimRequest, agents: Iterable[str]) -> dict[str, int]:
    """How many jobs of each agent are running, for agents that have a limit."""
    limited = [agent_id for agent_id in agents if request.limits.get(agent_id, request.default_limit)]
    counts: dict[str, int] = dict.fromkeys(limited, 0)
    if limited:
        counts |= {row[0]: row[1] for row in await tx.fetch_all(_RUNNING, limited)}
    return counts


async def _read_heads_by_agent(
    tx: PostgresTransaction, request: ClaimRequest, quota: AgentQuota, running: dict[str, int]
) -> _JobsBySeq:
    agents = [row[0] for row in await tx.fetch_all(_WAITING_AGENTS)]
    running |= await _count_running(tx, request, set(agents) - running.keys())
    agent_limits = []
    for agent_id in agents:
        free = quota.remaining_for(agent_id)
        if free != 0:  # some of its jobs may be chosen already
            agent_limits.append(
                (agent_id, request.limit * 2 if free is None else min(request.limit * 2, free + request.limit))
            )
    names, limits = [name for name, _ in agent_limits], [count for _, count in agent_limits]
    rows = (
        await tx.fetch_all(_HEADS_BY_AGENT, tx.now, names, limits, list(PRIORITIES), list(request.blocked_owners))
        if agent_limits
        else []
    )
    heads = _index_by_seq(rows)
    return dict(sorted(heads.items(), key=lambda each: (-each[1].priority, each[1].run_at, each[0])))


def _index_by_seq(rows: Sequence[Row]) -> _JobsBySeq:
    return {row[0]: summary_from_row(row) for row in rows}


async def _select_excess(tx: PostgresTransaction, max_bytes: int, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The oldest ended jobs, until the rest fits into `max_bytes`; and whether these jobs are enough."""
    total: Any = await tx.fetch_one(_TOTAL)
    excess = total[0] - max_bytes
    return select_excess(await tx.fetch_all(_OLDEST, limit) if excess > 0 else (), excess)


async def _delete_jobs(tx: PostgresTransaction, jobs: Sequence[tuple[int, int]]) -> None:
    if jobs:
        await tx.write(_DELETE_JOBS, [seq for seq, _ in jobs])
