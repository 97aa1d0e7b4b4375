"""Connections to the server: borrowed for one read or one transaction, made anew when they break.

Nothing is kept in a session, so a pooler that gives every transaction another
one may stand between. Whoever comes while the server is away waits a little. A
connection that breaks while committing leaves a doubt; then it is looked up what
became of that transaction, so that no write is done twice and none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.store_errors import StoreBusy, StoreUnavailable
from a2a_fabric.stores.postgres import marks
from a2a_fabric.stores.postgres.errors import Unsure, is_lost
from a2a_fabric.stores.postgres.hosts import Hosts
from a2a_fabric.stores.postgres.marks import Mark, Marks
from a2a_fabric.stores.postgres.patience import Patience
from a2a_fabric.stores.postgres.settings import PostgresSettings
from a2a_fabric.stores.postgres.stalled import BEGIN
from a2a_fabric.stores.postgres.transaction import Row, Transaction

T = TypeVar("T")

_WAITING = 20_000  # callers that may wait for a connection
_LETTING_GO = 1.0  # seconds for the server to hear that nobody waits for its answer; then the connection is dropped


# Every query of ours has its index, whatever the tables hold, and what is to be in order is in order there. So
# nothing is left to what the planner believes of tables that it saw empty or never counted.
_BY_INDEX = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"}
_PLANNED_ONCE: dict[str, Any] = {
    "statement_cache_size": 256,
    "max_cached_statement_lifetime": 0,
    "server_settings": {
        "application_name": "a2a-fabric",
        "plan_cache_mode": "force_generic_plan",
        **_BY_INDEX,
    },
}
# A pooler keeps neither statements nor settings for us: they are said with each transaction.
_PLANNED_EACH_TIME: dict[str, Any] = {"statement_cache_size": 0}
_BEGIN_POOLED = "; ".join((BEGIN, *(f"SET LOCAL {name} = {value}" for name, value in _BY_INDEX.items())))


async def connect(settings: PostgresSettings, address: str | None = None) -> Any:
    """One connection. Raises what asyncpg and the sockets raise."""
    return await Hosts(address or settings.address).connect(**_options(settings), **_PLANNED_EACH_TIME)


def _options(settings: PostgresSettings) -> dict[str, Any]:
    return {"timeout": max(1.0, settings.patience / 2), "command_timeout": settings.statement_timeout}


class Connections:
    """Belongs to the event loop in which it was made. `rang` is called with the topics of each commit."""

    def __init__(self, settings: PostgresSettings, pool: Any, is_pooled: bool) -> None:
        self.settings = settings
        self.place = settings.place
        self._pool = pool
        self._is_pooled = is_pooled
        self._begin = _BEGIN_POOLED if is_pooled else BEGIN
        self.rang: Callable[[set[str]], None] = lambda topics: None
        self._marks = Marks()
        self._patience = Patience(settings.patience, settings.place)
        self._waiting = 0
        self._is_open = True

    @classmethod
    async def open(cls, settings: PostgresSettings, is_pooled: bool) -> Connections:
        """No connection is made yet. `is_pooled` if there is a pooler between us and the server."""
        hosts = Hosts(settings.address)

        async def connected(*_: Any, **options: Any) -> Any:
            return await hosts.connect(**options)

        pool = await asyncpg.create_pool(
            min_size=0,
            max_size=settings.connections,
            connect=connected,
            reset=_leave_as_it_is,
            **_options(settings),
            **(_PLANNED_EACH_TIME if is_pooled else _PLANNED_ONCE),
        )
        return cls(settings, pool, is_pooled)

    async def read(self, sql: str, *values: Any) -> list[Row]:
        """What one query finds. Text that cannot be kept is found nowhere."""
        try:
            return await self._patience.attempt(lambda: self._read(sql, values))
        except BadInput:
            return []

    async def read_one(self, sql: str, *values: Any) -> Row | None:
        rows = await self.read(sql, *values)
        return rows[0] if rows else None

    async def write(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """What the work returns, once it is on disk. It may be run several times; only one of them counts."""
        doubtful: list[tuple[T, Transaction]] = []  # at most one commit of which we heard nothing

        async def once() -> T:
            if doubtful:
                answer, transaction = doubtful[0]
                if await self._is_committed(transaction):
                    self.rang(transaction.topics)
                    return answer
                doubtful.clear()
            return await self._transact(work, lambda *doubt: doubtful.append(doubt))

        return await self._patience.attempt(once)

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            await asyncio.wait_for(self._pool.close(), 5.0)
        except Exception:  # it goes away either way
            self._pool.terminate()

    async def _transact(
        self, work: Callable[[Transaction], Awaitable[T]], doubt: Callable[[T, Transaction], None]
    ) -> T:  # fmt: skip
        """`doubt` is told of a commit after which the connection broke."""
        async with self._borrowed() as connection, self._marked() as mark, _undone_on_error(connection):
            transaction = await Transaction.begin(connection, self._begin, mark)
            answer = await work(transaction)
            try:
                await transaction.end()
            except Exception as exc:
                if not transaction.has_written or not is_lost(exc):
                    raise
                doubt(answer, transaction)
                raise Unsure(str(exc)) from exc
        self.rang(transaction.topics)
        return answer

    @asynccontextmanager
    async def _marked(self) -> AsyncIterator[Mark]:
        """A mark whose place is free again afterwards, unless the server may still be at it."""
        mark = self._marks.take()
        try:
            yield mark
        except BaseException as exc:
            if isinstance(exc, Exception) and not is_lost(exc):
                self._marks.give_back(mark)
            raise
        self._marks.give_back(mark)

    async def _read(self, sql: str, values: tuple[Any, ...]) -> list[Row]:
        async with self._borrowed() as connection:
            if not self._is_pooled:
                return list(await connection.fetch(sql, *values))
            async with _undone_on_error(connection):
                await connection.execute(self._begin)  # parsing and running have to meet the same session
                rows = await connection.fetch(sql, *values)
                await connection.execute("COMMIT")
            return list(rows)

    async def _is_committed(self, transaction: Transaction) -> bool:
        """Waits for the server to be done with it."""
        mark = transaction.mark
        try:
            rows = await self._read(marks.ASK, (mark.place,))
        except Exception as exc:
            raise Unsure(str(exc)) from exc
        self._marks.give_back(mark)
        return bool(rows and rows[0][0] == mark.number)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Any]:
        connection = await self._acquired()
        try:
            yield connection
        except Exception as exc:
            if is_lost(exc):
                await self._pool.expire_connections()  # the others lead to the same place
            raise
        finally:
            with suppress(Exception):  # that it broke right afterwards changes nothing of what was done on it
                await self._pool.release(connection, timeout=_LETTING_GO)

    async def _acquired(self) -> Any:
        if not self._is_open:
            raise StoreUnavailable(f"{self.place} is closed", store=self.place)
        if self._waiting >= _WAITING:
            raise StoreBusy(f"{self.place} has {_WAITING} callers waiting already; try again", store=self.place)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=2 * self.settings.patience)
        finally:
            self._waiting -= 1


@asynccontextmanager
async def _undone_on_error(connection: Any) -> AsyncIterator[None]:
    try:
        yield
    except (asyncio.CancelledError, TimeoutError):
        _drop(connection)  # sooner done than waiting for the server to agree; it may say nothing at all any more
        raise
    except BaseException:
        await _roll_back(connection)
        raise


async def _roll_back(connection: Any) -> None:
    try:
        await connection.execute("ROLLBACK", timeout=5.0)
    except Exception:
        _drop(connection)


def _drop(connection: Any) -> None:
    with suppress(asyncpg.InterfaceError):  # it has broken by itself
        connection.terminate()


async def _leave_as_it_is(connection: Any) -> None:
    """Nothing of ours stays in a session, so nothing has to be reset."""
