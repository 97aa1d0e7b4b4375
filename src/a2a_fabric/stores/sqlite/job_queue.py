"""Who gets which job: claiming, taking over, and pruning, as pieces of work for the writer.

Claiming looks at the head of the queue first. Only when that is full of agents
without room does it go through the agents one by one, so that a crowd waiting
for one busy agent costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from a2a_fabric.core import lifecycle
from a2a_fabric.core.claiming import Room
from a2a_fabric.core.job import PRIORITIES, ClaimWish, Hold, Job, Keep, Pruned
from a2a_fabric.stores.job_rows import Lines, job_from, size_of
from a2a_fabric.stores.sqlite.job_rows import SELECT_WHOLE
from a2a_fabric.stores.sqlite.job_writes import write_job
from a2a_fabric.stores.sqlite.writer import Transaction

_WINDOW = 128

_IS_DUE = "run_at <= :now AND (expires_at IS NULL OR expires_at > :now) AND cancel_requested = 0"
_IS_OPEN = "owner NOT IN (SELECT value FROM json_each(:held_back))"
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
_WHOLE = f"{SELECT_WHOLE} WHERE jobs.seq = ?"
_OVER = """
SELECT seq, size FROM jobs WHERE keep_until IS NOT NULL AND keep_until <= :now
UNION ALL SELECT seq, size FROM jobs WHERE ended_at IS NOT NULL AND ended_at <= :before AND retention IS NULL
LIMIT :limit
"""
_TOTAL = "SELECT coalesce(sum(size), 0) FROM jobs WHERE ended_at IS NOT NULL"
_OLDEST = "SELECT seq, size FROM jobs WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT ?"
_FORGET = (
    "DELETE FROM job_events WHERE job = ?",
    "DELETE FROM job_bodies WHERE job = ?",
    "DELETE FROM job_calls WHERE job = ?",
    "DELETE FROM jobs WHERE seq = ?",
)


def claim(tx: Transaction, wish: ClaimWish, lines: Lines) -> list[Job]:
    size = size_of(lines)
    return [
        write_job(tx, seq, lifecycle.claimed(_whole(tx, seq), wish.hold, len(lines), size, tx.now), lines)
        for seq in _chosen(tx, wish)
    ]


def take_over(tx: Transaction, hold: Hold, limit: int) -> list[Job]:
    found = tx.execute(ABANDONED, {"now": tx.now, "limit": limit}).fetchall()
    return [write_job(tx, seq, lifecycle.taken_over(_whole(tx, seq), hold, tx.now)) for (seq,) in found]


def prune(tx: Transaction, keep: Keep, limit: int) -> Pruned:
    before = tx.now - keep.max_age if keep.max_age is not None else -1.0
    over = tx.execute(_OVER, {"now": tx.now, "before": before, "limit": limit + 1}).fetchall()
    doomed = over[:limit]
    _forget(tx, (seq for seq, _ in doomed))
    is_done = len(over) <= limit
    if is_done and keep.max_bytes is not None:
        oldest, is_done = _beyond_size(tx, keep.max_bytes, limit - len(doomed))
        _forget(tx, (seq for seq, _ in oldest))
        doomed += oldest
    return Pruned(len(doomed), sum(size for _, size in doomed), is_done)


def _chosen(tx: Transaction, wish: ClaimWish) -> list[int]:
    room = Room(wish, lambda agent_id: int(tx.execute(_RUNNING, (agent_id,)).fetchone()[0]))
    held_back = msgspec.json.encode(wish.held_back).decode()
    chosen: dict[int, None] = {}
    for window in (wish.limit, wish.limit + _WINDOW):
        head = list(_head(tx, window, held_back))
        fresh = ((agent_id, seq) for agent_id, seq in head if seq not in chosen)
        chosen |= dict.fromkeys(room.choose(fresh, wish.limit - len(chosen)))
        if len(chosen) >= wish.limit or len(head) < window:
            return list(chosen)
    fresh = ((agent_id, seq) for agent_id, seq in _heads_by_agent(tx, room, wish.limit, held_back) if seq not in chosen)
    return [*chosen, *room.choose(fresh, wish.limit - len(chosen))]


def _head(tx: Transaction, limit: int, held_back: str) -> Iterator[tuple[str, int]]:
    """Agent and seq of the next jobs, over all agents."""
    left = limit
    query = _HEAD if held_back == "[]" else _HEAD_OF_OTHERS
    for priority in PRIORITIES:
        values = {"priority": priority, "now": tx.now, "limit": left, "held_back": held_back}
        rows = tx.execute(query, values).fetchall()
        yield from ((agent_id, seq) for seq, agent_id in rows)
        left -= len(rows)
        if left <= 0:
            return


def _heads_by_agent(tx: Transaction, room: Room, limit: int, held_back: str) -> list[tuple[str, int]]:
    found: list[tuple[int, float, int, str]] = []
    for (agent_id,) in tx.execute(_WAITING_AGENTS).fetchall():
        free = room.of(agent_id)
        if free == 0:
            continue
        wanted = limit * 2 if free is None else min(limit * 2, free + limit)  # some of them may be chosen already
        for priority in PRIORITIES:
            values = {
                "agent": agent_id, "priority": priority, "now": tx.now, "limit": wanted, "held_back": held_back,
            }  # fmt: skip
            found += [(-priority, run_at, seq, agent_id) for run_at, seq in tx.execute(_HEAD_OF_AGENT, values)]
    return [(agent_id, seq) for _, _, seq, agent_id in sorted(found)]


def _whole(tx: Transaction, seq: int) -> Job:
    return job_from(tx.execute(_WHOLE, (seq,)).fetchone())


def _beyond_size(tx: Transaction, max_bytes: int, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The oldest of those that together are too large, and whether these are all."""
    excess = tx.execute(_TOTAL).fetchone()[0] - max_bytes
    if excess <= 0:
        return [], True
    doomed = []
    for seq, size in tx.execute(_OLDEST, (limit,)).fetchall():
        if excess <= 0:
            break
        excess -= size
        doomed.append((seq, size))
    return doomed, excess <= 0


def _forget(tx: Transaction, doomed: Iterable[int]) -> None:
    seqs = [(seq,) for seq in doomed]
    for statement in _FORGET:
        tx.executemany(statement, seqs)
