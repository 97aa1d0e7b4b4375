"""Logins of principals at agents, over SQLite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from a2a_fabric.core.logins import LoginAttempt, LoginRecord, StoredListing
from a2a_fabric.stores.rows import LOGIN_COLUMNS, login_from_row, to_login_values
from a2a_fabric.stores.sqlite.database import SqliteReader, SqliteTransaction, Writer

_GET = f"SELECT {LOGIN_COLUMNS} FROM logins WHERE owner = ? AND agent_id = ?"  # noqa: S608
_LIST = f"SELECT {LOGIN_COLUMNS} FROM logins WHERE owner = ? ORDER BY agent_id"  # noqa: S608
_PUT = f"INSERT OR REPLACE INTO logins ({LOGIN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)"  # noqa: S608
_RENEW = """
UPDATE logins SET secret = ?, scopes = ?, updated_at = ?, revision = revision + 1
WHERE owner = ? AND agent_id = ? AND revision = ?
"""
_LISTINGS = """
SELECT owner, agent_id, listing FROM logins WHERE listing IS NOT NULL ORDER BY updated_at DESC LIMIT ?
"""
_TRIM_ATTEMPTS = """
DELETE FROM login_attempts WHERE owner = ?1 AND attempt_id NOT IN (
    SELECT attempt_id FROM login_attempts WHERE owner = ?1 ORDER BY expires_at DESC, attempt_id LIMIT ?2
)
"""
_ATTEMPT = "SELECT attempt_id, owner, agent_id, secret, expires_at FROM login_attempts WHERE attempt_id = ?"


class SqliteLogins:
    def __init__(self, writer: Writer, reader: SqliteReader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def get(self, owner: str, agent_id: str) -> LoginRecord | None:
        row = self._reader.fetch_one(_GET, (owner, agent_id))
        return None if row is None else login_from_row(row)

    async def list(self, owner: str) -> Sequence[LoginRecord]:
        return [login_from_row(row) for row in self._reader.fetch_all(_LIST, (owner,))]

    async def put(self, record: LoginRecord, expected: int | None = None) -> bool:
        def work(tx: SqliteTransaction) -> bool:
            owner, agent_id, issuer, scopes, secret = to_login_values(record)
            if expected is None:
                tx.execute(_PUT, (owner, agent_id, issuer, scopes, secret, tx.now, tx.now, record.revision))
                return True
            return tx.execute(_RENEW, (secret, scopes, tx.now, owner, agent_id, expected)).rowcount > 0

        return await self._writer.run(work)

    async def remove(self, owner: str, agent_id: str) -> bool:
        sql = "DELETE FROM logins WHERE owner = ? AND agent_id = ?"
        return await self._writer.run(lambda tx: tx.execute(sql, (owner, agent_id)).rowcount > 0)

    async def set_listing(self, owner: str, agent_id: str, listing: bytes) -> bool:
        sql = "UPDATE logins SET listing = ? WHERE owner = ? AND agent_id = ?"
        return await self._writer.run(lambda tx: tx.execute(sql, (listing, owner, agent_id)).rowcount > 0)

    async def read_listings(self, limit: int) -> Sequence[StoredListing]:
        return [StoredListing(*row) for row in self._reader.fetch_all(_LISTINGS, (limit,))]

    async def add_attempt(self, attempt: LoginAttempt, most: int) -> None:
        def work(tx: SqliteTransaction) -> None:
            tx.execute("DELETE FROM login_attempts WHERE expires_at <= ?", (tx.now,))
            tx.execute(_TRIM_ATTEMPTS, (attempt.owner, most - 1))
            values = (attempt.attempt_id, attempt.owner, attempt.agent_id, attempt.secret, attempt.expires_at)
            tx.execute("INSERT OR REPLACE INTO login_attempts VALUES (?, ?, ?, ?, ?)", values)

        await self._writer.run(work)

    async def take_attempt(self, attempt_id: str) -> LoginAttempt | None:
        def work(tx: SqliteTransaction) -> LoginAttempt | None:
            row = tx.execute(_ATTEMPT, (attempt_id,)).fetchone()
            tx.execute("DELETE FROM login_attempts WHERE attempt_id = ?", (attempt_id,))
            if row is None or row[4] <= tx.now:
                return None
            return LoginAttempt(attempt_id=row[0], owner=row[1], agent_id=row[2], secret=row[3], expires_at=row[4])

        return await self._writer.run(work)
