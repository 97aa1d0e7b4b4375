"""Receipts of calls: what the pipeline hands over for each call, and the store port of signed receipts.

`identity.receipts` says what is in a receipt, how it is signed, and how a chain of them is verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.result import Result


class ReceiptRecorder(Protocol):
    """Asked by the pipeline before and after each call."""

    def begin(self, call: Call) -> str:
        """The digest of the call's input, before an agent can change it. Raises StoreUnavailable if receipts cannot be
        written any more, so that no call goes unrecorded.
        """
        ...

    def end(self, call: Call, input_digest: str, outcome: str, result: Result | None, seconds: float) -> None:
        """`outcome` is `ok`, or the code of the error."""
        ...


class StoredReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a chain; `body` is the signed receipt, and `digest` its hash."""

    chain: str
    seq: int
    at: float  # when the call ended
    digest: str
    body: bytes


class ReceiptStore(Protocol):
    """The store port for receipts. The rules of `core.stores` hold."""

    async def read_head(self, chain: str) -> StoredReceipt | None:
        """The newest receipt of a chain."""
        ...

    async def append(self, receipts: Sequence[StoredReceipt]) -> bool:
        """Add receipts of one chain, all or none. False if they are not the next ones: another process was faster."""
        ...

    async def read(
        self, *, chain: str | None = None, after: tuple[str, int] = ("", 0), limit: int = 500
    ) -> Sequence[StoredReceipt]:
        """Of one chain, or of all; in the order of chain and number, after this one."""
        ...

    async def prune(self, before: float, most: int, limit: int = 1000) -> int:
        """Remove receipts older than `before`, and of each chain the oldest beyond `most`; at most `limit`, how many.

        The newest receipt of a chain stays, because the next one refers to it.
        """
        ...


class _Link(msgspec.Struct, frozen=True):
    prev: str | None = None


def is_next_link(receipt: StoredReceipt, same_number: str | None, head: StoredReceipt | None) -> bool:
    """Whether an import adds this receipt to the chain whose newest link is `head`; False if it was there before.

    `same_number` is the digest of the stored receipt with the same number. Raises Conflict if the store has another
    chain of this name: a mixture of two could not be verified.
    """
    if same_number is None and head is None:
        return True
    if same_number is None and head is not None and receipt.seq <= head.seq:
        return False  # it was pruned
    is_link = head is not None and receipt.seq == head.seq + 1 and _read_previous(receipt) == head.digest
    if same_number != receipt.digest and not is_link:
        raise Conflict(
            f"The store has other receipts in the chain '{receipt.chain[:64]}' than the export, so these were not "
            "imported; all records before them were. Keep them in a file: a2a-fabric receipts export"
        )
    return is_link


def _read_previous(receipt: StoredReceipt) -> str | None:
    try:
        return msgspec.json.decode(receipt.body, type=_Link).prev
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
