"""Receipts of calls, over SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.core.receipts import StoredReceipt, is_next_link
from a2a_fabric.stores.rows import RECEIPT_COLUMNS, receipt_from_row, to_receipt_values
from a2a_fabric.stores.sqlite.database import SqliteReader, SqliteTransaction, Writer

_HEAD = f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE chain = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608
_LAST = "SELECT max(seq) FROM receipts WHERE chain = ?"
_DIGEST = "SELECT digest FROM receipts WHERE chain = ? AND seq = ?"
_APPEND = f"INSERT INTO receipts ({RECEIPT_COLUMNS}) VALUES (?, ?, ?, ?, ?)"  # noqa: S608
_READ = f"""
SELECT {RECEIPT_COLUMNS} FROM receipts WHERE (chain, seq) > (?1, ?2) AND (?3 IS NULL OR chain = ?3)
ORDER BY chain, seq LIMIT ?4
"""  # noqa: S608
_PRUNE = """
DELETE FROM receipts WHERE (chain, seq) IN (
    SELECT chain, seq FROM receipts JOIN (SELECT chain, max(seq) AS last FROM receipts GROUP BY chain) USING (chain)
    WHERE seq < last AND (at < ?1 OR seq <= last - ?2) ORDER BY chain, seq LIMIT ?3
)
"""


class SqliteReceipts:
    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    async def read_head(self, chain: str) -> StoredReceipt | None:
        row = self._reader.fetch_one(_HEAD, (chain,))
        return None if row is None else receipt_from_row(row)

    async def append(self, receipts: Sequence[StoredReceipt]) -> bool:
        def work(tx: SqliteTransaction) -> bool:
            last = tx.execute(_LAST, (receipts[0].chain,)).fetchone()[0] or 0
            if receipts[0].seq != last + 1:
                return False
            for receipt in receipts:
                tx.execute(_APPEND, to_receipt_values(receipt))
            return True

        return await self._writer.run(work) if receipts else True

    async def read(
        self, *, chain: str | None = None, after: tuple[str, int] = ("", 0), limit: int = 500
    ) -> Sequence[StoredReceipt]:
        return [receipt_from_row(row) for row in self._reader.fetch_all(_READ, (*after, chain, limit))]

    async def prune(self, before: float, most: int, limit: int = 1000) -> int:
        return await self._writer.run(lambda tx: tx.execute(_PRUNE, (before, most, limit)).rowcount)


def restore_receipt(tx: SqliteTransaction, receipt: StoredReceipt) -> bool:
    """False if it is there already. Raises Conflict."""
    same_number = tx.execute(_DIGEST, (receipt.chain, receipt.seq)).fetchone()
    head = tx.execute(_HEAD, (receipt.chain,)).fetchone()
    is_new = is_next_link(
        receipt,
        None if same_number is None else same_number[0],
        None if head is None else receipt_from_row(head),
    )
    if is_new:
        tx.execute(_APPEND, to_receipt_values(receipt))
    return is_new
