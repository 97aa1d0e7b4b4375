"""Writes of a node, in turn with the writes of all others: run on the local copy, put into the log, then committed.

One task does everything that changes the copy, one thing at a time: it applies what other nodes wrote, and it takes all
writes that wait as one group. What holds:

- A write is answered after the log has its batch. The server stored the batch behind the last one that the copy had
  applied, so what the write has read was true at that moment, on all nodes.
- If another node was first, the group is rolled back, the copy catches up, and the group runs again.
- A group that changed nothing is answered after the server said that the copy was at the end of the log.
- If it is not known whether a batch is in the log, its callers are told so. If it is, the copy gets it from there."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from a2a_fabric.core.errors import (
    STORE_BACK,
    BadInput,
    CallTimeout,
    FabricError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.nats.connection import NatsRefused, NatsUnavailable
from a2a_fabric.stores.changes import LogThrottle, set_outcome
from a2a_fabric.stores.nats.batches import UnreadableMessage, split_batch
from a2a_fabric.stores.nats.errors import (
    JetStreamRefused,
    build_diverged,
    build_lost_log,
    build_unconfirmed,
    build_unreadable,
    translate,
)
from a2a_fabric.stores.nats.log import LogMessage, SequenceConflict, ServerClock, StreamInfo, StreamLog
from a2a_fabric.stores.nats.replica import CopyDiverged, GroupOutcome, Replica
from a2a_fabric.stores.nats.snapshots import Snapshotter
from a2a_fabric.stores.sqlite.database import GroupFailed, SqliteTransaction, Work
from a2a_fabric.stores.sqlite.database import translate as translate_sqlite

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MAX_GROUP = 256  # writes in one batch
_MAX_WAITING = 20_000  # writes that may wait
_MAX_BATCH_BYTES = 64 << 20
_MAX_APPLIED = 256  # messages that are applied in one transaction
_TICK = 1.0
_DELIVERY_WAIT = 0.1  # for a message that is known to be in the log; then it is asked for
_CONTENTION = 1.0  # seconds after a lost race in which this node leaves the others a gap
_CLOCK_INTERVAL = 30.0
_LEADER_TIME = 3.0
_PART_WAIT = 0.5  # for the next part of another node's batch; then that node seems to be dead
_HEADROOM = 4096  # of `max_payload`, for headers


_FAULTS = (NatsUnavailable, NatsRefused, JetStreamRefused)


class PendingUnit(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    topic: str | None


class ReplicatedWriter:
    """Belongs to the event loop in which it was created. `on_commit` gets the topics of each batch, also of others."""

    def __init__(
        self,
        replica: Replica,
        log: StreamLog,
        snapshotter: Snapshotter,
        address: str,
        node: str,
        timeout: float,
        on_commit: Callable[[set[str] | None], None],
    ) -> None:
        self._replica = replica
        self._stream = log
        self._snapshotter = snapshotter
        self._address = address
        self._node = node
        self._timeout = timeout
        self._on_commit = on_commit
        self.clock = ServerClock()
        self._executor = ThreadPoolExecutor(1, "nats-copy")
        self._pending: list[PendingUnit] = []
        self._expected: Counter[str] = Counter()
        self._waiting_count = 0
        self._wake = asyncio.Event()
        self._away_since: float | None = None
        self._behind_since: float | None = None
        self._failure: StoreError | None = None  # the copy cannot go on; restarting the node may help
        self._conflict_at = float("-inf")
        self._abandoned_at = 0  # sequence of a part that had no successor for too long
        self._clock_read_at = float("-inf")
        self._throttle = LogThrottle(_log)
        self._is_open = True
        self._task: asyncio.Task[None] | None = None
        connection = log.jetstream.connection
        connection.on_connect.append(self._wake.set)
        connection.on_disconnect.append(self._note_disconnect)
        log.follower.on_message = self._wake.set

    # What the ports use

    async def run(self, work: Callable[[SqliteTransaction], T]) -> T:
        return await self._submit(work, None)

    async def run_announced(self, topic: str, work: Callable[[SqliteTransaction], T]) -> T:
        self._expected[topic] += 1
        self._on_commit({topic})
        try:
            return await self._submit(work, topic)
        finally:
            self._expected[topic] -= 1

    def expects(self, topic: str) -> bool:
        return self._expected[topic] > 0

    async def _submit(self, work: Callable[[SqliteTransaction], T], topic: str | None) -> T:
        self._check_usable()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending.append(PendingUnit(work, future, topic))
        self._waiting_count += 1
        self._wake.set()
        try:
            with Deadline(self._timeout):
                return await future
        except CallTimeout as exc:
            raise build_unconfirmed(self._address, self._timeout, "it is slow or away") from exc
        finally:
            self._waiting_count -= 1

    def _check_usable(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"{self._address} is closed", store=self._address)
        if self._failure is not None:
            raise self._failure
        if self._waiting_count >= _MAX_WAITING:
            raise StoreBusy(
                f"{self._address} has {_MAX_WAITING} writes waiting already; try again", store=self._address
            )
        away = 0.0 if self._away_since is None else _now() - self._away_since
        if away > self._timeout:
            reason = self._stream.jetstream.connection.last_error or "no answer"
            raise StoreUnavailable(
                f"{self._address} has been away for {away:.0f} s ({reason}); the node keeps trying", store=self._address
            )

    # Start and end

    async def open(self, ends_at: float) -> None:
        """Read the log up to its end, and migrate. Raises StoreError."""
        await self.read_log(ends_at)
        try:
            await self._commit(lambda: self._replica.migrate(self.clock(), self._node), ends_at)
        except _FAULTS as exc:
            raise self._translate(exc) from exc
        self._task = asyncio.create_task(self._run())

    async def read_log(self, ends_at: float) -> None:
        """Raises StoreError."""
        try:
            info = await self._read_info(ends_at)
            await self._restart_follower(info)
            await self._catch_up(info.state.last_seq, ends_at)
        except _FAULTS as exc:
            raise self._translate(exc) from exc

    async def aclose(self) -> None:
        """Finish the requested writes."""
        self._is_open = False
        self._wake.set()
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * self._timeout):
                    await asyncio.shield(self._task)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._snapshotter.aclose()
        await self._stream.follower.stop()
        self._executor.shutdown(wait=False)

    # The task

    async def _run(self) -> None:
        while self._is_open or self._pending:
            if not self._pending:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK):
                        await self._wake.wait()
            self._wake.clear()
            try:
                await self._follow()
            except Exception as exc:
                self._note_fault(exc)
            if self._pending:
                group, self._pending = self._pending[:_MAX_GROUP], self._pending[_MAX_GROUP:]
                await self._commit_group(group)
                await self._leave_gap()
            self._snapshotter.start_if_due()

    async def _follow(self) -> None:
        """Apply what other nodes wrote."""
        if self._failure is not None:
            return
        connection = self._stream.jetstream.connection
        if connection.is_connected and self._stream.follower.needs_start:
            await self._restart_follower(await self._read_info(_now() + _TICK))
        elif self._away_since is not None or _now() - self._clock_read_at > _CLOCK_INTERVAL:
            await self._read_info(_now() + _TICK)
        while messages := await self._stream.follower.take(_MAX_APPLIED):
            await self._apply(messages)

    async def _leave_gap(self) -> None:
        """Nodes that all write would otherwise let the nearest one win every race."""
        if _now() - self._conflict_at < _CONTENTION:
            await asyncio.sleep(random.uniform(0, 0.004))

    async def _commit_group(self, group: list[PendingUnit]) -> None:
        def run() -> GroupOutcome:
            units = [unit for unit in group if not unit.future.done()]  # a cancelled caller's work is not begun
            topics = {unit.topic for unit in units if unit.topic is not None}
            pending = [(unit.work, unit.future) for unit in units]
            return self._replica.run_group(pending, self.clock(), self._node, topics)

        ends_at = _now() + self._timeout
        try:
            outcome = await self._commit(run, ends_at)
        except GroupFailed as exc:
            if len(group) > 1:
                for unit in group:  # nothing is written yet; alone, only the unit that fails is lost
                    await self._commit_group([unit])
                return
            set_outcome(group[0].future, self._translate(exc.__cause__ or exc))
        except Exception as exc:
            self._note_fault(exc)
            error = self._translate(exc)
            for unit in group:
                set_outcome(unit.future, error)
        else:
            for future, result in outcome.finished:
                set_outcome(future, self._translate(result) if isinstance(result, BaseException) else result)

    async def _commit(self, run: Callable[[], GroupOutcome], ends_at: float) -> GroupOutcome:
        """Run until it is in the log, or has changed nothing at the end of the log.

        Raises GroupFailed, sqlite3.Error, JetStreamRefused and StoreError.
        """
        if self._failure is not None:
            raise self._failure
        is_current = False
        while True:
            await self._let_batch_end(ends_at)
            outcome = await self._in_thread(run)
            if outcome.body is None:
                if is_current:
                    return outcome
                head = (await self._read_info(ends_at)).state.last_seq
                if head <= self._replica.sequence:
                    return outcome
                await self._catch_up(head, ends_at)
                is_current = True
                continue
            try:
                await self._append(outcome.batch_id, outcome.body, ends_at)
            except SequenceConflict as exc:
                self._conflict_at = _now()
                await self._catch_up(exc.head, ends_at, is_stored=False)
                continue
            self._on_commit(outcome.topics)
            return outcome

    async def _append(self, batch_id: bytes, body: bytes, ends_at: float) -> None:
        """Put the batch of the open transaction into the log and commit it; else roll it back and raise."""
        sequence = self._replica.sequence
        started_at = _now()
        try:
            if len(body) > _MAX_BATCH_BYTES:
                error = BadInput(f"This request is larger than the {_MAX_BATCH_BYTES >> 20} MiB that a write may hold")
                raise GroupFailed from error
            for message in split_batch(batch_id, body, self._measure_part()):
                await self._stream.append(message, sequence, ends_at)
                sequence += 1
        except NatsUnavailable as exc:
            await self._in_thread(self._replica.rollback)
            self._note_away()
            raise build_unconfirmed(self._address, _now() - started_at, str(exc)) from exc
        except BaseException:
            await self._in_thread(self._replica.rollback)
            raise
        self._note_answer()
        await self._in_thread(self._replica.commit, sequence, batch_id)
        self._snapshotter.add_bytes(len(body))

    def _measure_part(self) -> int:
        return int(self._stream.jetstream.connection.server_info["max_payload"]) - _HEADROOM

    # Catching up

    async def _let_batch_end(self, ends_at: float) -> None:
        """Wait while another node writes a batch of several messages: one of ours in between would make it void."""
        waits_until = _now() + _PART_WAIT
        while self._replica.is_inside_batch and self._replica.sequence != self._abandoned_at:
            if messages := await self._take_messages():
                await self._apply(messages)
                waits_until = _now() + _PART_WAIT
            if _now() > min(waits_until, ends_at):
                self._abandoned_at = self._replica.sequence

    async def _catch_up(self, target: int, ends_at: float, *, is_stored: bool = True) -> None:
        """Apply the log up to this sequence. Messages that are not delivered soon are asked for.

        A conflict may be with a message that is not stored yet, and never will be if the leader dies with it. So
        without `is_stored`, the end of the log ends the wait too.
        """
        while self._replica.sequence < target:
            try:
                if self._stream.follower.needs_start:
                    await self._restart_follower(await self._read_info(ends_at))
                messages = await self._take_messages() or await self._fetch_next(target)
                if not messages:
                    info = await self._read_info(_now() + _TICK)
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
        self._wake.clear()
        messages = await self._stream.follower.take(_MAX_APPLIED)
        if not messages:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DELIVERY_WAIT):
                    await self._wake.wait()
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
            applied = await self._in_thread(self._replica.apply, fresh)
        except CopyDiverged as exc:
            self._failure = build_diverged(self._address, str(exc))
            raise self._failure from exc
        except UnreadableMessage as exc:
            self._failure = build_unreadable(self._address, self._replica.sequence + 1, str(exc))
            raise self._failure from exc
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
        self._failure = build_lost_log(self._address, last, self._replica.sequence)
        raise self._failure

    async def _load_snapshot(self, first: int) -> None:
        """The newest one, which must reach the first message of the log."""
        if await self._snapshotter.load(self._in_thread):
            self._on_commit(None)  # what changed is not known
        if first > self._replica.sequence + 1:
            raise StoreCorrupt(
                self._address, f"its log begins with {first}, and its snapshot ends with {self._replica.sequence}"
            )

    # Small things

    async def _read_info(self, ends_at: float) -> StreamInfo:
        """From the leader."""
        asked_at = time.time()
        try:
            info = await self._stream.read_info(ends_at)
        except NatsUnavailable:
            self._note_away()
            raise
        self._note_answer()
        self._clock_read_at = _now()
        self.clock.adjust(info, asked_at, time.time())
        return info

    async def _in_thread(self, function: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *values)

    def _translate(self, error: BaseException) -> BaseException:
        if isinstance(error, FabricError):
            return error
        if isinstance(error, NatsUnavailable | NatsRefused | JetStreamRefused):
            translated = translate(error, self._address)
            if isinstance(translated, StoreFull):
                self._snapshotter.request()  # the log may become shorter
            return translated
        return translate_sqlite(error, f"the local copy of {self._address}")

    def _note_fault(self, error: Exception) -> None:
        self._throttle.warn(str(self._translate(error)))

    def _note_disconnect(self) -> None:
        self._stream.follower.mark_stale()
        self._note_away()

    def _note_away(self) -> None:
        if self._away_since is None:
            self._away_since = _now()

    def _note_answer(self) -> None:
        if self._away_since is not None:
            seconds = _now() - self._away_since
            _log.warning("%s is back after %.3g s", self._address, seconds, extra=STORE_BACK)
            self._away_since = None


def _now() -> float:
    return asyncio.get_running_loop().time()
