"""Reads and writes of an open database, and SQLite's errors as store errors.

Reads run on the event loop: they take microseconds, and in WAL mode they never wait for
the writer. Writes of a file run in one thread, which groups waiting writes into one
transaction; those of a database in memory run on the event loop.

A unit of work is a function of a `SqliteTransaction`. It should read before it
writes: a unit that raises after writing makes its whole group run a second time,
each unit in a transaction of its own.

The NATS store repeats the writing statements of a unit on other nodes. So their text has one meaning everywhere: the
time and random values are parameters, and a statement that changes only some rows says by ORDER BY which ones.

What holds for both writers:
- A unit's result is handed out only after COMMIT returned, so what a caller was told is on disk.
- A unit that raises has written nothing; the other units of its group are not affected.
- Topics are posted after the commit that changed them and before any caller learns its result."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from a2a_fabric.core.errors import (
    CallTimeout,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.stores.changes import set_outcome
from a2a_fabric.stores.rows import build_unstorable

T = TypeVar("T")
Row = tuple[Any, ...]
Values = tuple[Any, ...] | dict[str, Any]

MEMORY_ADDRESS = "memory:"
_MAX_GROUP = 512  # units of work in one transaction
_MAX_WAITING = 20_000  # units of work that may wait
_TIMEOUT = 30.0


# What Python cannot hand to SQLite: numbers beyond 64 bits, text that is not Unicode.
UNSTORABLE = (OverflowError, UnicodeEncodeError)

_BY_CODE: dict[int, Callable[[str, str], StoreError]] = {
    sqlite3.SQLITE_BUSY: lambda address, reason: _build_busy(address),
    sqlite3.SQLITE_LOCKED: lambda address, reason: _build_busy(address),
    sqlite3.SQLITE_PROTOCOL: lambda address, reason: _build_busy(address),
    sqlite3.SQLITE_FULL: lambda address, reason: StoreFull(address),
    sqlite3.SQLITE_READONLY: lambda address, reason: StoreReadOnly(address),
    sqlite3.SQLITE_PERM: lambda address, reason: StoreReadOnly(address),
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_CANTOPEN: lambda address, reason: StoreUnusable(
        f"{address} cannot be opened: it must be a file, and its folder must exist and be writable",
        store=address,
    ),
    sqlite3.SQLITE_IOERR: lambda address, reason: StoreUnavailable(
        f"Reading or writing {address} failed ({reason}), so nothing was acknowledged. Check the disk", store=address
    ),
}


def translate(error: BaseException, address: str) -> BaseException:
    """The FabricError for an error of SQLite or an unstorable value; any other error is returned as it is."""
    if isinstance(error, UNSTORABLE):
        return build_unstorable(address, str(error))
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    build_error = _BY_CODE.get(code & 0xFF) if code is not None else None
    return build_error(address, str(error)) if build_error else StoreError(f"{address}: {error}", store=address)


def _build_busy(address: str) -> StoreError:
    return StoreBusy(
        f"{address} is locked by another program (a backup, a shell with an open transaction?); try again",
        store=address,
    )


class SqliteReader:
    """Reads raise StoreError. A value that SQLite cannot store (see UNSTORABLE) matches no row."""

    def __init__(self, connection: sqlite3.Connection, address: str) -> None:
        self._connection = connection
        self._address = address

    def fetch_all(self, sql: str, values: Values = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except UNSTORABLE:
            return []
        except sqlite3.Error as exc:
            raise translate(exc, self._address) from exc

    def fetch_one(self, sql: str, values: Values = ()) -> Row | None:
        rows = self.fetch_all(sql, values)
        return rows[0] if rows else None

    @contextmanager
    def iterate_rows(self, sql: str, values: Values = ()) -> Iterator[Iterator[Row]]:
        """Rows one by one, for results of which only a part may fit into memory."""
        cursor = self._connection.cursor()
        try:
            try:
                rows: Iterator[Row] = cursor.execute(sql, values)
            except UNSTORABLE:
                rows = iter(())
            yield rows
        except sqlite3.Error as exc:
            raise translate(exc, self._address) from exc
        finally:
            cursor.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see the database at one moment. Do not await inside."""
        self.fetch_all("BEGIN")
        try:
            yield
        finally:
            self.fetch_all("COMMIT")


