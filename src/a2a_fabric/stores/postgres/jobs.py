"""The job store over PostgreSQL: writes in groups, one query per read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from a2a_fabric.core.errors import FabricError, JobNotFound
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import (
    JOB_STATES,
    AcceptResult,
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
)
from a2a_fabric.core.stores import PAGE_BYTES
from a2a_fabric.stores.postgres import job_queue, job_writes
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.group_commit import GroupCommit
from a2a_fabric.stores.postgres.job_writes import (
    SELECT_JOBS,
    AnswerJob,
    AppendEvents,
    CancelJob,
    JobChange,
    JobToAccept,
    RenewLease,
    SettleJob,
)
from a2a_fabric.stores.rows import (
    JOB_COLUMNS,
    MAX_SEQ,
    encode,
    encode_events,
    event_page,
    job_from_optional_row,
    job_page_from_rows,
    read_cursor,
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
        return await self._connections.write(lambda tx: job_queue.claim(tx, request, encoded_events))

    async def take_over(self, hold: HoldRequest, limit: int = 100) -> Sequence[Job]:
        return await self._connections.write(lambda tx: job_queue.take_over(tx, hold, limit))

    async def heartbeat(self, tokens: Sequence[FencingToken], lease: float) -> Sequence[HeartbeatReply]:
        replies: list[HeartbeatReply] = await asyncio.gather(
            *(self._change_queue.add(RenewLease(each, lease)) for each in tokens)
        )
        return replies

    async def append(self, token: FencingToken, events: Sequence[Event]) -> int:
        last: int = await self._apply_change(AppendEvents(token, encode_events(events)))
        return last

    async def release(self, token: FencingToken, outcome: JobOutcome) -> JobSummary:
        job: JobSummary = await self._apply_change(SettleJob(token, outcome))
        return job

    async def answer(
        self, job_id: str, answer: dict[str, Any], events: Sequence[Event] = (), *, part_of: int | None = None
    ) -> JobSummary:
        job: JobSummary = await self._apply_change(AnswerJob(job_id, encode(answer), encode_events(events), part_of))
        return job

    async def cancel(self, job_id: str, outcome: JobOutcome) -> JobSummary:
        job: JobSummary = await self._apply_change(CancelJob(job_id, outcome))
        return job

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000, max_bytes: int = PAGE_BYTES) -> EventPage:
        after = min(max(0, after), MAX_SEQ)
        rows = await self._connections.read(_EVENTS, job_id, after, limit, max_bytes)
        if not rows:
            raise JobNotFound(job_id)
        return event_page((row[2:] for row in rows if row[2] is not None), rows[0][0], rows[0][1], after)

    async def prune(self, retention: RetentionPolicy, limit: int = 1000) -> PruneResult:
        return await self._connections.write(lambda tx: job_queue.prune(tx, retention, limit))

    async def aclose(self) -> None:
        await asyncio.gather(self._accept_queue.aclose(), self._change_queue.aclose())

    async def _apply_change(self, change: JobChange) -> Any:
        return await self._change_queue.add(change, change.size)

    async def _write_accepts(self, requests: Sequence[JobToAccept]) -> Sequence[AcceptResult | FabricError]:
        return await self._connections.write(lambda tx: job_writes.accept_jobs(tx, requests))

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
