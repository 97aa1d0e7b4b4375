"""Receipts of calls, over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2a_fabric.core.receipts import StoredReceipt, is_next_link
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, to_columns, unnest_parameters
from a2a_fabric.stores.rows import RECEIPT_COLUMNS, receipt_from_row, to_receipt_values

_HEAD = f"SELECT {RECEIPT_COLUMNS} FROM a2a_fabric.receipts WHERE chain = $1 ORDER BY seq DESC LIMIT 1"  # noqa: S608
_LAST = "SELECT max(seq) FROM a2a_fabric.receipts WHERE chain = $1"
_DIGEST = "SELECT digest FROM a2a_fabric.receipts WHERE chain = $1 AND seq = $2"
_TYPES = ("text", "int8", "float8", "text", "bytea")
# A number that another node took in between is a conflict, and then nothing is written.
_APPEND = f"""
INSERT INTO a2a_fabric.receipts ({RECEIPT_COLUMNS}) SELECT * FROM unnest({unnest_parameters(_TYPES)})
ON CONFLICT (chain, seq) DO NOTHING RETURNING 1
"""  # noqa: S608
_READ = f"""
SELECT {RECEIPT_COLUMNS} FROM a2a_fabric.receipts WHERE (chain, seq) > ($1, $2) AND ($3::text IS NULL OR chain = $3)
ORDER BY chain, seq LIMIT $4
"""  # noqa: S608
_PRUNE = """
DELETE FROM a2a_fabric.receipts WHERE (chain, seq) IN (
    SELECT chain, seq
    FROM a2a_fabric.receipts JOIN (SELECT chain, max(seq) AS last FROM a2a_fabric.receipts GROUP BY chain) AS heads
        USING (chain)
    WHERE seq < last AND (at < $1 OR seq <= last - $2::int8) LIMIT $3
) RETURNING 1
"""


class PostgresReceipts:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def read_head(self, chain: str) -> StoredReceipt | None:
        row = await self._connections.read_one(_HEAD, chain)
        return None if row is None else receipt_from_row(row)

    async def append(self, receipts: Sequence[StoredReceipt]) -> bool:
        async def work(tx: PostgresTransaction) -> bool:
            last: Any = await tx.fetch_one(_LAST, receipts[0].chain)
            if receipts[0].seq != (last[0] or 0) + 1:
                return False
            columns = to_columns([to_receipt_values(each) for each in receipts], len(_TYPES))
            # The rows of a group are all new or all taken: each group of a chain begins at its own number.
            rows = await tx.fetch_all(_APPEND, *columns)
            tx.has_written = len(rows) == len(receipts)
            return tx.has_written

        return await self._connections.write(work) if receipts else True

    async def read(
        self, *, chain: str | None = None, after: tuple[str, int] = ("", 0), limit: int = 500
    ) -> Sequence[StoredReceipt]:
        return [receipt_from_row(row) for row in await self._connections.read(_READ, *after, chain, limit)]

    async def prune(self, before: float, most: int, limit: int = 1000) -> int:
        async def work(tx: PostgresTransaction) -> int:
            return len(await tx.write(_PRUNE, before, most, limit))

        return await self._connections.write(work)


async def restore_receipts(tx: PostgresTransaction, receipts: Sequence[StoredReceipt]) -> int:
    """How many were new. Raises Conflict."""
    count = 0
    for receipt in receipts:
        same_number: Any = await tx.fetch_one(_DIGEST, receipt.chain, receipt.seq)
        head = await tx.fetch_one(_HEAD, receipt.chain)
        is_new = is_next_link(
            receipt,
            None if same_number is None else same_number[0],
            None if head is None else receipt_from_row(head),
        )
        if is_new:
            count += len(await tx.write(_APPEND, *to_columns([to_receipt_values(receipt)], len(_TYPES))))
    return count
