"""Keys of callers, and tokens that count once, over SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from a2a_fabric.core.keys import KEEP_ENDED_SECONDS, KEYS_TOPIC, NewKey, StoredKey, replace_keys, revoke_keys
from a2a_fabric.stores.rows import KEY_COLUMNS, key_from_row, to_key_values
from a2a_fabric.stores.sqlite.database import SqliteReader, SqliteTransaction, Writer

_LIST = f"SELECT {KEY_COLUMNS} FROM keys ORDER BY name, created_at"  # noqa: S608
_OF_NAME = f"SELECT {KEY_COLUMNS} FROM keys WHERE name = ? ORDER BY created_at"  # noqa: S608
_MATCHES = f"SELECT {KEY_COLUMNS} FROM keys WHERE name = ?1 OR key_id = ?1 ORDER BY created_at"  # noqa: S608
_USABLE = "SELECT count(*) FROM keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)"
_REVISION = "SELECT coalesce(max(revision), 0) + 1 FROM keys"
_PUT = f"""
INSERT INTO keys ({KEY_COLUMNS}, revision) VALUES ({", ".join("?" * 12)})
ON CONFLICT (key_id) DO UPDATE SET expires_at = excluded.expires_at, revoked_at = excluded.revoked_at,
    replaced = excluded.replaced, revision = excluded.revision
"""  # noqa: S608
_RESTORE = f"INSERT OR IGNORE INTO keys ({KEY_COLUMNS}, revision) VALUES ({', '.join('?' * 12)})"  # noqa: S608
_TOUCH = "UPDATE keys SET last_used_at = ?1 WHERE key_id = ?2 AND coalesce(last_used_at, 0) < ?1"
_PRUNE = "DELETE FROM keys WHERE coalesce(revoked_at, expires_at) < ?"
_PRUNE_TOKENS = "DELETE FROM used_tokens WHERE expires_at <= ?"
_ADD_TOKENS = "INSERT INTO used_tokens (digest, expires_at) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING"


class SqliteKeys:
    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    async def list(self) -> Sequence[StoredKey]:
        return [key_from_row(row) for row in self._reader.fetch_all(_LIST)]

    async def add(self, new: NewKey, *, overlap: float | None = None) -> StoredKey:
        def work(tx: SqliteTransaction) -> StoredKey:
            same_name = [key_from_row(row) for row in tx.execute(_OF_NAME, (new.name,)).fetchall()]
            usable_count = tx.execute(_USABLE, (tx.now,)).fetchone()[0]
            rows = replace_keys(new, same_name, usable_count, tx.now, overlap)
            _put(tx, rows)
            tx.execute(_PRUNE, (tx.now - KEEP_ENDED_SECONDS,))
            return rows[0]

        return await self._writer.run(work)

    async def revoke(self, name: str) -> Sequence[StoredKey]:
        def work(tx: SqliteTransaction) -> Sequence[StoredKey]:
            matches = [key_from_row(row) for row in tx.execute(_MATCHES, (name,)).fetchall()]
            revoked = revoke_keys(matches, tx.now)
            _put(tx, revoked)
            return revoked

        return await self._writer.run(work)

    async def touch(self, used: Mapping[str, float]) -> None:
        values = [(moment, key_id) for key_id, moment in used.items()]
        await self._writer.run(lambda tx: tx.executemany(_TOUCH, values))


def _put(tx: SqliteTransaction, keys: Sequence[StoredKey]) -> None:
    revision = tx.execute(_REVISION).fetchone()[0]
    for key in keys:
        tx.execute(_PUT, (*to_key_values(key), revision))
    if keys:
        tx.topics.add(KEYS_TOPIC)


def restore_key(tx: SqliteTransaction, key: StoredKey) -> bool:
    """False if the key is there already, perhaps revoked since."""
    revision = tx.execute(_REVISION).fetchone()[0]
    is_new = tx.execute(_RESTORE, (*to_key_values(key), revision)).rowcount > 0
    if is_new:
        tx.topics.add(KEYS_TOPIC)
    return is_new


class SqliteUsedTokens:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def add(self, digest: bytes, seconds: float) -> bool:
        def work(tx: SqliteTransaction) -> bool:
            tx.execute(_PRUNE_TOKENS, (tx.now,))
            return tx.execute(_ADD_TOKENS, (digest, tx.now + seconds)).rowcount == 1

        return await self._writer.run(work)
