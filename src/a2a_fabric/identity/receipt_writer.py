"""Writes the receipts of calls: signs them in groups, apart from the calls, and keeps their number and age bounded.

A call does not wait for its receipt. If the node dies, the receipts of its last moment may be missing; the chain goes
on after the last one that was written. While the store is away, receipts wait in memory; when there are too many, new
calls are refused, so that none goes unrecorded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import STORE_AWAY, FabricError, StoreUnavailable
from a2a_fabric.core.receipts import ReceiptStore, StoredReceipt
from a2a_fabric.core.result import Result
from a2a_fabric.core.tasks import prune_forever
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.identity.receipts import Receipt, digest_input, make_receipt, sign_receipts
from a2a_fabric.identity.settings import ReceiptSettings

_BATCH = 64
_MAX_WAITING = 10_000
_RETRY_SECONDS = 1.0
_PRUNE_INTERVAL = 60.0
_PRUNE_BATCH = 1000

_log = logging.getLogger(__name__)


class ReceiptWriter:
    """`chain` is the name of the node's chain. Several processes of one name write to it in turn."""

    def __init__(
        self,
        store: ReceiptStore,
        keys: NodeKeys,
        chain: str,
        settings: ReceiptSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._keys = keys
        self._chain = chain
        self._settings = settings
        self._clock = clock
        self._waiting: list[Receipt] = []
        self._wake = asyncio.Event()
        self._head: StoredReceipt | None = None
        self._must_read_head = True
        self._attempt: list[StoredReceipt] = []  # signed, and perhaps written

    def begin(self, call: Call) -> str:
        if len(self._waiting) >= _MAX_WAITING:
            raise StoreUnavailable("Receipts cannot be written now, so no call is taken. Try again later")
        return digest_input(call)

    def end(self, call: Call, input_digest: str, outcome: str, result: Result | None, seconds: float) -> None:
        receipt = make_receipt(
            call,
            node=self._chain,
            input_digest=input_digest,
            outcome=outcome,
            result=result,
            at=self._clock(),
            seconds=seconds,
        )
        self._waiting.append(receipt)
        self._wake.set()

    async def run(self) -> None:
        await asyncio.gather(self._write_forever(), prune_forever(self._prune, _PRUNE_INTERVAL, _log, "old receipts"))

    async def flush(self) -> None:
        """Write what waits, when no more calls come. Never raises."""
        try:
            while self._waiting:
                await self._write_batch()
        except FabricError as error:
            _log.error("%d receipts were lost when the node stopped: %s", len(self._waiting), error.message)

    async def _write_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self._write_batch()
                except FabricError as error:
                    _log.warning(
                        "%d receipts could not be written yet: %s",
                        len(self._waiting),
                        error.message,
                        extra=STORE_AWAY,
                    )
                    await asyncio.sleep(_RETRY_SECONDS)
                except Exception:
                    _log.exception("writing receipts failed; it is tried again")
                    await asyncio.sleep(_RETRY_SECONDS)

    async def _write_batch(self) -> None:
        """Raises FabricError; then the receipts wait for the next time.

        A write that was cancelled, or whose connection broke, may have happened. So the same signed receipts are
        looked for before anything is signed anew: a call has one receipt.
        """
        if not self._attempt:
            head = await self._store.read_head(self._chain) if self._must_read_head else self._head
            self._attempt = await asyncio.to_thread(
                sign_receipts, self._waiting[:_BATCH], self._chain, head, self._keys.get()
            )
        attempt = self._attempt
        self._must_read_head = True
        if await self._store.append(attempt) or await self._is_written(attempt[-1]):
            del self._waiting[: len(attempt)]
            self._head, self._must_read_head = attempt[-1], False
        self._attempt = []  # if another process of this node wrote in between, they get other numbers

    async def _is_written(self, receipt: StoredReceipt) -> bool:
        found = await self._store.read(chain=self._chain, after=(self._chain, receipt.seq - 1), limit=1)
        return bool(found) and found[0].digest == receipt.digest

    async def _prune(self) -> bool:
        before = self._clock() - self._settings.keep_seconds
        return await self._store.prune(before, self._settings.keep_receipts, _PRUNE_BATCH) < _PRUNE_BATCH
