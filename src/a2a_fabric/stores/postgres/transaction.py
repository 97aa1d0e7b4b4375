"""What a piece of work sees of the database: statements, the server's clock, and the topics to ring afterwards."""

from __future__ import annotations

from typing import Any

# The number makes it possible to ask later what became of the transaction.
_BEGUN = "SELECT extract(epoch FROM clock_timestamp())::float8, pg_current_xact_id()::text"

Row = Any  # asyncpg's: a tuple that also knows its column names


class Transaction:
    __slots__ = ("_connection", "has_written", "now", "topics", "xid")

    def __init__(self, connection: Any, now: float, xid: str) -> None:
        self._connection = connection
        self.now = now
        self.xid = xid
        self.has_written = False
        self.topics: set[str] = set()

    @classmethod
    async def begin(cls, connection: Any) -> Transaction:
        await connection.execute("BEGIN")
        return cls(connection, *await connection.fetchrow(_BEGUN))

    async def run(self, sql: str) -> None:
        """A command without values."""
        await self._connection.execute(sql)

    async def all(self, sql: str, *values: Any) -> list[Row]:
        return list(await self._connection.fetch(sql, *values))

    async def one(self, sql: str, *values: Any) -> Row | None:
        return await self._connection.fetchrow(sql, *values)

    async def change(self, sql: str, *values: Any) -> list[Row]:
        """A statement that writes; the rows that it returns."""
        self.has_written = True
        return list(await self._connection.fetch(sql, *values))
