"""Who gets which job: claiming, taking over, and pruning.

Claiming locks the head of the queue and skips what others have locked. Only
when the head is full of agents without room does it go through the agents one
by one, so that a crowd waiting for one busy agent costs the others nothing.
Where limits have to be counted, claims of all nodes follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from a2a_fabric.core import lifecycle
from a2a_fabric.core.claiming import Room
from a2a_fabric.core.job import PRIORITIES, ClaimWish, Hold, Job, JobSummary, Keep, Pruned
from a2a_fabric.stores.job_rows import COLUMNS, Lines, size_of, summary_from, whole
from a2a_fabric.stores.postgres.job_rows import SELECT
from a2a_fabric.stores.postgres.job_writes import change_jobs
from a2a_fabric.stores.postgres.locks import CLAIMING, lock
from a2a_fabric.stores.postgres.transaction import Row, Transaction

_WINDOW = 128

_IS_DUE = "jobs.run_at <= $1 AND (jobs.expires_at IS NULL OR jobs.expires_at > $1) AND NOT jobs.cancel_requested"


def _locked(*queries: str) -> str:
    """The first $2 rows of these queries in turn, locked as they are read; those locked by others are skipped."""
    parts = [f"SELECT * FROM ({sql} LIMIT $2 FOR UPDATE SKIP LOCKED) AS part" for sql in queries]  # noqa: S608
    return f"{' UNION ALL '.join(parts)} LIMIT $2"


_HEAD = _locked(*(
    f"{SELECT} WHERE jobs.state = 'queued' AND jobs.priority = {priority} AND {_IS_DUE} "
    "ORDER BY jobs.run_at, jobs.seq"
    for priority in PRIORITIES
))  # fmt: skip
_HEAD_OF_OTHERS = _locked(*(
    f"{SELECT} WHERE jobs.state = 'queued' AND jobs.priority = {priority} AND {_IS_DUE} "
    "AND jobs.owner <> ALL($3::text[]) ORDER BY jobs.run_at, jobs.seq"
    for priority in PRIORITIES
))  # fmt: skip
_HEADS_BY_AGENT = f"""
SELECT head.* FROM unnest($2::text[], $3::int8[]) AS wanted (agent_id, places)
CROSS JOIN unnest($4::int4[]) AS level (priority)
CROSS JOIN LATERAL (
    SELECT {COLUMNS} FROM a2a_fabric.jobs AS jobs
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
_ABANDONED = _locked(
    f"{SELECT} WHERE jobs.state = 'running' AND jobs.lease_until <= $1",
    f"{SELECT} WHERE jobs.state IN ('queued', 'input_required') AND jobs.expires_at IS NOT NULL"
    " AND jobs.expires_at <= $1",
    f"{SELECT} WHERE jobs.state IN ('queued', 'input_required') AND jobs.cancel_requested",
)
_BODIES = """
SELECT calls.job, calls.call, bodies.result, bodies.question, bodies.answer
FROM a2a_fabric.job_calls AS calls LEFT JOIN a2a_fabric.job_bodies AS bodies USING (job)
WHERE calls.job = ANY($1::int8[])
"""
_OVER = _locked(
    "SELECT seq, size FROM a2a_fabric.jobs WHERE keep_until IS NOT NULL AND keep_until <= $1",
    "SELECT seq, size FROM a2a_fabric.jobs WHERE ended_at IS NOT NULL AND ended_at <= $3 AND retention IS NULL",
)
_TOTAL = "SELECT coalesce(sum(size), 0)::int8 FROM a2a_fabric.jobs WHERE ended_at IS NOT NULL"
_OLDEST = """
SELECT seq, size FROM a2a_fabric.jobs WHERE ended_at IS NOT NULL
ORDER BY ended_at LIMIT $1 FOR UPDATE SKIP LOCKED
"""
_FORGET = """
WITH events AS (DELETE FROM a2a_fabric.job_events WHERE job = ANY($1::int8[])),
     bodies AS (DELETE FROM a2a_fabric.job_bodies WHERE job = ANY($1::int8[])),
     calls AS (DELETE FROM a2a_fabric.job_calls WHERE job = ANY($1::int8[]))
DELETE FROM a2a_fabric.jobs WHERE seq = ANY($1::int8[])
"""

Found = dict[int, JobSummary]  # by age


async def claim(tx: Transaction, wish: ClaimWish, lines: Lines) -> list[Job]:
    chosen = await _chosen(tx, wish)
    size = size_of(lines)
    begun = {
        seq: lifecycle.claimed(job, wish.hold, len(lines), size, tx.now) for seq, job in chosen.items()
    }  # fmt: skip
    return await _written(tx, begun, lines)


async def take_over(tx: Transaction, hold: Hold, limit: int) -> list[Job]:
    found = _found(await tx.all(_ABANDONED, tx.now, limit))
    taken = {seq: lifecycle.taken_over(job, hold, tx.now) for seq, job in list(found.items())[:limit]}
    return await _written(tx, taken, ())


async def prune(tx: Transaction, keep: Keep, limit: int) -> Pruned:
    before = tx.now - keep.max_age if keep.max_age is not None else -1.0
    over = await tx.all(_OVER, tx.now, limit + 1, before)
    doomed = [(row[0], row[1]) for row in over[:limit]]
    await _forget(tx, doomed)
    is_done = len(over) <= limit
    if is_done and keep.max_bytes is not None:
        oldest, is_done = await _beyond_size(tx, keep.max_bytes, limit - len(doomed))
        await _forget(tx, oldest)
        doomed += oldest
    return Pruned(len(doomed), sum(size for _, size in doomed), is_done)


async def _written(tx: Transaction, jobs: Found, lines: Lines) -> list[Job]:
    """The jobs in their new shape, whole."""
    if not jobs:
        return []
    bodies = {row[0]: row[1:5] for row in await tx.all(_BODIES, list(jobs))}
    await change_jobs(tx, [(seq, job, lines) for seq, job in jobs.items()])
    return [whole(job, bodies[seq]) for seq, job in jobs.items()]


async def _chosen(tx: Transaction, wish: ClaimWish) -> Found:
    if wish.default_limit or any(wish.limits.values()):
        await lock(tx, CLAIMING)
    running: dict[str, int] = {}
    room = Room(wish, lambda agent_id: running.get(agent_id, 0))
    chosen: Found = {}
    for window in (wish.limit, wish.limit + _WINDOW):
        head = _found(await _head(tx, window, wish.held_back))
        running |= await _running(tx, wish, {job.agent_id for job in head.values()} - running.keys())
        _choose(room, head, chosen, wish.limit)
        if len(chosen) >= wish.limit or len(head) < window:
            return chosen
    heads = await _heads_by_agent(tx, wish, room, running)
    _choose(room, heads, chosen, wish.limit)
    return chosen


async def _head(tx: Transaction, limit: int, held_back: Sequence[str]) -> Sequence[Row]:
    if held_back:
        return await tx.all(_HEAD_OF_OTHERS, tx.now, limit, list(held_back))
    return await tx.all(_HEAD, tx.now, limit)


def _choose(room: Room, found: Found, chosen: Found, limit: int) -> None:
    fresh = ((job.agent_id, seq) for seq, job in found.items() if seq not in chosen)
    for seq in room.choose(fresh, limit - len(chosen)):
        chosen[seq] = found[seq]


async def _running(tx: Transaction, wish: ClaimWish, agents: Iterable[str]) -> dict[str, int]:
    """How many jobs of each agent run, where there is a limit to it."""
    limited = [agent_id for agent_id in agents if wish.limits.get(agent_id, wish.default_limit)]
    counted: dict[str, int] = dict.fromkeys(limited, 0)
    if limited:
        counted |= {row[0]: row[1] for row in await tx.all(_RUNNING, limited)}
    return counted


async def _heads_by_agent(tx: Transaction, wish: ClaimWish, room: Room, running: dict[str, int]) -> Found:
    agents = [row[0] for row in await tx.all(_WAITING_AGENTS)]
    running |= await _running(tx, wish, set(agents) - running.keys())
    wanted = []
    for agent_id in agents:
        free = room.of(agent_id)
        if free != 0:  # some of them may be chosen already
            wanted.append((agent_id, wish.limit * 2 if free is None else min(wish.limit * 2, free + wish.limit)))
    names, places = [name for name, _ in wanted], [count for _, count in wanted]
    rows = (
        await tx.all(_HEADS_BY_AGENT, tx.now, names, places, list(PRIORITIES), list(wish.held_back)) if wanted else []
    )
    found = _found(rows)
    return dict(sorted(found.items(), key=lambda each: (-each[1].priority, each[1].run_at, each[0])))


def _found(rows: Sequence[Row]) -> Found:
    return {row[0]: summary_from(row) for row in rows}


async def _beyond_size(tx: Transaction, max_bytes: int, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The oldest of those that together are too large, and whether these are all."""
    total: Any = await tx.one(_TOTAL)
    excess = total[0] - max_bytes
    if excess <= 0:
        return [], True
    doomed = []
    for seq, size in await tx.all(_OLDEST, limit):
        if excess <= 0:
            break
        excess -= size
        doomed.append((seq, size))
    return doomed, excess <= 0


async def _forget(tx: Transaction, doomed: Sequence[tuple[int, int]]) -> None:
    if doomed:
        await tx.change(_FORGET, [seq for seq, _ in doomed])
