"""The call history: takes recordings of ended calls and writes them to the store, apart from the calls.

Invariants:

- A call never waits for its record. `add` appends to a bounded buffer, or counts the record as lost.
- The records of a second are at most `calls_per_second`, so that a busy node spends its time on calls. When the buffer
  is nearly full, only records of failed calls are taken.
- While the store is away, records wait in memory, up to a number and a size; then the oldest are lost, and counted.
- The bounds of the store hold at any rate: a process that has written a tenth of one removes what is too much.
- Those who follow the calls read the store, which numbers them: so they see the calls of all processes and nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec

from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import STORE_AWAY, FabricError, StoreUnavailable
from a2a_fabric.core.recording import CallRecording
from a2a_fabric.core.redaction import redact_json
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import CallFilter, CallRecord, CallStore, StoredCall, decode_record, encode_record
from a2a_fabric.core.stores import call_store, call_store_within
from a2a_fabric.core.tasks import Signal, cancel_and_wait, prune_forever
from a2a_fabric.telemetry.metrics import render_value
from a2a_fabric.telemetry.settings import HistorySettings
from a2a_fabric.telemetry.spans import build_record

_WRITE_EVERY = 0.2
_BURST_SECONDS = 4.0  # of calls at the highest rate that may wait in the buffer
_ROOM_FOR_FAILURES = 0.2  # of the buffer
_MAX_UNWRITTEN = 5000
_MAX_UNWRITTEN_BYTES = 32 * 1024 * 1024
_WRITE_TIMEOUT = 10.0
_RETRY_SECONDS = 5.0
_PRUNE_INTERVAL = 30.0
_PRUNE_SHARE = 0.1  # of `keep_calls` or `keep_bytes`; after so much was written, the interval is not waited for
_PRUNE_BATCH = 1000
_CALLS_PER_TURN = 16  # that are encoded between two turns of the event loop

_log = logging.getLogger(__name__)


class HistoryPruner:
    """Keeps the stored calls within the bounds of the settings, also of a history that was switched off."""

    def __init__(self, store: CallStore, settings: HistorySettings, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._is_due = Signal()
        self._calls_written = 0  # since the last look
        self._bytes_written = 0
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(
            prune_forever(self.prune, _PRUNE_INTERVAL, _log, "the call history", self._is_due)
        )

    async def aclose(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    def note_written(self, records: Sequence[StoredCall]) -> None:
        self._calls_written += len(records)
        self._bytes_written += sum(len(record.body) for record in records)
        share = max(
            self._calls_written / self._settings.keep_calls,
            self._bytes_written / self._settings.keep_bytes,
        )
        if share >= _PRUNE_SHARE:
            self._is_due.wake()

    async def prune(self) -> bool:
        """Remove some of what is too old or too much; whether that was all."""
        self._calls_written = self._bytes_written = 0
        settings = self._settings
        removed = await self._store.prune(
            self._clock() - settings.keep_seconds, settings.keep_calls, settings.keep_bytes, _PRUNE_BATCH
        )
        return removed < _PRUNE_BATCH


class CallHistory:
    def __init__(
        self,
        store: CallStore,
        settings: HistorySettings,
        node: str,
        pruner: HistoryPruner,
    ) -> None:
        self.lost = 0  # records that were left out or could not be written
        self.written = 0
        self.is_stopping = False
        self.keeps_payloads = settings.payloads
        self._store = store
        self._settings = settings
        self._node = node
        self._pruner = pruner
        self._buffer: deque[CallRecording | tuple[str, CallRecord]] = deque()
        self._size = int(settings.calls_per_second * _BURST_SECONDS)
        self._size_for_successes = int(self._size * (1 - _ROOM_FOR_FAILURES))
        self._unwritten: list[StoredCall] = []
        self._has_written = asyncio.Event()  # replaced with each batch
        self._turn = asyncio.Lock()
        self._turns: float = self._size
        self._turns_at = time.monotonic()
        self._retry_at = 0.0
        self._task: asyncio.Future[None] | None = None

    @property
    def is_nearly_full(self) -> bool:
        """Whether only records of failed calls are taken."""
        return len(self._buffer) >= self._size_for_successes

    @property
    def is_full(self) -> bool:
        return len(self._buffer) >= self._size

    def add(self, recording: CallRecording) -> None:
        """Take the recording of a call that has ended."""
        if self.is_nearly_full if recording.status == "completed" else self.is_full:
            self.lost += 1
        else:
            self._buffer.append(recording)

    def add_record(self, trace_id: str, record: CallRecord) -> None:
        """Take a record that is no call: the span of a job."""
        if self.is_full:
            self.lost += 1
        else:
            self._buffer.append((trace_id, record))

    def note_input(self, recording: CallRecording, call: Call) -> None:
        """Before an agent can change it."""
        value = {"task": call.input.task, "context": call.input.context}
        recording.input = _encode_payload(value, self._settings.payload_bytes)

    def note_output(self, recording: CallRecording, result: Result) -> None:
        recording.output = _encode_payload(result.data, self._settings.payload_bytes)

    def render_metrics(self) -> Iterator[str]:
        yield render_value("fabric_history_records_total", "counter", "Records written to the history", self.written)
        yield render_value("fabric_history_lost_total", "counter", "Records left out of the history", self.lost)

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._write_forever())

    async def aclose(self) -> None:
        """Write what waits, as far as the store takes it."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        await self._encode_some(len(self._buffer))
        await self._write()

    async def flush(self) -> None:
        """Write what waits now. Never raises a FabricError: while the store is away, records wait.

        Readers call it, so it keeps to `calls_per_second` as well: on a busy node the newest calls come a little later.
        """
        await self._encode_some(self._take_turns())
        await self._write()

    def stop(self) -> None:
        """Answer those who wait for calls."""
        self.is_stopping = True
        self._has_written.set()

    async def find_newest(self) -> int:
        return await call_store(self._store.find_newest)

    async def list_calls(
        self, query: CallFilter, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> Sequence[tuple[int, CallRecord]]:
        rows = await call_store(lambda: self._store.list(query, before=before, after=after, limit=limit))
        return [(row.seq, decode_record(row)) for row in rows]

    async def read_trace(self, trace_id: str, owner: str | None) -> Sequence[CallRecord]:
        rows = await call_store(lambda: self._store.read_trace(trace_id, owner=owner))
        return [decode_record(row) for row in rows]

    async def wait_for_more(self, timeout: float) -> None:
        if self.is_stopping:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._has_written.wait()

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY)
            try:
                if self._buffer:
                    await self._encode_some(self._take_turns())
                if self._unwritten and time.monotonic() >= self._retry_at:
                    await self._write()
            except Exception:
                _log.exception("writing the call history failed; it goes on")

    def _take_turns(self) -> int:
        """How many recordings may be encoded now, so that there are `calls_per_second` over a few seconds."""
        now = time.monotonic()
        self._turns = min(self._size, self._turns + (now - self._turns_at) * self._settings.calls_per_second)
        self._turns_at = now
        count = min(len(self._buffer), int(self._turns))
        self._turns -= count
        return count

    async def _encode_some(self, most: int) -> None:
        """Make records of the oldest recordings, a few at a time, so that calls go on in between."""
        for number in range(min(most, len(self._buffer))):
            if not self._buffer:
                break
            taken = self._buffer.popleft()
            if isinstance(taken, tuple):
                trace_id, record = taken
            else:
                record = build_record(taken, self._node)
                trace_id = taken.trace.trace_id
            try:
                self._unwritten.append(encode_record(record, trace_id))
            except (TypeError, ValueError, RecursionError):  # text that is not Unicode
                self.lost += 1
            if number % _CALLS_PER_TURN == _CALLS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _write(self) -> None:
        async with self._turn:
            self._drop_oldest()
            batch = self._unwritten
            if not batch:
                return
            self._unwritten = []
            try:
                await call_store_within(_WRITE_TIMEOUT, self._store.append, batch)
            except StoreUnavailable as error:
                self._unwritten = batch + self._unwritten
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                _log.warning("the call history waits for the store: %s", error.message, extra=STORE_AWAY)
            except FabricError as error:
                self.lost += len(batch)
                _log.warning("%d records of the call history could not be stored: %s", len(batch), error.message)
            except asyncio.CancelledError:
                self._unwritten = batch + self._unwritten
                raise
            else:
                self.written += len(batch)
                self._has_written.set()
                self._has_written = asyncio.Event()
                self._pruner.note_written(batch)

    def _drop_oldest(self) -> None:
        """Of the records that wait, so that they are neither too many nor too large."""
        size = 0
        for number, record in enumerate(reversed(self._unwritten)):
            size += len(record.body)
            if number and (number >= _MAX_UNWRITTEN or size > _MAX_UNWRITTEN_BYTES):
                excess = len(self._unwritten) - number
                self.lost += excess
                del self._unwritten[:excess]
                return


def _encode_payload(value: object, limit: int) -> str:
    """JSON without credentials, cut at `limit` bytes."""
    try:
        text = msgspec.json.encode(redact_json(msgspec.to_builtins(value)))
    except (TypeError, ValueError, RecursionError, OverflowError) as exc:
        return f'"not kept: {type(exc).__name__}"'
    return text.decode() if len(text) <= limit else text[:limit].decode("utf-8", "ignore") + "…"
