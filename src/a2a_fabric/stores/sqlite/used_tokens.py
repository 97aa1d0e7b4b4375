"""Tokens that count once, over SQLite."""

from __future__ import annotations

from a2a_fabric.stores.sqlite.database import SqliteTransaction, Writer

_PRUNE = "DELETE FROM used_tokens WHERE expires_at <= ?"
_ADD = "INSERT INTO used_tokens (digest, expires_at) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING"


class SqliteUsedTokens:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def add(self, digest: bytes, seconds: float) -> bool:
        def work(tx: SqliteTransaction) -> bool:
            tx.execute(_PRUNE, (tx.now,))
            return tx.execute(_ADD, (digest, tx.now + seconds)).rowcount == 1

        return await self._writer.run(work)
