"""Keeps the copy of a node up with the log: applies what other nodes wrote, asks for what does not arrive, and begins
with a snapshot where the log does not reach back.

It belongs to the one task of the writer (`writer.py`), so one thing at a time changes the copy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from a2a_fabric.core.errors import STORE_BACK, StoreCorrupt, StoreError
from a2a_fabric.nats.connection import NatsUnavailable
from a2a_fabric.stores.nats.batches import UnreadableMessage
from a2a_fabric.stores.nats.errors import build_diverged, build_lost_log, build_unreadable
from a2a_fabric.stores.nats.log import LogMessage, ServerClock, StreamInfo, StreamLog
from a2a_fabric.stores.nats.replica import CopyDiverged, Replica
from a2a_fabric.stores.nats.snapshots import Snapshotter

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MAX_APPLIED = 256  # messages that are applied in one transaction
_TICK = 1.0
_DELIVERY_WAIT = 0.1  # for a message that is known to be in the log; then it is asked for
_CLOCK_INTERVAL = 30.0
_LEADER_TIME = 3.0
_PART_WAIT = 0.5  # for the next part of another node's batch; then that node seems to be dead


class LogApplier:
    """`wake` is set when there may be something to do. `on_commit` gets the topics of what was applied, or None if they
    are not known.
    """

    def __init__(
        self,
        replica: Replica,
        log: StreamLog,
        snapshotter: Snapshotter,
        address: str,
        on_commit: Callable[[set[str] | None], None],
    ) -> None:
        self._replica = replica
        self._stream = log
        self._snapshotter = snapshotter
        self._address = address
        self._on_commit = on_commit
        self.clock = ServerClock()
        self.wake = asyncio.Event()
        self.away_since: float | None = None
        self.failure: StoreError | None = None  # the copy cannot go on; restarting the node may help
        self._executor = ThreadPoolExecutor(1, "nats-copy")
        self._behind_since: float | None = None
        self._abandoned_at = 0  # sequence of a part that had no successor for too long
        self._clock_read_at = float("-inf")
        connection = log.jetstream.connection
        connection.on_connect.append(self.wake.set)
        connection.on_disconnect.append(self._note_disconnect)
        log.follower.on_message = self.wake.set

    async def read_log(self, ends_at: float) -> None:
        """Up to its end. Raises StoreError, NatsUnavailable, NatsRefused, JetStreamRefused."""
        info = await self.read_info(ends_at)
        await self._restart_follower(info)
        await self.catch_up(info.state.last_seq, ends_at)

    async def follow(self) -> None:
        """Apply what other nodes wrote."""
        if self.failure is not None:
            return
        connection = self._stream.jetstream.connection
        if connection.is_connected and self._stream.follower.needs_start:
            await self._restart_follower(await self.read_info(_now() + _TICK))
        elif self.away_since is not None or _now() - self._clock_read_at > _CLOCK_INTERVAL:
            await self.read_info(_now() + _TICK)
        while messages := await self._stream.follower.take(_MAX_APPLIED):
            await self._apply(messages)

    async def let_batch_end(self, ends_at: float) -> None:
        """Wait while another node writes a batch of several messages: one of ours in between would make it void."""
        waits_until = _now() + _PART_WAIT
        while self._replica.is_inside_batch and self._replica.sequence != self._abandoned_at:
            if messages := await self._take_messages():
                await self._apply(messages)
                waits_until = _now() + _PART_WAIT
            if _now() > min(waits_until, ends_at):
                self._abandoned_at = self._replica.sequence

    async def catch_up(self, target: int, ends_at: float, *, is_stored: bool = True) -> None:
        """Apply the log up to this sequence. Messages that are not delivered soon are asked for.

        A conflict may be with a message that is not stored yet, and never will be if the leader dies with it. So
        without `is_stored`, the end of the log ends the wait too.
        """
        while self._replica.sequence < target:
            try:
                if self._stream.follower.needs_start:
                    await self._restart_follower(await self.read_info(ends_at))
                messages = await self._take_messages() or await self._fetch_next(target)
                if not messages:
                    info = await self.read_info(_now() + _TICK)
                    if not is_stored and info.state.last_seq == self._replica.sequence and _now() < ends_at:
                        return
                    await self._restart_follower(info)  # it was purged: a snapshot has it
                await self._apply(messages)
            except NatsUnavailable:
                if _now() > ends_at:
                    raise
                await asyncio.sleep(_DELIVERY_WAIT)
            if self._replica.sequence < target and _now() > ends_at:
                raise NatsUnavailable(f"the log could not be read up to {target} in time")

    async def _take_messages(self) -> list[LogMessage]:
        self.wake.clear()
        messages = await self._stream.follower.take(_MAX_APPLIED)
        if not messages:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DELIVERY_WAIT):
                    await self.wake.wait()
            messages = await self._stream.follower.take(_MAX_APPLIED)
        return messages

    async def _fetch_next(self, target: int) -> list[LogMessage]:
        """Many at a time: a consumer whose server died delivers nothing until it is made anew."""
        fetched: list[LogMessage] = []
        last = min(target, self._replica.sequence + _MAX_APPLIED)
        for sequence in range(self._replica.sequence + 1, last + 1):
            message = await self._stream.read(sequence)
            if message is None:
                break
            fetched.append(message)
        return fetched

    async def _apply(self, messages: list[LogMessage]) -> None:
        fresh = [message for message in messages if message.sequence > self._replica.sequence]
        if not fresh:
            return
        try:
            applied = await self.in_thread(self._replica.apply, fresh)
        except CopyDiverged as exc:
            self.failure = build_diverged(self._address, str(exc))
            raise self.failure from exc
        except UnreadableMessage as exc:
            self.failure = build_unreadable(self._address, self._replica.sequence + 1, str(exc))
            raise self.failure from exc
        except BaseException:
            self._stream.follower.mark_stale()
            raise
        self._snapshotter.add_bytes(sum(len(message.data) for message in fresh))
        self._on_commit(applied.topics)

    async def _restart_follower(self, info: StreamInfo) -> None:
        """Begin behind the copy; with a snapshot if the log does not reach back so far."""
        self._check_end(info.state.last_seq)
        if self._replica.sequence == 0 or info.state.first_seq > self._replica.sequence + 1:
            await self._load_snapshot(info.state.first_seq)
        await self._stream.follower.start(self._replica.sequence + 1)

    def _check_end(self, last: int) -> None:
        """The log may not end before what this copy has applied, except while a new leader reads its own log."""
        if last >= self._replica.sequence:
            self._behind_since = None
            return
        if self._behind_since is None:
            self._behind_since = _now()
        if _now() - self._behind_since < _LEADER_TIME:
            raise NatsUnavailable("the server that leads now has not read its whole log yet")
        self.failure = build_lost_log(self._address, last, self._replica.sequence)
        raise self.failure

    async def _load_snapshot(self, first: int) -> None:
        """The newest one, which must reach the first message of the log."""
        if await self._snapshotter.load(self.in_thread):
            self._on_commit(None)  # what changed is not known
        if first > self._replica.sequence + 1:
            raise StoreCorrupt(
                self._address, f"its log begins with {first}, and its snapshot ends with {self._replica.sequence}"
            )

    async def read_info(self, ends_at: float) -> StreamInfo:
        """From the leader."""
        asked_at = time.time()
        try:
            info = await self._stream.read_info(ends_at)
        except NatsUnavailable:
            self.note_away()
            raise
        self.note_answer()
        self._clock_read_at = _now()
        self.clock.adjust(info, asked_at, time.time())
        return info

    async def in_thread(self, function: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *values)

    def _note_disconnect(self) -> None:
        self._stream.follower.mark_stale()
        self.note_away()

    def note_away(self) -> None:
        if self.away_since is None:
            self.away_since = _now()

    def note_answer(self) -> None:
        if self.away_since is not None:
            seconds = _now() - self.away_since
            _log.warning("%s is back after %.3g s", self._address, seconds, extra=STORE_BACK)
            self.away_since = None

    async def aclose(self) -> None:
        await self._stream.follower.stop()
        self._executor.shutdown(wait=False)


def _now() -> float:
    return asyncio.get_running_loop().time()
