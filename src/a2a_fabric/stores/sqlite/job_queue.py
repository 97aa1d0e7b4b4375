"""Claiming, taking over and pruning jobs, as units of work for the writer.

A claim reads the head of the queue first. It goes through the agents one by one
only when the head holds too many jobs of agents at their limit, so a backlog of one
busy agent costs the others nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from a2a_fabric.core import job_lifecycle
from a2a_fabric.core.job import PRIORITIES, ClaimRequest, HoldRequest, Job, PruneResult, RetentionPolicy
from a2a_fabric.core.job_lifecycle import AgentQuota
from a2a_fabric.stores.rows import EncodedEvents, job_from_row, measure_encoded, select_excess
from a2a_fabric.stores.sqlite.job_writes import SELECT_FULL_JOBS, write_job
from a2a_fabric.stores.sqlite.writer import SqliteTransaction

_WINDOW = 128

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
_RUNNING = "SELECT count(*) FROM jobs WHERE agent_id = ? AND state = 'running'"
ABANDONED = """
SELECT seq FROM jobs INDEXED BY jobs_lease WHERE state = 'running' AND lease_until <= :now
UNION
SELECT seq FROM jobs INDEXED BY jobs_expiry
WHERE state IN ('queued', 'input_required') AND expires_at IS NOT NULL AND expires_at <= :now
UNION
SELECT seq FROM jobs INDEXED BY jobs_cancelled WHERE state IN ('queued', 'input_required') AND cancel_requested = 1
LIMIT :limit
"""
_FULL_JOB = f"{SELECT_FULL_JOBS} WHERE jobs.seq = ?"
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


def claim(tx: SqliteTransaction, request: ClaimRequest, encoded_events: EncodedEvents) -> list[Job]:
    size = measure_encoded(encoded_events)
    return [
        write_job(
            tx,
            seq,
            job_lifecycle.claim_job(_read_full_job(tx, seq), request.hold, len(encoded_events), size, tx.now),
            encoded_events,
        )
        for seq in _choose_jobs(tx, request)
    ]


def take_over(tx: SqliteTransaction, hold: HoldRequest, limit: int) -> list[Job]:
    abandoned = tx.execute(ABANDONED, {"now": tx.now, "limit": limit}).fetchall()
    return [
        write_job(tx, seq, job_lifecycle.take_over_job(_read_full_job(tx, seq), hold, tx.now)) for (seq,) in abandoned
    ]


def prune(tx: SqliteTransaction, retention: RetentionPolicy, limit: int) -> PruneResult:
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
    blocked_owners = msgspec.json.encode(request.blocked_owners).decode()
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
    return job_from_row(tx.execute(_FULL_JOB, (seq,)).fetchone())


def _select_excess(tx: SqliteTransaction, max_bytes: int, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The oldest ended jobs, until the rest fits into `max_bytes`; and whether these jobs are enough."""
    excess = tx.execute(_TOTAL).fetchone()[0] - max_bytes
    return select_excess(tx.execute(_OLDEST, (limit,)) if excess > 0 else (), excess)


def _delete_jobs(tx: SqliteTransaction, job_seqs: Iterable[int]) -> None:
    seqs = [(seq,) for seq in job_seqs]
    for statement in _DELETE_JOB:
        tx.executemany(statement, seqs)
