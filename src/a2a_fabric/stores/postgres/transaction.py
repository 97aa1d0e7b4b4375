"""What a piece of work sees of the database: statements, the server's clock, and the topics to ring afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from a2a_fabric.core.trace import new_id

CHANNEL = "a2a_fabric"
EVERYTHING = "*"
_PAYLOAD = 7500  # bytes; the server takes up to 8000

# The first word of each notice: whose it is. We ring our own bells without it.
OURS = new_id()

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_FINISH = "SELECT pg_current_xact_id_if_assigned()::text, count(pg_notify($1, said)) FROM unnest($2::text[]) AS said"

Row = Any  # asyncpg's: a tuple that also knows its column names


class Transaction:
    __slots__ = ("_connection", "_has_written", "now", "topics")

    def __init__(self, connection: Any, now: float) -> None:
        self._connection = connection
        self._has_written = False
        self.now = now
        self.topics: set[str] = set()

    @classmethod
    async def begin(cls, connection: Any) -> Transaction:
        await connection.execute("BEGIN")
        return cls(connection, await connection.fetchval(_NOW))

    async def all(self, sql: str, *values: Any) -> list[Row]:
        return list(await self._connection.fetch(sql, *values))

    async def one(self, sql: str, *values: Any) -> Row | None:
        return await self._connection.fetchrow(sql, *values)

    async def change(self, sql: str, *values: Any) -> list[Row]:
        """A statement that writes; the rows that it returns."""
        self._has_written = True
        return list(await self._connection.fetch(sql, *values))

    async def finish(self) -> str | None:
        """Send the notices, to be delivered with the commit; the transaction's number, None if it wrote nothing."""
        if not self._has_written:
            return None
        row = await self._connection.fetchrow(_FINISH, CHANNEL, list(notices(self.topics)))
        return str(row[0]) if row and row[0] is not None else None


def notices(topics: Iterable[str]) -> Iterator[str]:
    """Topics as few payloads of bounded size."""
    said, size = [OURS], 0
    for topic in topics:
        length = len(msgspec.json.encode(topic)) + 1
        if length > _PAYLOAD:
            topic, length = EVERYTHING, 4
        if size + length > _PAYLOAD:
            yield msgspec.json.encode(said).decode()
            said, size = [OURS], 0
        said.append(topic)
        size += length
    if len(said) > 1:
        yield msgspec.json.encode(said).decode()
