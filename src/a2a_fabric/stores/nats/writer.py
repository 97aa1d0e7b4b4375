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
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from a2a_fabric.core.errors import (
    BadInput,
    CallTimeout,
    FabricError,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
)
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.nats.connection import NatsRefused, NatsUnavailable
from a2a_fabric.stores.changes import LogThrottle, set_outcome
from a2a_fabric.stores.nats.applier import LogApplier
from a2a_fabric.stores.nats.batches import split_batch
from a2a_fabric.stores.nats.errors import (
    JetStreamRefused,
    build_unconfirmed,
    translate,
)
from a2a_fabric.stores.nats.log import SequenceConflict, StreamLog
from a2a_fabric.stores.nats.replica import GroupOutcome, Replica
from a2a_fabric.stores.nats.snapshots import Snapshotter
from a2a_fabric.stores.sqlite.database import GroupFailed, SqliteTransaction, Work
from a2a_fabric.stores.sqlite.database import translate as translate_sqlite

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MAX_GROUP = 256  # writes in one batch
_MAX_WAITING = 20_000  # writes that may wait
_MAX_BATCH_BYTES = 64 << 20
_TICK = 1.0
_CONTENTION = 1.0  # seconds after a lost race in which this node leaves the others a gap
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
        self._applier = LogApplier(replica, log, snapshotter, address, on_commit)
        self._replica = replica
        self._stream = log
        self._snapshotter = snapshotter
        self._address = address
        self._node = node
        self._timeout = timeout
        self._on_commit = on_commit
        self.clock = self._applier.clock
        self._pending: list[PendingUnit] = []
        self._expected: Counter[str] = Counter()
        self._waiting_count = 0
        self._conflict_at = float("-inf")
        self._throttle = LogThrottle(_log)
        self._is_open = True
        self._task: asyncio.Task[None] | None = None

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
        self._applier.wake.set()
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
        if self._applier.failure is not None:
            raise self._applier.failure
        if self._waiting_count >= _MAX_WAITING:
            raise StoreBusy(
                f"{self._address} has {_MAX_WAITING} writes waiting already; try again", store=self._address
            )
        away = 0.0 if self._applier.away_since is None else _now() - self._applier.away_since
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
            await self._applier.read_log(ends_at)
        except _FAULTS as exc:
            raise self._translate(exc) from exc

    async def aclose(self) -> None:
        """Finish the requested writes."""
        self._is_open = False
        self._applier.wake.set()
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * self._timeout):
                    await asyncio.shield(self._task)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._snapshotter.aclose()
        await self._applier.aclose()

    # The task

    async def _run(self) -> None:
        while self._is_open or self._pending:
            if not self._pending:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK):
                        await self._applier.wake.wait()
            self._applier.wake.clear()
            try:
                await self._applier.follow()
            except Exception as exc:
                self._note_fault(exc)
            if self._pending:
                group, self._pending = self._pending[:_MAX_GROUP], self._pending[_MAX_GROUP:]
                await self._commit_group(group)
                await self._leave_gap()
            self._snapshotter.start_if_due()

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
        if self._applier.failure is not None:
            raise self._applier.failure
        is_current = False
        while True:
            await self._applier.let_batch_end(ends_at)
            outcome = await self._applier.in_thread(run)
            if outcome.body is None:
                if is_current:
                    return outcome
                head = (await self._applier.read_info(ends_at)).state.last_seq
                if head <= self._replica.sequence:
                    return outcome
                await self._applier.catch_up(head, ends_at)
                is_current = True
                continue
            try:
                await self._append(outcome.batch_id, outcome.body, ends_at)
            except SequenceConflict as exc:
                self._conflict_at = _now()
                await self._applier.catch_up(exc.head, ends_at, is_stored=False)
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
            await self._applier.in_thread(self._replica.rollback)
            self._applier.note_away()
            raise build_unconfirmed(self._address, _now() - started_at, str(exc)) from exc
        except BaseException:
            await self._applier.in_thread(self._replica.rollback)
            raise
        self._applier.note_answer()
        await self._applier.in_thread(self._replica.commit, sequence, batch_id)
        self._snapshotter.add_bytes(len(body))

    def _measure_part(self) -> int:
        return int(self._stream.jetstream.connection.server_info["max_payload"]) - _HEADROOM

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


def _now() -> float:
    return asyncio.get_running_loop().time()