class SqliteTransaction:
    """What a unit of work sees: the connection, the time, and the topics to post after the commit."""

    __slots__ = ("connection", "execute", "executemany", "now", "topics")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.now = now
        self.topics: set[str] = set()


Work = Callable[[SqliteTransaction], Any]
PendingWork = tuple[Work, "asyncio.Future[Any]"]
FinishedWork = tuple["asyncio.Future[Any]", Any]  # the unit's future, and its result or the error it raised


class BatchedWork(ABC):
    """A unit of work that costs less when several are done together. A group does its batches first."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, tx: SqliteTransaction, /) -> Any: ...

    @staticmethod
    @abstractmethod
    def run_batch(tx: SqliteTransaction, batch: Sequence[Any], /) -> Sequence[Any]:
        """The result of each, or an Exception in its place: then nothing of that unit was written."""


class Writer(Protocol):
    """Belongs to the event loop in which it was created."""

    async def run(self, work: Callable[[SqliteTransaction], T]) -> T:
        """What the work returns, once it is on disk. Raises what the work raises, and StoreError."""
        ...

    async def run_announced(self, topic: str, work: Callable[[SqliteTransaction], T]) -> T:
        """As `run`, for work that changes this topic; the writer posts the topic itself."""
        ...

    def expects(self, topic: str) -> bool:
        """Whether work that changes this topic was requested and may not be on disk yet."""
        ...

    async def aclose(self) -> None: ...


class MemoryWriter:
    """Each unit is one transaction on the event loop, complete before `run` yields: there is no disk to wait for."""

    def __init__(
        self, connection: sqlite3.Connection, clock: Callable[[], float], on_commit: Callable[[set[str]], None]
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._on_commit = on_commit
        self._is_open = True

    async def run(self, work: Callable[[SqliteTransaction], T]) -> T:
        return self._run(work, set())

    async def run_announced(self, topic: str, work: Callable[[SqliteTransaction], T]) -> T:
        return self._run(work, {topic})

    def expects(self, topic: str) -> bool:
        return False

    async def aclose(self) -> None:
        self._is_open = False

    def _run(self, work: Callable[[SqliteTransaction], T], topics: set[str]) -> T:
        if not self._is_open:
            raise StoreUnavailable(f"{MEMORY_ADDRESS} is closed", store=MEMORY_ADDRESS)
        transaction = SqliteTransaction(self._connection, self._clock())
        try:
            result = _run_in_transaction(self._connection, lambda: work(transaction))
        except Exception as exc:
            error = translate(exc, MEMORY_ADDRESS)
            if error is exc:
                raise
            raise error from exc
        self._on_commit(transaction.topics | topics)
        return result


class FileWriter:
    """Writes through a thread of its own. `on_commit` is called on the event loop with the topics of each commit.

    `check_file` raises StoreError if the file is no longer the one that was opened. It runs before a group is
    written and again after the commit, so a write is acknowledged only if the next start will find it.

    `run_announced` posts its topic at once, before the write. A reader that asks in return waits behind the write,
    mostly in the same transaction; that saves a flush between accepting a job and claiming it.
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
        self._pending: list[PendingWork] = []  # requested in this turn of the event loop
        self._expected: Counter[str] = Counter()
        self._waiting_count = 0
        self._is_open = True
        self._thread = threading.Thread(target=self._run_thread, name="sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[SqliteTransaction], T]) -> T:
        if not self._is_open:
            raise StoreUnavailable(f"{self._address} is closed", store=self._address)
        if self._waiting_count >= _MAX_WAITING:
            raise StoreBusy(
                f"{self._address} has {_MAX_WAITING} writes waiting already; try again", store=self._address
            )
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._submit_pending)  # all requests of this turn become one group
        self._pending.append((work, future))
        self._waiting_count += 1
        try:
            with Deadline(_TIMEOUT):
                return await future
        except CallTimeout as exc:
            raise StoreBusy(f"{self._address} did not write within {_TIMEOUT:g} s", store=self._address) from exc

    async def run_announced(self, topic: str, work: Callable[[SqliteTransaction], T]) -> T:
        self._expected[topic] += 1
        self._on_commit({topic})
        try:
            return await self.run(work)
        finally:
            self._expected[topic] -= 1

    def expects(self, topic: str) -> bool:
        return self._expected[topic] > 0

    async def aclose(self) -> None:
        """Finish all requested writes."""
        if self._is_open:
            self._is_open = False
            self._submit_pending()
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, _TIMEOUT)

    def _submit_pending(self) -> None:
        if self._pending:
            self._queue.put(self._pending)
            self._pending = []

    # From here to `_post_results`, code runs in the writer thread, which alone uses the connection.

    def _run_thread(self) -> None:
        while (group := self._take_group()) is not None:
            for start in range(0, len(group), _MAX_GROUP):
                self._commit(group[start : start + _MAX_GROUP])

    def _take_group(self) -> list[PendingWork] | None:
        group = self._queue.get()
        while group is not None and len(group) < _MAX_GROUP:
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
            self._post_results(*self._run_group(group), len(group))
        except GroupFailed as exc:
            if len(group) == 1:
                self._post_results([(group[0][1], exc.__cause__)], set(), 1)
                return
            for each in group:  # nothing is written yet; alone, only the unit that fails is lost
                self._commit([each])
        except Exception as exc:
            self._post_results([(future, exc) for _, future in group], set(), len(group))

    def _run_group(self, group: list[PendingWork]) -> tuple[list[FinishedWork], set[str]]:
        """One transaction. Raises GroupFailed, StoreError or sqlite3.Error; then nothing of it was written."""
        self._check_file()
        transaction = SqliteTransaction(self._connection, self._clock())
        pending = [each for each in group if not each[1].done()]  # a cancelled caller's work is not begun
        finished = _run_in_transaction(self._connection, lambda: run_units(transaction, pending))
        self._check_file()
        return finished, transaction.topics

    def _post_results(self, finished: list[FinishedWork], topics: set[str], count: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set_results, finished, topics, count)
        except RuntimeError:
            pass  # the event loop was closed, and every caller with it

    def _set_results(self, finished: list[FinishedWork], topics: set[str], count: int) -> None:
        self._waiting_count -= count
        if topics:
            self._on_commit(topics)
        for future, result in finished:
            set_outcome(future, translate(result, self._address) if isinstance(result, BaseException) else result)


class FileReplacedCheck:
    """Notices that the open file was removed or replaced. Create it right after opening the file.

    SQLite would go on writing to the removed file, and every acknowledged write would be lost at the next start.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address
        self._identity = self._read_identity()

    def check(self) -> None:
        """Raises StoreUnusable."""
        if self._read_identity() != self._identity:
            raise StoreUnusable(
                f"{self._address} was removed or replaced while the node uses it, so nothing more is written. "
                "Put the file back, or restart the node to continue with the file that is there now",
                store=self._address,
            )

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class GroupFailed(Exception):
    """A unit failed after it had written: the group has to be rolled back. The cause is the unit's error."""


def _run_in_transaction(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def run_units(transaction: SqliteTransaction, group: Sequence[PendingWork]) -> list[FinishedWork]:
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
        raise GroupFailed from exc
    yield from zip((future for _, future in batch), results, strict=True)


def _run_one(transaction: SqliteTransaction, work: Work, future: asyncio.Future[Any]) -> FinishedWork:
    before = transaction.connection.total_changes
    try:
        return future, work(transaction)
    except sqlite3.Error as exc:
        raise GroupFailed from exc
    except Exception as exc:
        if transaction.connection.total_changes != before:
            raise GroupFailed from exc
        return future, exc
