"""The jobs port over PostgreSQL: writes in groups, reads by one query each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    Accepted,
    ClaimWish,
    EventPage,
    Held,
    Hold,
    Job,
    JobFilter,
    JobPage,
    JobSummary,
    Keep,
    NewJob,
    Outcome,
    Pruned,
    Pulse,
)
from a2a_fabric.core.states import JOB_STATES
from a2a_fabric.core.store_errors import JobNotFound
from a2a_fabric.core.stores import PAGE_BYTES
from a2a_fabric.stores.cursors import NEWEST, read_cursor
from a2a_fabric.stores.job_rows import COLUMNS, encode, event_from, job_from, lines_of, summary_from
from a2a_fabric.stores.postgres import job_accepts, job_changes, job_queue
from a2a_fabric.stores.postgres.connections import Connections
from a2a_fabric.stores.postgres.groups import Group
from a2a_fabric.stores.postgres.job_changes import Answer, Append, Beat, Cancel, Change, Settle
from a2a_fabric.stores.postgres.job_rows import SELECT
from a2a_fabric.stores.postgres.job_writes import Acceptance

# Plans are kept, and some are made while the tables are empty or nobody has counted them. So queries are written in
# such a way that only the right index fits: subqueries that cannot be merged; and for stretches of a list an order
# that one index alone has. `= ANY` keeps the first column in that order, where after `=` it would count for nothing
# and the index of states would do too; one state is bounded from both sides, because a comparison of whole rows does
# not end a scan. Nothing is joined to a stretch: joins are what a planner without numbers gets wrong the most.
WHOLE = f"""
SELECT {COLUMNS}, calls.call, bodies.result, bodies.question, bodies.answer FROM a2a_fabric.jobs AS jobs
CROSS JOIN LATERAL (SELECT call FROM a2a_fabric.job_calls WHERE job = jobs.seq OFFSET 0) AS calls
LEFT JOIN LATERAL (
    SELECT result, question, answer FROM a2a_fabric.job_bodies WHERE job = jobs.seq OFFSET 0
) AS bodies ON true
"""  # noqa: S608
_WHOLE_BY_ID = f"{WHOLE} WHERE jobs.job_id = $1"
_WHOLE_BY_KEY = f"{WHOLE} WHERE jobs.owner = $1 AND jobs.key = $2"
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
_WAITING = """
SELECT count(*) FROM (
    SELECT 1 FROM a2a_fabric.jobs
    WHERE owner = ANY(ARRAY[$1]) AND state >= 'queued' AND (state, seq) < ('queued', 9223372036854775807)
    ORDER BY owner DESC, state DESC, seq DESC LIMIT $2
) AS found
"""
_NEWEST = f"{SELECT} WHERE jobs.seq < $1 ORDER BY jobs.seq DESC LIMIT $2"


class PostgresJobs:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._accepts: Group[Acceptance, Accepted] = Group(connections.place, self._accept)
        self._changes: Group[Change, Any] = Group(connections.place, self._change)

    async def accept(self, new: NewJob) -> Accepted:
        acceptance = Acceptance(new)
        return await self._accepts.add(acceptance, acceptance.size)

    async def get(self, job_id: str) -> Job | None:
        row = await self._connections.read_one(_WHOLE_BY_ID, job_id)
        return None if row is None else job_from(row)

    async def find(self, owner: str, key: str) -> Job | None:
        row = await self._connections.read_one(_WHOLE_BY_KEY, owner, key)
        return None if row is None else job_from(row)

    async def list(self, wish: JobFilter, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        sql, values = _listing(wish)
        rows = await self._connections.read(sql, read_cursor(cursor), limit + 1, *values)
        jobs = tuple(summary_from(row) for row in rows[:limit])
        return JobPage(jobs, str(rows[limit - 1][0]) if len(rows) > limit else None)

    async def waiting(self, owner: str, most: int) -> int:
        (count,) = await self._connections.read_one(_WAITING, owner, most) or (0,)
        return int(count)

    async def claim(self, wish: ClaimWish) -> Sequence[Job]:
        lines = lines_of(wish.events)
        return await self._connections.write(lambda tx: job_queue.claim(tx, wish, lines))

    async def take_over(self, hold: Hold, limit: int = 100) -> Sequence[Job]:
        return await self._connections.write(lambda tx: job_queue.take_over(tx, hold, limit))

    async def heartbeat(self, held: Sequence[Held], lease: float) -> Sequence[Pulse]:
        pulses: list[Pulse] = await asyncio.gather(*(self._changes.add(Beat(each, lease)) for each in held))
        return pulses

    async def append(self, held: Held, events: Sequence[Event]) -> int:
        last: int = await self._changed(Append(held, lines_of(events)))
        return last

    async def settle(self, held: Held, outcome: Outcome) -> JobSummary:
        job: JobSummary = await self._changed(Settle(held, outcome))
        return job

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        job: JobSummary = await self._changed(Answer(job_id, encode(answer), lines_of(events), part_of))
        return job

    async def cancel(self, job_id: str, outcome: Outcome) -> JobSummary:
        job: JobSummary = await self._changed(Cancel(job_id, outcome))
        return job

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = min(max(0, after), NEWEST)
        rows = await self._connections.read(_EVENTS, job_id, after, limit, max_bytes)
        if not rows:
            raise JobNotFound(job_id)
        lines = tuple(event_from(row[2:]) for row in rows if row[2] is not None)
        upto = lines[-1].number if lines else after
        return EventPage(events=lines, state=rows[0][0], last=rows[0][1], upto=upto)

    async def prune(self, keep: Keep, limit: int = 1000) -> Pruned:
        return await self._connections.write(lambda tx: job_queue.prune(tx, keep, limit))

    async def aclose(self) -> None:
        await asyncio.gather(self._accepts.aclose(), self._changes.aclose())

    async def _changed(self, change: Change) -> Any:
        return await self._changes.add(change, change.size)

    async def _accept(self, asked: Sequence[Acceptance]) -> Sequence[Accepted | FabricError]:
        return await self._connections.write(lambda tx: job_accepts.accept(tx, asked))

    async def _change(self, changes: Sequence[Change]) -> Sequence[Any]:
        return await self._connections.write(lambda tx: job_changes.change(tx, changes))


def _listing(wish: JobFilter) -> tuple[str, list[Any]]:
    """One ordered stretch per state, each by its index, merged; the values follow `before` and `limit`."""
    column, exactly, values = _narrowed(wish)
    states = wish.states if wish.states is not None else JOB_STATES if column else None
    if states is None:
        return _NEWEST, []
    first = f"{column} = ANY(ARRAY[$4]) AND " if column else ""
    order = ", ".join(f"{each} DESC" for each in (column, "jobs.state", "jobs.seq") if each)
    sql = f"""
    SELECT stretch.* FROM unnest($3::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM a2a_fabric.jobs AS jobs
        WHERE {first}jobs.state >= wanted.state AND (jobs.state, jobs.seq) < (wanted.state, $1){exactly}
        ORDER BY {order} LIMIT $2
    ) AS stretch ORDER BY stretch.seq DESC LIMIT $2
    """  # noqa: S608
    return sql, [list(dict.fromkeys(states)), *values]


def _narrowed(wish: JobFilter) -> tuple[str, str, list[Any]]:
    """The first column of the index, what it leaves open, and the values from $4 on."""
    owner, agent_id = wish.owner, wish.agent_id
    if owner is not None and agent_id is not None:
        exactly = " AND jobs.owner || '' = $5"  # by no index of its own; names may hold line ends too
        return "(jobs.owner || E'\\n' || jobs.agent_id)", exactly, [f"{owner}\n{agent_id}", owner]
    if owner is not None:
        return "jobs.owner", "", [owner]
    return ("", "", []) if agent_id is None else ("jobs.agent_id", "", [agent_id])
