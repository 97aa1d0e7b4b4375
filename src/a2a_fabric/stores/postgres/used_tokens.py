"""Tokens that count once, over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.transactions import GroupCommit, PostgresTransaction, to_columns

_PRUNE = """
DELETE FROM a2a_fabric.used_tokens WHERE digest IN (
    SELECT digest FROM a2a_fabric.used_tokens WHERE expires_at <= $1 LIMIT 1000 FOR UPDATE SKIP LOCKED
)
"""
# In the order of their hashes, so that two nodes that add the same tokens do not wait for each other in a circle.
_ADD = """
INSERT INTO a2a_fabric.used_tokens (digest, expires_at)
SELECT DISTINCT ON (digest) digest, expires_at FROM unnest($1::bytea[], $2::float8[]) AS added (digest, expires_at)
ORDER BY digest
ON CONFLICT (digest) DO NOTHING RETURNING digest
"""


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
            await tx.write(_PRUNE, tx.now)
            columns = to_columns([(digest, tx.now + seconds) for digest, seconds in items], 2)
            new = {bytes(row[0]) for row in await tx.write(_ADD, *columns)}
            outcomes: list[bool] = []
            for digest, _ in items:  # of the same token twice in one group, the first counts
                outcomes.append(digest in new)
                new.discard(digest)
            return outcomes

        return await self._connections.write(work)
