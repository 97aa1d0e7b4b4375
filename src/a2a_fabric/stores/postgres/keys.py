"""Keys of callers, and tokens that count once, over PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a2a_fabric.core.keys import KEEP_ENDED_SECONDS, KEYS_TOPIC, NewKey, StoredKey, replace_keys, revoke_keys
from a2a_fabric.stores.postgres import transactions
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.transactions import GroupCommit, PostgresTransaction, to_columns
from a2a_fabric.stores.rows import KEY_COLUMNS, key_from_row, to_key_values

_LIST = f"SELECT {KEY_COLUMNS} FROM a2a_fabric.keys ORDER BY name, created_at"  # noqa: S608
_OF_NAME = f"SELECT {KEY_COLUMNS} FROM a2a_fabric.keys WHERE name = $1 ORDER BY created_at"  # noqa: S608
_MATCHES = f"SELECT {KEY_COLUMNS} FROM a2a_fabric.keys WHERE name = $1 OR key_id = $1 ORDER BY created_at"  # noqa: S608
_USABLE = "SELECT count(*) FROM a2a_fabric.keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)"
_REVISION = "SELECT coalesce(max(revision), 0) + 1 FROM a2a_fabric.keys"
_PUT = f"""
INSERT INTO a2a_fabric.keys ({KEY_COLUMNS}, revision) VALUES ({", ".join(f"${n}" for n in range(1, 13))})
ON CONFLICT (key_id) DO UPDATE SET expires_at = excluded.expires_at, revoked_at = excluded.revoked_at,
    replaced = excluded.replaced, revision = excluded.revision
"""  # noqa: S608
_RESTORE = f"""
INSERT INTO a2a_fabric.keys ({KEY_COLUMNS}, revision) VALUES ({", ".join(f"${n}" for n in range(1, 13))})
ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608
_TOUCH = """
UPDATE a2a_fabric.keys SET last_used_at = used.moment FROM unnest($1::text[], $2::float8[]) AS used (id, moment)
WHERE key_id = used.id AND coalesce(last_used_at, 0) < used.moment
"""
_PRUNE = "DELETE FROM a2a_fabric.keys WHERE coalesce(revoked_at, expires_at) < $1"
_PRUNE_TOKENS = """
DELETE FROM a2a_fabric.used_tokens WHERE digest IN (
    SELECT digest FROM a2a_fabric.used_tokens WHERE expires_at <= $1 LIMIT 1000 FOR UPDATE SKIP LOCKED
)
"""
# In the order of their hashes, so that two nodes that add the same tokens do not wait for each other in a circle.
_ADD_TOKENS = """
INSERT INTO a2a_fabric.used_tokens (digest, expires_at)
SELECT DISTINCT ON (digest) digest, expires_at FROM unnest($1::bytea[], $2::float8[]) AS added (digest, expires_at)
ORDER BY digest
ON CONFLICT (digest) DO NOTHING RETURNING digest
"""


class PostgresKeys:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def list(self) -> Sequence[StoredKey]:
        return [key_from_row(row) for row in await self._connections.read(_LIST)]

    async def add(self, new: NewKey, *, overlap: float | None = None) -> StoredKey:
        async def work(tx: PostgresTransaction) -> StoredKey:
            revision = await _take_revision(tx)
            same_name = [key_from_row(row) for row in await tx.fetch_all(_OF_NAME, new.name)]
            usable: Any = await tx.fetch_one(_USABLE, tx.now)
            rows = replace_keys(new, same_name, usable[0], tx.now, overlap)
            await _put(tx, rows, revision)
            await tx.write(_PRUNE, tx.now - KEEP_ENDED_SECONDS)
            return rows[0]

        return await self._connections.write(work)

    async def revoke(self, name: str) -> Sequence[StoredKey]:
        async def work(tx: PostgresTransaction) -> Sequence[StoredKey]:
            revision = await _take_revision(tx)
            revoked = revoke_keys([key_from_row(row) for row in await tx.fetch_all(_MATCHES, name)], tx.now)
            await _put(tx, revoked, revision)
            return revoked

        return await self._connections.write(work)

    async def touch(self, used: Mapping[str, float]) -> None:
        async def work(tx: PostgresTransaction) -> None:
            await tx.write(_TOUCH, [*used], [*used.values()])

        await self._connections.write(work)


async def _put(tx: PostgresTransaction, keys: Sequence[StoredKey], revision: int) -> None:
    for key in keys:
        await tx.write(_PUT, *to_key_values(key), revision)
    if keys:
        tx.topics.add(KEYS_TOPIC)


async def _take_revision(tx: PostgresTransaction) -> int:
    """The next revision. From here to the commit, no other node changes a key."""
    await transactions.acquire_lock(tx, transactions.KEYS_LOCK)
    row: Any = await tx.fetch_one(_REVISION)
    return int(row[0])


async def restore_keys(tx: PostgresTransaction, keys: Sequence[StoredKey]) -> int:
    """How many were new; keys that are there already stay, perhaps revoked since."""
    revision = await _take_revision(tx)
    count = sum([len(await tx.write(_RESTORE, *to_key_values(key), revision)) for key in keys])
    if count:
        tx.topics.add(KEYS_TOPIC)
    return count


class PostgresUsedTokens:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._group = GroupCommit[tuple[bytes, float], bool](connections.safe_address, self._write)

    async def add(self, digest: bytes, seconds: float) -> bool:
        return await self._group.add((digest, seconds))

    async def aclose(self) -> None:
        await self._group.aclose()

    async def _write(self, items: Sequence[tuple[bytes, float]]) -> Sequence[bool]:
        async def work(tx: PostgresTransaction) -> Sequence[bool]:
            await tx.write(_PRUNE_TOKENS, tx.now)
            columns = to_columns([(digest, tx.now + seconds) for digest, seconds in items], 2)
            new = {bytes(row[0]) for row in await tx.write(_ADD_TOKENS, *columns)}
            outcomes: list[bool] = []
            for digest, _ in items:  # of the same token twice in one group, the first counts
                outcomes.append(digest in new)
                new.discard(digest)
            return outcomes

        return await self._connections.write(work)
