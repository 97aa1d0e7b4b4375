"""The writer thread: writes that wait at the same time share one transaction and one flush to the disk.

A unit of work is a function of a `SqliteTransaction`. It should read before it
writes: a unit that raises after writing makes its whole group run a second time,
each unit in a transaction of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout, StoreBusy, StoreUnavailable
from a2a_fabric.stores.sqlite.errors import UNSTORABLE, build_unstorable, translate

T = TypeVar("T")

_MAX_GROUP = 512  # pieces of work in one transaction
_MAX_WAITING = 20_000  # pieces of work that may wait
_TIMEOUT = 30.0


class SqliteTransaction:
    """What a piece of work sees: the connection, the moment, and the topics to ring when all is on disk."""

    __slots__ = ("connection", "execute", "executemany", "now", "topics")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.now = now
        self.topics: set[str] = set()


Work = Callable[[SqliteTransaction], Any]
PendingWork = tuple[Work, "asyncio.Future[Any]"]
FinishedWork = tuple["asyncio.Future[Any]", Any, BaseException | None]


class BatchedWork(ABC):
    """A piece of work that comes in crowds: done together it costs less. It is done before the others of its group."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, tx: SqliteTransaction, /) -> Any: ...

    @staticmethod
    @abstractmethod
    def run_batch(tx: SqliteTransaction, batch: Sequence[Any], /) -> Sequence[Any]:
        """What each returns, or an Exception in its place: then nothing of that one was written."""


class _GroupFailed(Exception):
    """A piece of work failed half-way: the group has to be undone."""


class SqliteWriter:
    """Belongs to the event loop in which it was made. `rang` is called there with the topics of each commit.

    `check` raises StoreError if what is written would not be found again: before anything is, and before it is told.

    Whoever listens to a topic may hear of it earlier, when the work that will ring it is asked for: what they
    ask in return comes after it, mostly in the same transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        address: str,
        clock: Callable[[], float],
        on_commit: Callable[[set[str]], None],
        check_file: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._address = address
        self._clock = clock
        self._on_commit = on_commit
        self._check_file = check_file
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[PendingWork] | None] = SimpleQueue()
        self._pending: list[PendingWork] = []  # in this turn of the loop
        self._expected: Counter[str] = Counter()
        self._waiting_count = 0
        self._is_open = True
        self._thread = threading.Thread(target=self._run_thread, name="sqlite-writer", daemon=True)
        self._thread.start()

    async def run_announced(self, topic: str, work: Callable[[SqliteTransaction], T]) -> T:
        """As `run`, for work that will ring this topic: those who listen are told now."""
        self._expected[topic] += 1
        self._on_commit({topic})
        try:
            return await self.run(work)
        finally:
            self._expected[topic] -= 1

    def expects(self, topic: str) -> bool:
        """Whether something is asked for, and may not be on disk yet, that rings this topic."""
        return self._expected[topic] > 0

    async def run(self, work: Callable[[SqliteTransaction], T]) -> T:
        """What the work returns, once it is on disk. Raises what it raises, StoreError, and nothing of SQLite's."""
        if not self._is_open:
            raise StoreUnavailable(f"{self._address} is closed", store=self._address)
        if self._waiting_count >= _MAX_WAITING:
            raise StoreBusy(
                f"{self._address} has {_MAX_WAITING} writes waiting already; try again", store=self._address
            )
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._submit_pending)  # once for all that ask in this turn: they become one group
        self._pending.append((work, future))
        self._waiting_count += 1
        try:
            with Deadline(_TIMEOUT):
                return await future
        except CallTimeout as exc:
            raise StoreBusy(f"{self._address} did not write within {_TIMEOUT:g} s", store=self._address) from exc

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._submit_pending()
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, _TIMEOUT)

    def _submit_pending(self) -> None:
        if self._pending:
            self._queue.put(self._pending)
            self._pending = []

    def _run_thread(self) -> None:
        while (group := self._take_group()) is not None:
            for at in range(0, len(group), _MAX_GROUP):
                self._commit(group[at : at + _MAX_GROUP])

    def _take_group(self) -> list[PendingWork] | None:
        first = self._queue.get()
        if first is None:
            return None
        group = first
        while len(group) < _MAX_GROUP:
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                break
            if waiting is None:
                self._queue.put(None)  # finish this group first
                break
            group += waiting
        return group

    def _commit(self, group: list[PendingWork]) -> None:
        try:
            self._post_results(*self._run_transaction(group), len(group))
        except _GroupFailed:
            for each in group:
                self._commit_alone(each)
        except Exception as exc:
            self._post_results([(future, None, exc) for _, future in group], set(), len(group))

    def _commit_alone(self, pending: PendingWork) -> None:
        try:
            self._post_results(*self._run_transaction([pending]), 1)
        except Exception as exc:
            self._post_results([(pending[1], None, exc)], set(), 1)

    def _translate_error(self, error: BaseException) -> BaseException:
        cause = error.__cause__ if isinstance(error, _GroupFailed) and error.__cause__ else error
        if isinstance(cause, UNSTORABLE):
            return build_unstorable(cause, self._address)
        return translate(cause, self._address) if isinstance(cause, sqlite3.Error) else cause

    def _run_transaction(self, group: list[PendingWork]) -> tuple[list[FinishedWork], set[str]]:
        """One transaction. Raises _Spoilt, StoreError or sqlite3.Error; then nothing of it was written."""
        connection = self._connection
        self._check_file()
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = SqliteTransaction(connection, self._clock())
            finished = _run_group(transaction, [each for each in group if not each[1].done()])
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._check_file()
        return finished, transaction.topics

    def _post_results(self, finished: list[FinishedWork], topics: set[str], count: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set_results, finished, topics, count)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever waited

    def _set_results(self, finished: list[FinishedWork], topics: set[str], count: int) -> None:
        self._waiting_count -= count
        if topics:
            self._on_commit(topics)
        for future, result, error in finished:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(self._translate_error(error))


def _run_group(transaction: SqliteTransaction, group: Sequence[PendingWork]) -> list[FinishedWork]:
    batches: dict[type[BatchedWork], list[tuple[BatchedWork, asyncio.Future[Any]]]] = {}
    singles: list[PendingWork] = []
    for work, future in group:
        if isinstance(work, BatchedWork):
            batches.setdefault(type(work), []).append((work, future))
        else:
            singles.append((work, future))
    finished = [each for kind, batch in batches.items() for each in _run_batch(transaction, kind, batch)]
    return finished + [_run_one(transaction, *each) for each in singles]


def _run_batch(
    transaction: SqliteTransaction, kind: type[BatchedWork], batch: Sequence[tuple[BatchedWork, asyncio.Future[Any]]]
) -> Iterator[FinishedWork]:
    if len(batch) == 1:
        yield _run_one(transaction, *batch[0])
        return
    try:
        results = kind.run_batch(transaction, [work for work, _ in batch])
    except Exception as exc:
        raise _GroupFailed from exc
    for (_, future), result in zip(batch, results, strict=True):
        is_error = isinstance(result, Exception)
        yield future, None if is_error else result, result if is_error else None


def _run_one(transaction: SqliteTransaction, work: Work, future: asyncio.Future[Any]) -> FinishedWork:
    before = transaction.connection.total_changes
    try:
        return future, work(transaction), None
    except sqlite3.Error as exc:
        raise _GroupFailed from exc
    except Exception as exc:
        if transaction.connection.total_changes != before:
            raise _GroupFailed from exc
        return future, None, exc
