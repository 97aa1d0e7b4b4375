"""The call history: takes recordings of ended calls and writes them to the store, apart from the calls.

Invariants:

- A call never waits for its record. `add` appends to a bounded buffer, or counts the record as lost.
- The records of a second are at most `calls_per_second`, so that a busy node spends its time on calls. When the buffer
  is nearly full, only records of failed calls are taken.
- While the store is away, records wait in memory, up to a bound; then the oldest are lost, and counted.
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
from a2a_fabric.core.tasks import cancel_and_wait, prune_forever
from a2a_fabric.telemetry.metrics import render_value
from a2a_fabric.telemetry.settings import HistorySettings
from a2a_fabric.telemetry.spans import build_record

_WRITE_EVERY = 0.2
_BURST_SECONDS = 4.0  # of calls at the highest rate that may wait in the buffer
_ROOM_FOR_FAILURES = 0.2  # of the buffer
_MAX_UNWRITTEN = 5000
_WRITE_TIMEOUT = 10.0
_RETRY_SECONDS = 5.0
_PRUNE_INTERVAL = 30.0
_PRUNE_BATCH = 1000
_CALLS_PER_TURN = 16  # that are encoded between two turns of the event loop

_log = logging.getLogger(__name__)


class CallHistory:
    def __init__(
        self,
        store: CallStore,
        settings: HistorySettings,
        node: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lost = 0  # records that were left out or could not be written
        self.written = 0
        self.is_stopping = False
        self.keeps_payloads = settings.payloads
        self._store = store
        self._settings = settings
        self._node = node
        self._clock = clock
        self._buffer: deque[CallRecording | tuple[str, CallRecord]] = deque()
        self._size = int(settings.calls_per_second * _BURST_SECONDS)
        self._size_for_successes = int(self._size * (1 - _ROOM_FOR_FAILURES))
        self._unwritten: list[StoredCall] = []
        self._has_written = asyncio.Event()  # replaced with each batch
        self._turn = asyncio.Lock()
        self._turns: float = self._size
        self._turns_at = time.monotonic()
        self._retry_at = 0.0
        self._task: asyncio.Future[tuple[None, None]] | None = None

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
        self._task = asyncio.gather(
            self._write_forever(), prune_forever(self._prune, _PRUNE_INTERVAL, _log, "the call history")
        )

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
            if len(self._unwritten) > _MAX_UNWRITTEN:
                self.lost += len(self._unwritten) - _MAX_UNWRITTEN
                del self._unwritten[:-_MAX_UNWRITTEN]
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

    async def _prune(self) -> bool:
        settings = self._settings
        removed = await self._store.prune(
            self._clock() - settings.keep_seconds, settings.keep_calls, settings.keep_bytes, _PRUNE_BATCH
        )
        return removed < _PRUNE_BATCH


def _encode_payload(value: object, limit: int) -> str:
    """JSON without credentials, cut at `limit` bytes."""
    try:
        text = msgspec.json.encode(redact_json(msgspec.to_builtins(value)))
    except (TypeError, ValueError, RecursionError, OverflowError) as exc:
        return f'"not kept: {type(exc).__name__}"'
    return text.decode() if len(text) <= limit else text[:limit].decode("utf-8", "ignore") + "…"
