"""Transactions: statements, groups of writes, advisory locks, commit markers, the time-out of hung transactions.

Commit markers: each writing transaction writes its number into a slot of its own.
Reading a slot with FOR UPDATE waits for a transaction that still holds it, so after
a lost connection the answer to "was it committed?" is final. A slot is used again
only when its last transaction is known to be over.

A statement that is a transaction by itself writes its marker in its first part. Its
connection may break before the server has begun it, so reading the slot would not be
final: the slot is fenced with a higher number, under which the statement writes nothing
any more.

Hung transactions: a node that was stopped or swapped out in the middle of a
transaction would keep its locks. So the server ends a transaction whose client has
been silent for a while, and the other nodes terminate those whose client does not
read its results. To its own node either looks like a broken connection, and the
work is repeated."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Generic, TypeVar

import msgspec

from a2a_fabric.core.errors import CallTimeout, FabricError, StoreBusy, StoreUnavailable
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.stores.changes import set_outcome

_IDLE_TIMEOUT = 3.0  # seconds; a running node needs far less between two statements

SET_IDLE_TIMEOUT = f"SET LOCAL idle_in_transaction_session_timeout = {int(_IDLE_TIMEOUT * 1000)}"
BEGIN = f"BEGIN; {SET_IDLE_TIMEOUT}"

# Transactions that wait for their client longer ($1 seconds) than a node waits for an answer.
TERMINATE_HUNG = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
AND wait_event_type = 'Client' AND xact_start IS NOT NULL
AND query_start < clock_timestamp() - make_interval(secs => $1)
AND pid IN (
    SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
    WHERE relnamespace = 'a2a_fabric'::regnamespace
)
"""
HUNG_FACTOR = 1.5  # times the statement timeout

# Returns the server's clock, which nearly every transaction needs first.
WRITE_MARKER = """
INSERT INTO a2a_fabric.marks AS known (place, mark, at) VALUES ($1, $2, extract(epoch FROM clock_timestamp())::float8)
ON CONFLICT (place) DO UPDATE SET mark = excluded.mark, at = excluded.at WHERE known.mark < excluded.mark RETURNING at
"""
READ_MARKER = "SELECT mark FROM a2a_fabric.marks WHERE place = $1 FOR UPDATE"
# Returns the number of the statement ($2) if it was committed, else a higher one ($3), which it cannot overtake.
FENCE_MARKER = """
INSERT INTO a2a_fabric.marks AS known (place, mark, at) VALUES ($1, $3, extract(epoch FROM clock_timestamp())::float8)
ON CONFLICT (place) DO UPDATE SET mark = CASE known.mark WHEN $2 THEN known.mark ELSE excluded.mark END
RETURNING mark, at
"""
DELETE_OLD_MARKERS = "DELETE FROM a2a_fabric.marks WHERE at < extract(epoch FROM clock_timestamp())::float8 - 86400"


class CommitMarker(msgspec.Struct, frozen=True):
    slot: str
    number: int


class CommitMarkers:
    """The slots of one node; as many as it has had transactions at the same time."""

    def __init__(self) -> None:
        self._node_id = new_id()
        self._free_slots: list[str] = []
        self._numbers = count(1)
        self._slot_numbers = count(1)

    def take(self) -> CommitMarker:
        slot = self._free_slots.pop() if self._free_slots else f"{self._node_id}:{next(self._slot_numbers)}"
        return CommitMarker(slot, self.next_number())

    def next_number(self) -> int:
        """Higher than all numbers that were taken."""
        return next(self._numbers)

    def release(self, marker: CommitMarker) -> None:
        """Call this only when the transaction is known to be committed or rolled back."""
        self._free_slots.append(marker.slot)


Row = Any  # a row of asyncpg: a tuple that also knows its column names


class SingleStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction of one statement, which costs one round trip.

    `sql` begins with the part `mark` of `build_single_statement`, from which all other parts read, and returns the
    server's clock (`mark.at`) and the columns of what was written; one row with NULLs if that is nothing.
    `recovery` returns the same rows later, from that clock as $1, if the answer to a committed statement was lost.
    """

    sql: str
    values: Sequence[Any]  # from $3 on
    recovery: str
    recovery_values: Sequence[Any]  # from $2 on


def build_single_statement(parts: str) -> str:
    """The statement with its commit marker as the part `mark`; $1 and $2 are the marker's."""
    return f"WITH mark AS ({WRITE_MARKER}), {parts}"


