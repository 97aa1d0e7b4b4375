"""Logins of principals at agents, over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2a_fabric.core.logins import LoginAttempt, LoginRecord, StoredListing
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.transactions import PostgresTransaction
from a2a_fabric.stores.rows import LOGIN_COLUMNS, login_from_row, to_login_values

_GET = f"SELECT {LOGIN_COLUMNS} FROM a2a_fabric.logins WHERE owner = $1 AND agent_id = $2"  # noqa: S608
_LIST = f"SELECT {LOGIN_COLUMNS} FROM a2a_fabric.logins WHERE owner = $1 ORDER BY agent_id"  # noqa: S608
_PUT = f"""
INSERT INTO a2a_fabric.logins ({LOGIN_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $6, $7, NULL)
ON CONFLICT (owner, agent_id) DO UPDATE SET issuer = excluded.issuer, scopes = excluded.scopes,
    secret = excluded.secret, created_at = excluded.created_at, updated_at = excluded.updated_at,
    revision = excluded.revision, listing = NULL
RETURNING 1
"""  # noqa: S608
_RENEW = """
UPDATE a2a_fabric.logins SET secret = $1, scopes = $2, updated_at = $3, revision = revision + 1
WHERE owner = $4 AND agent_id = $5 AND revision = $6 RETURNING 1
"""
_REMOVE = "DELETE FROM a2a_fabric.logins WHERE owner = $1 AND agent_id = $2 RETURNING 1"
_SET_LISTING = "UPDATE a2a_fabric.logins SET listing = $1 WHERE owner = $2 AND agent_id = $3 RETURNING 1"
_LISTINGS = """
SELECT owner, agent_id, listing FROM a2a_fabric.logins WHERE listing IS NOT NULL ORDER BY updated_at DESC LIMIT $1
"""
_EXPIRE_ATTEMPTS = "DELETE FROM a2a_fabric.login_attempts WHERE expires_at <= $1"
_TRIM_ATTEMPTS = """
DELETE FROM a2a_fabric.login_attempts WHERE owner = $1 AND attempt_id NOT IN (
    SELECT attempt_id FROM a2a_fabric.login_attempts WHERE owner = $1 ORDER BY expires_at DESC LIMIT $2
)
"""
_ADD_ATTEMPT = "INSERT INTO a2a_fabric.login_attempts VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
_TAKE_ATTEMPT = """
DELETE FROM a2a_fabric.login_attempts WHERE attempt_id = $1
RETURNING attempt_id, owner, agent_id, secret, expires_at
"""


class PostgresLogins:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def get(self, owner: str, agent_id: str) -> LoginRecord | None:
        row = await self._connections.read_one(_GET, owner, agent_id)
        return None if row is None else login_from_row(row)

    async def list(self, owner: str) -> Sequence[LoginRecord]:
        return [login_from_row(row) for row in await self._connections.read(_LIST, owner)]

    async def put(self, record: LoginRecord, expected: int | None = None) -> bool:
        async def work(tx: PostgresTransaction) -> bool:
            owner, agent_id, issuer, scopes, secret = to_login_values(record)
            row: Any
            if expected is None:
                row = await tx.fetch_one(_PUT, owner, agent_id, issuer, scopes, secret, tx.now, record.revision)
            else:
                row = await tx.fetch_one(_RENEW, secret, scopes, tx.now, owner, agent_id, expected)
            tx.has_written = True
            return row is not None

        return await self._connections.write(work)

    async def remove(self, owner: str, agent_id: str) -> bool:
        async def work(tx: PostgresTransaction) -> bool:
            tx.has_written = True
            return await tx.fetch_one(_REMOVE, owner, agent_id) is not None

        return await self._connections.write(work)

    async def set_listing(self, owner: str, agent_id: str, listing: bytes) -> bool:
        async def work(tx: PostgresTransaction) -> bool:
            tx.has_written = True
            return await tx.fetch_one(_SET_LISTING, listing, owner, agent_id) is not None

        return await self._connections.write(work)

    async def read_listings(self, limit: int) -> Sequence[StoredListing]:
        return [StoredListing(*row) for row in await self._connections.read(_LISTINGS, limit)]

    async def add_attempt(self, attempt: LoginAttempt, most: int) -> None:
        async def work(tx: PostgresTransaction) -> None:
            await tx.write(_EXPIRE_ATTEMPTS, tx.now)
            await tx.write(_TRIM_ATTEMPTS, attempt.owner, most - 1)
            values = (attempt.attempt_id, attempt.owner, attempt.agent_id, attempt.secret, attempt.expires_at)
            await tx.write(_ADD_ATTEMPT, *values)

        await self._connections.write(work)

    async def take_attempt(self, attempt_id: str) -> LoginAttempt | None:
        async def work(tx: PostgresTransaction) -> LoginAttempt | None:
            row: Any = await tx.fetch_one(_TAKE_ATTEMPT, attempt_id)
            tx.has_written = True
            if row is None or row[4] <= tx.now:
                return None
            return LoginAttempt(attempt_id=row[0], owner=row[1], agent_id=row[2], secret=row[3], expires_at=row[4])

        return await self._connections.write(work)
