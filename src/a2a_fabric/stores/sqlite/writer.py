"""One thread that writes. Whoever waits at the same time shares one transaction and one flush to the disk.

A piece of work is a function of a `Transaction`. It should look before it
writes: one that raises after writing costs its whole group a second round, each
piece alone.
"""

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
from a2a_fabric.core.errors import CallTimeout
from a2a_fabric.core.store_errors import StoreBusy, StoreUnavailable
from a2a_fabric.stores.sqlite.errors import UNKEEPABLE, translate, unkeepable

T = TypeVar("T")

_GROUP = 512  # pieces of work in one transaction
_WAITING = 20_000  # pieces of work that may wait
_PATIENCE = 30.0


class Transaction:
    """What a piece of work sees: the connection, the moment, and the topics to ring when all is on disk."""

    __slots__ = ("connection", "execute", "executemany", "now", "topics")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.now = now
        self.topics: set[str] = set()


Work = Callable[[Transaction], Any]
Waiting = tuple[Work, "asyncio.Future[Any]"]
Settled = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Common(ABC):
    """A piece of work that comes in crowds: done together it costs less. It is done before the others of its group."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, tx: Transaction, /) -> Any: ...

    @staticmethod
    @abstractmethod
    def together(tx: Transaction, several: Sequence[Any], /) -> Sequence[Any]:
        """What each returns, or an Exception in its place: then nothing of that one was written."""


class _Spoilt(Exception):
    """A piece of work failed half-way: the group has to be undone."""


class Writer:
    """Belongs to the event loop in which it was made. `rang` is called there with the topics of each commit.

    `check` raises StoreError if what is written would not be found again: before anything is, and before it is told.

    Whoever listens to a topic may hear of it earlier, when the work that will ring it is asked for: what they
    ask in return comes after it, mostly in the same transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        place: str,
        clock: Callable[[], float],
        rang: Callable[[set[str]], None],
        check: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._place = place
        self._clock = clock
        self._rang = rang
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[Waiting] | None] = SimpleQueue()
        self._asked: list[Waiting] = []  # in this turn of the loop
        self._expected: Counter[str] = Counter()
        self._waiting = 0
        self._is_open = True
        self._thread = threading.Thread(target=self._write, name="sqlite-writer", daemon=True)
        self._thread.start()

    async def run_expected(self, topic: str, work: Callable[[Transaction], T]) -> T:
        """As `run`, for work that will ring this topic: those who listen are told now."""
        self._expected[topic] += 1
        self._rang({topic})
        try:
            return await self.run(work)
        finally:
            self._expected[topic] -= 1

    def expects(self, topic: str) -> bool:
        """Whether something is asked for, and may not be on disk yet, that rings this topic."""
        return self._expected[topic] > 0

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """What the work returns, once it is on disk. Raises what it raises, StoreError, and nothing of SQLite's."""
        if not self._is_open:
            raise StoreUnavailable(f"{self._place} is closed", store=self._place)
        if self._waiting >= _WAITING:
            raise StoreBusy(f"{self._place} has {_WAITING} writes waiting already; try again", store=self._place)
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._asked:
            self._loop.call_soon(self._hand_over)  # once for all that ask in this turn: they become one group
        self._asked.append((work, future))
        self._waiting += 1
        try:
            with Deadline(_PATIENCE):
                return await future
        except CallTimeout as exc:
            raise StoreBusy(f"{self._place} did not write within {_PATIENCE:g} s", store=self._place) from exc

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._hand_over()
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, _PATIENCE)

    def _hand_over(self) -> None:
        if self._asked:
            self._queue.put(self._asked)
            self._asked = []

    def _write(self) -> None:
        while (group := self._next_group()) is not None:
            for at in range(0, len(group), _GROUP):
                self._commit(group[at : at + _GROUP])

    def _next_group(self) -> list[Waiting] | None:
        first = self._queue.get()
        if first is None:
            return None
        group = first
        while len(group) < _GROUP:
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                break
            if waiting is None:
                self._queue.put(None)  # finish this group first
                break
            group += waiting
        return group

    def _commit(self, group: list[Waiting]) -> None:
        try:
            self._deliver(*self._attempt(group), len(group))
        except _Spoilt:
            for each in group:
                self._commit_alone(each)
        except Exception as exc:
            self._deliver([(future, None, exc) for _, future in group], set(), len(group))

    def _commit_alone(self, waiting: Waiting) -> None:
        try:
            self._deliver(*self._attempt([waiting]), 1)
        except Exception as exc:
            self._deliver([(waiting[1], None, exc)], set(), 1)

    def _ours(self, error: BaseException) -> BaseException:
        cause = error.__cause__ if isinstance(error, _Spoilt) and error.__cause__ else error
        if isinstance(cause, UNKEEPABLE):
            return unkeepable(cause, self._place)
        return translate(cause, self._place) if isinstance(cause, sqlite3.Error) else cause

    def _attempt(self, group: list[Waiting]) -> tuple[list[Settled], set[str]]:
        """One transaction. Raises _Spoilt, StoreError or sqlite3.Error; then nothing of it was written."""
        connection = self._connection
        self._check()
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(connection, self._clock())
            settled = _all_done(transaction, [each for each in group if not each[1].done()])
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._check()
        return settled, transaction.topics

    def _deliver(self, settled: list[Settled], topics: set[str], count: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tell, settled, topics, count)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever waited

    def _tell(self, settled: list[Settled], topics: set[str], count: int) -> None:
        self._waiting -= count
        if topics:
            self._rang(topics)
        for future, result, error in settled:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(self._ours(error))


def _all_done(transaction: Transaction, group: Sequence[Waiting]) -> list[Settled]:
    crowds: dict[type[Common], list[tuple[Common, asyncio.Future[Any]]]] = {}
    alone: list[Waiting] = []
    for work, future in group:
        if isinstance(work, Common):
            crowds.setdefault(type(work), []).append((work, future))
        else:
            alone.append((work, future))
    settled = [each for kind, crowd in crowds.items() for each in _done_together(transaction, kind, crowd)]
    return settled + [_done(transaction, *each) for each in alone]


def _done_together(
    transaction: Transaction, kind: type[Common], crowd: Sequence[tuple[Common, asyncio.Future[Any]]]
) -> Iterator[Settled]:
    if len(crowd) == 1:
        yield _done(transaction, *crowd[0])
        return
    try:
        answers = kind.together(transaction, [work for work, _ in crowd])
    except Exception as exc:
        raise _Spoilt from exc
    for (_, future), answer in zip(crowd, answers, strict=True):
        is_error = isinstance(answer, Exception)
        yield future, None if is_error else answer, answer if is_error else None


def _done(transaction: Transaction, work: Work, future: asyncio.Future[Any]) -> Settled:
    before = transaction.connection.total_changes
    try:
        return future, work(transaction), None
    except sqlite3.Error as exc:
        raise _Spoilt from exc
    except Exception as exc:
        if transaction.connection.total_changes != before:
            raise _Spoilt from exc
        return future, None, exc
