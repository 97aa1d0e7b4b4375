"""What a piece of work sees of the database: statements, the server's clock, and the topics to ring afterwards."""

from __future__ import annotations

from typing import Any

from a2a_fabric.stores.postgres import marks
from a2a_fabric.stores.postgres.marks import Mark

Row = Any  # asyncpg's: a tuple that also knows its column names


class Transaction:
    __slots__ = ("_connection", "has_written", "mark", "now", "topics")

    def __init__(self, connection: Any, mark: Mark, now: float) -> None:
        self._connection = connection
        self.mark = mark
        self.now = now
        self.has_written = False
        self.topics: set[str] = set()

    @classmethod
    async def begin(cls, connection: Any, command: str, mark: Mark) -> Transaction:
        await connection.execute(command)
        return cls(connection, mark, await connection.fetchval(marks.SET, mark.place, mark.number))

    async def end(self) -> None:
        """What wrote nothing need not wait for the disk."""
        await self._connection.execute("COMMIT" if self.has_written else "ROLLBACK")

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
