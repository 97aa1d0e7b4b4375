"""Claiming, taking over and pruning jobs.

A claim locks the head of the queue and skips what others have locked. It goes
through the agents one by one only when the head holds too many jobs of agents at
their limit, so a backlog of one busy agent costs the others nothing. A claim that has
to count running jobs takes a lock first, so that two nodes never fill the same slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from a2a_fabric.core import job_lifecycle
from a2a_fabric.core.job import PRIORITIES, ClaimRequest, HoldRequest, Job, JobSummary, PruneResult, RetentionPolicy
from a2a_fabric.core.job_lifecycle import AgentQuota
from a2a_fabric.stores.postgres.job_writes import SELECT_JOBS, update_jobs
from a2a_fabric.stores.postgres.transactions import CLAIM_LOCK, PostgresTransaction, Row, acquire_lock
from a2a_fabric.stores.rows import (
    JOB_COLUMNS,
    EncodedEvents,
    job_from_summary,
    measure_encoded,
    select_excess,
    summary_from_row,
)

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

JobsBySeq = dict[int, JobSummary]


async def claim(tx: PostgresTransaction, request: ClaimRequest, encoded_events: EncodedEvents) -> list[Job]:
    chosen = await _choose_jobs(tx, request)
    size = measure_encoded(encoded_events)
    claimed = {
        seq: job_lifecycle.claim_job(job, request.hold, len(encoded_events), size, tx.now)
        for seq, job in chosen.items()
    }
    return await _write_jobs(tx, claimed, encoded_events)


async def take_over(tx: PostgresTransaction, hold: HoldRequest, limit: int) -> list[Job]:
    abandoned = _index_by_seq(await tx.fetch_all(_ABANDONED, tx.now, limit))
    jobs = {seq: job_lifecycle.take_over_job(job, hold, tx.now) for seq, job in list(abandoned.items())[:limit]}
    return await _write_jobs(tx, jobs, ())


async def prune(tx: PostgresTransaction, retention: RetentionPolicy, limit: int) -> PruneResult:
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


async def _write_jobs(tx: PostgresTransaction, jobs: JobsBySeq, encoded_events: EncodedEvents) -> list[Job]:
    """Write the new states; the jobs complete with call, result, question and answer."""
    if not jobs:
        return []
    bodies = {row[0]: row[1:5] for row in await tx.fetch_all(_BODIES, list(jobs))}
    await update_jobs(tx, [(seq, job, encoded_events) for seq, job in jobs.items()])
    return [job_from_summary(job, bodies[seq]) for seq, job in jobs.items()]


async def _choose_jobs(tx: PostgresTransaction, request: ClaimRequest) -> JobsBySeq:
    if request.default_limit or any(request.limits.values()):
        await acquire_lock(tx, CLAIM_LOCK)
    running: dict[str, int] = {}
    quota = AgentQuota(request, lambda agent_id: running.get(agent_id, 0))
    chosen: JobsBySeq = {}
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


def _add_within_quota(quota: AgentQuota, candidates: JobsBySeq, chosen: JobsBySeq, limit: int) -> None:
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
) -> JobsBySeq:
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


def _index_by_seq(rows: Sequence[Row]) -> JobsBySeq:
    return {row[0]: summary_from_row(row) for row in rows}


async def _select_excess(tx: PostgresTransaction, max_bytes: int, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The oldest ended jobs, until the rest fits into `max_bytes`; and whether these jobs are enough."""
    total: Any = await tx.fetch_one(_TOTAL)
    excess = total[0] - max_bytes
    return select_excess(await tx.fetch_all(_OLDEST, limit) if excess > 0 else (), excess)


async def _delete_jobs(tx: PostgresTransaction, jobs: Sequence[tuple[int, int]]) -> None:
    if jobs:
        await tx.write(_DELETE_JOBS, [seq for seq, _ in jobs])
