"""Sends spans of ended calls to a collector, from a thread of its own.

Invariants:

- A call never waits: `add` appends to a bounded queue, or counts the call as dropped.
- The thread takes at most `cpu_share` of a processor. It rests after each batch for as long as that takes, because in
  Python the time that it works is taken from the calls.
- A collector that is away or slow holds up the thread alone. What is not sent is dropped and counted, and one line of
  the log says when it begins and when it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from a2a_fabric.core.recording import CallRecording
from a2a_fabric.core.spans import CallRecord
from a2a_fabric.telemetry.metrics import render_family, render_value
from a2a_fabric.telemetry.spans import build_record

_BATCH = 64  # calls
_SEND_EVERY = 0.5
_FULL_SHARE = 1.0
_CLOSE_TIMEOUT = 3.0

_log = logging.getLogger(__name__)

TracedRecord = tuple[str, CallRecord]  # the id of the trace, and what was recorded of it


class SpanSender(Protocol):
    """Called by one thread. `close` is called by another, and ends a `send` under way."""

    target: str  # for the log

    def send(self, records: Sequence[TracedRecord]) -> bool:
        """Whether the collector took them. Never raises."""
        ...

    def close(self) -> None: ...


class Sampler:
    """Which calls are sent: as the caller of a continued trace decided, and a share of new ones."""

    def __init__(self, ratio: float = 1.0, *, follows_parent: bool = True) -> None:
        self._limit = int(ratio * (1 << 64))
        self._takes_none = ratio <= 0
        self._takes_all = ratio >= _FULL_SHARE
        self._follows_parent = follows_parent

    def takes(self, trace_id: str, parent_span_id: str | None, sampled: object) -> bool:
        if self._follows_parent and parent_span_id is not None:
            return sampled is not False
        if self._takes_all or self._takes_none:
            return self._takes_all
        # The last 64 bits, as the samplers of OpenTelemetry do: nodes with the same ratio decide alike.
        return int(trace_id[19:23] + trace_id[24:], 16) < self._limit


class SpanExport:
    def __init__(self, sender: SpanSender, node: str, queue: int, cpu_share: float) -> None:
        self.sent = 0
        self.dropped = 0  # calls that found the queue full
        self.failed = 0  # calls that the collector did not take
        self._sender = sender
        self._node = node
        self._queue: deque[CallRecording | TracedRecord] = deque()
        self._size = queue
        self._rest_factor = 1 / cpu_share - 1
        self._is_away = False
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="fabric-spans", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        return len(self._queue) >= self._size

    def add(self, ended: CallRecording | TracedRecord) -> None:
        if self.is_full:
            self.dropped += 1
        else:
            self._queue.append(ended)

    def render_metrics(self) -> Iterator[str]:
        outcomes = [(("sent",), self.sent), (("dropped",), self.dropped), (("failed",), self.failed)]
        text = "Calls whose spans were sent to the collector, dropped as too many, or not taken"
        yield from render_family("fabric_spans_total", "counter", text, ("outcome",), outcomes)
        yield render_value("fabric_spans_waiting", "gauge", "Calls whose spans wait to be sent", len(self._queue))

    def close(self) -> None:
        """Send what waits, for at most a few seconds."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT)
        self._sender.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        rest = _SEND_EVERY
        while True:
            self._wake.wait(rest)
            if self._is_closing:
                self._wake.clear()
                while self._queue and self._send_batch():
                    pass
                return
            used = -time.thread_time()
            if self._queue:
                self._send_batch()
            used += time.thread_time()
            rest = max(used * self._rest_factor, 0.0 if len(self._queue) >= _BATCH else _SEND_EVERY)

    def _send_batch(self) -> bool:
        batch = [self._take() for _ in range(min(_BATCH, len(self._queue)))]
        try:
            is_taken = self._sender.send(batch)
        except Exception:
            _log.exception("sending spans failed; it goes on")
            is_taken = False
        if is_taken:
            self.sent += len(batch)
        else:
            self.failed += len(batch)
        if is_taken is self._is_away:
            self._is_away = not is_taken
            if is_taken:
                _log.info("spans are sent to %s again", self._sender.target)
            else:
                _log.warning("spans cannot be sent to %s; they are dropped and counted", self._sender.target)
        return is_taken

    def _take(self) -> TracedRecord:
        ended = self._queue.popleft()
        if isinstance(ended, tuple):
            return ended
        return ended.trace.trace_id, build_record(ended, self._node)
