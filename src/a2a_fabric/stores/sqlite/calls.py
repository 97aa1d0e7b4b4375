"""The call history, over SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from a2a_fabric.core.spans import CallFilter, StoredCall
from a2a_fabric.stores.rows import CALL_COLUMNS, STORED_CALL_COLUMNS, call_from_row, to_call_values
from a2a_fabric.stores.sqlite.database import SqliteReader, SqliteTransaction, Writer
from a2a_fabric.stores.sqlite.statements import RowStatement

_APPEND = RowStatement(f"INSERT OR IGNORE INTO calls ({CALL_COLUMNS}) VALUES ({', '.join(['{}'] * 13)})")  # noqa: S608
_CONDITIONS = {
    "owner": "owner = ?",
    "agent_id": "? IN (agent_id, used)",
    "capability": "capability = ?",
    "principal": "principal = ?",
    "door": "door = ?",
    "is_failed": "is_failed = ?",
    "since": "started_at >= ?",
    "until": "started_at < ?",
    "trace_id": "trace_id = ?",
}
_NEWEST = "SELECT coalesce(max(seq), 0) FROM calls"
_TRACE = f"""
SELECT {STORED_CALL_COLUMNS} FROM calls WHERE trace_id = ?1 AND (?2 IS NULL OR owner = ?2)
ORDER BY started_at, seq LIMIT ?3
"""  # noqa: S608
# The newest row that is one too many; it and all older ones go.
_BEYOND_COUNT = "SELECT seq FROM calls ORDER BY seq DESC LIMIT 1 OFFSET ?"
_BEYOND_SIZE = """
SELECT max(seq) FROM (SELECT seq, sum(size) OVER (ORDER BY seq DESC) AS total FROM calls) WHERE total > ?
"""
_SIZE = "SELECT coalesce(sum(size), 0) FROM calls"
_PRUNE = """
DELETE FROM calls WHERE seq IN (SELECT seq FROM calls WHERE seq <= ?1 OR started_at < ?2 ORDER BY seq LIMIT ?3)
"""


class SqliteCalls:
    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, calls: Sequence[StoredCall]) -> None:
        def work(tx: SqliteTransaction) -> None:
            bound = map(_APPEND.bind, map(to_call_values, calls))
            for sql, group in groupby(bound, key=itemgetter(0)):  # in their order: `seq` counts them
                tx.executemany(sql, map(itemgetter(1), group))

        if calls:
            await self._writer.run(work)

    async def list(
        self, query: CallFilter, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> Sequence[StoredCall]:
        filters = [(text, getattr(query, name)) for name, text in _CONDITIONS.items()]
        filters = [("seq < ?", before), ("seq > ?", after), *filters]
        conditions = [text for text, value in filters if value is not None]
        values = [value for _, value in filters if value is not None]
        where = " AND ".join(["is_call = 1", *conditions])
        order = "DESC" if after is None else "ASC"
        sql = f"SELECT {STORED_CALL_COLUMNS} FROM calls WHERE {where} ORDER BY seq {order} LIMIT ?"  # noqa: S608
        return [call_from_row(row) for row in self._reader.fetch_all(sql, (*values, limit))]

    async def find_newest(self) -> int:
        row = self._reader.fetch_one(_NEWEST)
        return 0 if row is None else row[0]

    async def read_trace(self, trace_id: str, *, owner: str | None = None, limit: int = 200) -> Sequence[StoredCall]:
        return [call_from_row(row) for row in self._reader.fetch_all(_TRACE, (trace_id, owner, limit))]

    async def prune(self, before: float, max_calls: int, max_bytes: int, limit: int = 1000) -> int:
        def work(tx: SqliteTransaction) -> int:
            beyond = tx.execute(_BEYOND_COUNT, (max_calls,)).fetchone()
            last = beyond[0] if beyond is not None else 0
            if tx.execute(_SIZE).fetchone()[0] > max_bytes:
                last = max(last, tx.execute(_BEYOND_SIZE, (max_bytes,)).fetchone()[0] or 0)
            return tx.execute(_PRUNE, (last, before, limit)).rowcount

        return await self._writer.run(work)


def insert_call(tx: SqliteTransaction, call: StoredCall) -> bool:
    """False if it is there already."""
    return tx.execute(*_APPEND.bind(to_call_values(call))).rowcount > 0
