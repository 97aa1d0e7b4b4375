"""Receipts of calls: what the pipeline hands over for each call, and the store port of signed receipts.

`identity.receipts` says what is in a receipt, how it is signed, and how a chain of them is verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from a2a_fabric.core.call import Call
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