class PostgresTransaction:
    __slots__ = ("_connection", "has_written", "marker", "now", "topics")

    def __init__(self, connection: Any, marker: CommitMarker, now: float) -> None:
        self._connection = connection
        self.marker = marker
        self.now = now
        self.has_written = False
        self.topics: set[str] = set()

    @classmethod
    async def begin(cls, connection: Any, command: str, marker: CommitMarker) -> PostgresTransaction:
        await connection.execute(command)
        return cls(connection, marker, await connection.fetchval(WRITE_MARKER, marker.slot, marker.number))

    async def finish(self) -> None:
        """A transaction that wrote nothing rolls back, which waits for no flush to the disk."""
        await self._connection.execute("COMMIT" if self.has_written else "ROLLBACK")

    async def execute(self, sql: str) -> None:
        """Run a command without values."""
        await self._connection.execute(sql)

    async def fetch_all(self, sql: str, *values: Any) -> list[Row]:
        return list(await self._connection.fetch(sql, *values))

    async def fetch_one(self, sql: str, *values: Any) -> Row | None:
        return await self._connection.fetchrow(sql, *values)

    async def write(self, sql: str, *values: Any) -> list[Row]:
        """Run a statement that writes; returns its rows."""
        self.has_written = True
        return list(await self._connection.fetch(sql, *values))


_LOCK_NAMESPACE = 0x0A2AFAB  # keeps our advisory locks apart from those of other programs in this database
MIGRATION_LOCK, CLAIM_LOCK, AGENTS_LOCK, KEYS_LOCK = 1, 2, 3, 4


def build_lock_query(lock_id: int) -> str:
    return f"SELECT pg_advisory_xact_lock({_LOCK_NAMESPACE}, {lock_id})"


async def acquire_lock(tx: PostgresTransaction, lock_id: int) -> None:
    """Wait for the lock; it is released when the transaction ends."""
    await tx.fetch_one(build_lock_query(lock_id))


def unnest_parameters(types: Sequence[str], first: int = 1) -> str:
    """The parameters of `unnest`, one array per column."""
    return ", ".join(f"${index}::{kind}[]" for index, kind in enumerate(types, first))


def to_columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """One list of values per column."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

_MAX_ITEMS = 512
_MAX_BYTES = 8 << 20
_MAX_WAITING = 20_000
_GROUP_TIMEOUT = 60.0


class GroupCommit(Generic[I, A]):
    """Writes of one kind that come at the same time share one transaction and one flush to the disk.

    `write` gets the items of one group and returns a result or an error for each, in order. One group is written
    at a time while the next one collects, so the order of the requests is kept. A caller gets its result only
    after its group was committed.
    """

    def __init__(self, safe_address: str, write: Callable[[Sequence[I]], Awaitable[Sequence[A | FabricError]]]) -> None:
        self._safe_address = safe_address
        self._write = write
        self._queue: deque[tuple[I, int, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_open = True

    async def add(self, item: I, size: int = 0) -> A:
        """The item's result, once its group is on disk. `size` in bytes keeps groups from growing too large."""
        if not self._is_open:
            raise StoreUnavailable(f"{self._safe_address} is closed", store=self._safe_address)
        if len(self._queue) >= _MAX_WAITING:
            raise StoreBusy(
                f"{self._safe_address} has {_MAX_WAITING} writes waiting already; try again", store=self._safe_address
            )
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue.append((item, size, future))
        if self._task is None:
            self._task = asyncio.create_task(self._write_groups())
        try:
            with Deadline(_GROUP_TIMEOUT):
                return await future
        except CallTimeout as exc:
            raise StoreBusy(
                f"{self._safe_address} did not write within {_GROUP_TIMEOUT:g} s", store=self._safe_address
            ) from exc

    async def aclose(self) -> None:
        self._is_open = False
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_GROUP_TIMEOUT)

    async def _write_groups(self) -> None:
        try:
            while True:
                await asyncio.sleep(0)  # callers that just got a result may add their next item
                group = self._take_group()
                if not group:
                    return
                await self._write_group(group)
        finally:
            self._task = None

    def _take_group(self) -> list[tuple[I, asyncio.Future[A]]]:
        group: list[tuple[I, asyncio.Future[A]]] = []
        budget = _MAX_BYTES
        while self._queue and len(group) < _MAX_ITEMS and (budget > 0 or not group):
            item, size, future = self._queue.popleft()
            if not future.done():  # a cancelled caller's work is not begun
                group.append((item, future))
                budget -= size
        return group

    async def _write_group(self, group: list[tuple[I, asyncio.Future[A]]]) -> None:
        results: Sequence[A | Exception]
        try:
            results = await self._write([item for item, _ in group])
        except StoreUnavailable as exc:
            results = [exc] * len(group)
        except Exception as exc:
            if len(group) > 1:  # nothing was written; alone, only the item that fails is lost
                for each in group:
                    await self._write_group([each])
                return
            results = [exc]
        for (_, future), result in zip(group, results, strict=True):
            set_outcome(future, result)
