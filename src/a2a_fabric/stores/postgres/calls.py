"""The call history, over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2a_fabric.core.spans import CallFilter, StoredCall
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, to_columns, unnest_parameters
from a2a_fabric.stores.rows import CALL_COLUMNS, STORED_CALL_COLUMNS, call_from_row, to_call_values

_TYPES = (
    *("text", "text", "float8", "text", "text", "text", "text", "text", "text"),
    *("bool", "bool", "int8", "bytea"),
)
_APPEND = f"""
INSERT INTO a2a_fabric.calls ({CALL_COLUMNS}) SELECT * FROM unnest({unnest_parameters(_TYPES)})
ON CONFLICT (trace_id, span_id, started_at) DO NOTHING RETURNING 1
"""  # noqa: S608
_WHERE = f"""
SELECT {STORED_CALL_COLUMNS} FROM a2a_fabric.calls WHERE is_call
AND ($1::int8 IS NULL OR seq < $1) AND ($2::text IS NULL OR owner = $2)
AND ($3::text IS NULL OR agent_id = $3 OR used = $3) AND ($4::text IS NULL OR capability = $4)
AND ($5::text IS NULL OR principal = $5) AND ($6::text IS NULL OR door = $6)
AND ($7::bool IS NULL OR is_failed = $7) AND ($8::float8 IS NULL OR started_at >= $8)
AND ($9::float8 IS NULL OR started_at < $9) AND ($10::text IS NULL OR trace_id = $10)
"""  # noqa: S608
_LIST = f"{_WHERE} ORDER BY seq DESC LIMIT $11"
_LIST_AFTER = f"{_WHERE} AND seq > $12 ORDER BY seq LIMIT $11"
_NEWEST = "SELECT coalesce(max(seq), 0) FROM a2a_fabric.calls"
# Numbers are given in the order of commits: one node writes at a time.
_TAKE_TURN = "SELECT pg_advisory_xact_lock(20261118, 17)"
_TRACE = f"""
SELECT {STORED_CALL_COLUMNS} FROM a2a_fabric.calls WHERE trace_id = $1 AND ($2::text IS NULL OR owner = $2)
ORDER BY started_at, seq LIMIT $3
"""  # noqa: S608
# The newest row that is one too many; it and all older ones go.
_BEYOND = """
SELECT greatest(
    coalesce((SELECT seq FROM a2a_fabric.calls ORDER BY seq DESC LIMIT 1 OFFSET $1), 0),
    coalesce((SELECT max(seq) FROM (SELECT seq, sum(size) OVER (ORDER BY seq DESC) AS total FROM a2a_fabric.calls)
              AS sizes WHERE total > $2), 0)
)
"""
_PRUNE = """
DELETE FROM a2a_fabric.calls WHERE seq IN (
    SELECT seq FROM a2a_fabric.calls WHERE seq <= $1 OR started_at < $2 ORDER BY seq LIMIT $3
) RETURNING 1
"""


class PostgresCalls:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def append(self, calls: Sequence[StoredCall]) -> None:
        async def work(tx: PostgresTransaction) -> None:
            await insert_calls(tx, calls)

        if calls:
            await self._connections.write(work)

    async def list(
        self, query: CallFilter, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> Sequence[StoredCall]:
        rows = await self._connections.read(
            _LIST if after is None else _LIST_AFTER,
            before,
            query.owner,
            query.agent_id,
            query.capability,
            query.principal,
            query.door,
            query.is_failed,
            query.since,
            query.until,
            query.trace_id,
            limit,
            *(() if after is None else (after,)),
        )
        return [call_from_row(row) for row in rows]

    async def find_newest(self) -> int:
        row: Any = await self._connections.read_one(_NEWEST)
        return int(row[0])

    async def read_trace(self, trace_id: str, *, owner: str | None = None, limit: int = 200) -> Sequence[StoredCall]:
        return [call_from_row(row) for row in await self._connections.read(_TRACE, trace_id, owner, limit)]

    async def prune(self, before: float, max_calls: int, max_bytes: int, limit: int = 1000) -> int:
        async def work(tx: PostgresTransaction) -> int:
            beyond: Any = await tx.fetch_one(_BEYOND, max_calls, max_bytes)
            return len(await tx.write(_PRUNE, beyond[0], before, limit))

        return await self._connections.write(work)


async def insert_calls(tx: PostgresTransaction, calls: Sequence[StoredCall]) -> int:
    """How many were new."""
    await tx.fetch_one(_TAKE_TURN)
    return len(await tx.write(_APPEND, *to_columns([to_call_values(each) for each in calls], len(_TYPES))))
