"""PostgreSQL's errors translated into store errors, and the retry for those that pass by themselves.

is_connection_lost  the server is away, restarting, or no longer the primary: try again soon, on another connection
is_rolled_back      the server rolled back the transaction (a deadlock, a lock timeout): try it again

`ServerRetry` makes callers wait for a lost server up to a timeout. Once the server
has been away for longer than that, callers get the error after one attempt."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from a2a_fabric.core.errors import (
    STORE_AWAY,
    STORE_BACK,
    BadInput,
    FabricError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnusable,
)
from a2a_fabric.stores.rows import build_unstorable


class RestartTransaction(Exception):
    """Raised by a unit of work that lost a race against another node: roll back and run it again."""


class CommitUnknown(Exception):
    """The connection broke during COMMIT, so it is not known whether the transaction was committed."""


_LOST_STATES = (
    "08",  # connection exceptions, including those of a pooler
    "57P0",  # shutting down, crashed, starting up
    "53300",  # too many connections
    "25006",  # read-only: the server has become a standby
    "25P03",  # idle for too long inside a transaction
    "26000", "42P05",  # a prepared statement is missing or exists already in this session
)  # fmt: skip
_ROLLED_BACK_STATES = ("40", "55P03", "57014")

_BY_STATE: dict[str, Callable[[str, str], FabricError]] = {
    "22": build_unstorable,
    "54": lambda address, reason: BadInput(f"This request is longer than {address} can store: {reason}"),
    "53100": lambda address, reason: StoreFull(address),
    "53": lambda address, reason: StoreBusy(f"{address} is short of resources ({reason}); try again", store=address),
    "58": lambda address, reason: StoreUnavailable(f"{address} reports a system error ({reason})", store=address),
    "XX": StoreCorrupt,
    "28": lambda address, reason: StoreUnusable(f"{address} refused the login: {reason}", store=address),
    "3D": lambda address, reason: StoreUnusable(
        f"{address}: {reason}. Create it, or name another one with --store", store=address
    ),
    "42501": lambda address, reason: StoreUnusable(
        f"{address}: {reason}. This user needs CREATE on the database, or all rights in the schema a2a_fabric",
        store=address,
    ),
    "42": lambda address, reason: StoreUnusable(
        f"{address} was changed by another program ({reason}): restore a copy, or begin with an empty database",
        store=address,
    ),
}  # fmt: skip


def is_connection_lost(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "").startswith(_LOST_STATES)
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # those are bad values and settings; the rest: closed under us
    return isinstance(error, OSError | TimeoutError | CommitUnknown | asyncpg.InternalClientError)


def is_rolled_back(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.InvalidCachedStatementError):
        return str(error.sqlstate or "").startswith(_ROLLED_BACK_STATES)
    return isinstance(error, RestartTransaction | asyncpg.InvalidCachedStatementError)


def translate(error: BaseException, safe_address: str) -> FabricError:
    """The FabricError for an error of PostgreSQL, asyncpg or the address."""
    reason = str(error).strip() or type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        state = str(error.sqlstate or "")
        for length in (5, 3, 2):
            if build_error := _BY_STATE.get(state[:length]):
                return build_error(safe_address, reason)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return StoreUnusable(f"{safe_address} is not a usable address: {reason}", store=safe_address)
    if isinstance(error, asyncpg.InterfaceError):
        return build_unstorable(safe_address, reason)
    if isinstance(error, ValueError):  # its text may hold a part of the password
        return StoreUnusable(
            f"{safe_address} is not a usable address: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
            "with every character of the password that is not a letter or digit as %XX",
            store=safe_address,
        )
    return StoreError(f"{safe_address}: {reason}", store=safe_address)


def build_unavailable(error: BaseException, safe_address: str, elapsed: float, advice: str) -> StoreUnavailable:
    """`advice` is the end of the sentence: what happens next, or what to check."""
    reason = str(error).strip() or type(error).__name__
    error_class = StoreBusy if is_rolled_back(error) else StoreUnavailable
    doubt = " (it is not known whether this was written)" if isinstance(error, CommitUnknown) else ""
    return error_class(
        f"{safe_address} did not answer within {elapsed:.3g} s{doubt}: {reason}{advice}", store=safe_address
    )


T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

STARTUP_ADVICE = ". Is it running, and is the address right?"

log = logging.getLogger("a2a_fabric.stores.postgres.store")


class ServerRetry:
    """`advice` ends the error sentence: a running node keeps trying, a command that opens the store does not."""

    def __init__(self, timeout: float, safe_address: str, advice: str = "; the node keeps trying") -> None:
        self._timeout = timeout
        self._safe_address = safe_address
        self._advice = advice
        self._unreachable_since: float | None = None

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat the operation until it succeeds or time is up. Raises StoreError, and what the operation raises."""
        clock = asyncio.get_running_loop().time
        started_at, pause = clock(), _FIRST_PAUSE
        while True:
            try:
                result = await operation()
            except FabricError:
                raise
            except Exception as exc:
                self._note_failure(exc, clock())
                if not self._may_wait(exc, started_at, clock()):
                    since = started_at if self._unreachable_since is None else min(started_at, self._unreachable_since)
                    raise build_unavailable(exc, self._safe_address, clock() - since, self._advice) from exc
            else:
                self._note_recovery(clock())
                return result
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _note_failure(self, exc: Exception, now: float) -> None:
        """Raises errors that a retry cannot help."""
        if is_rolled_back(exc):
            return
        if not is_connection_lost(exc):
            raise translate(exc, self._safe_address) from exc
        if self._unreachable_since is None:
            self._unreachable_since = now
            reason = str(exc) or type(exc).__name__
            log.warning("%s is away (%s); trying to reconnect", self._safe_address, reason, extra=STORE_AWAY)

    def _note_recovery(self, now: float) -> None:
        if self._unreachable_since is not None:
            seconds = now - self._unreachable_since
            log.warning("%s is back after %.3g s", self._safe_address, seconds, extra=STORE_BACK)
            self._unreachable_since = None

    def _may_wait(self, exc: Exception, started_at: float, now: float) -> bool:
        if now - started_at >= self._timeout:
            return False
        is_recent = self._unreachable_since is None or now - self._unreachable_since < self._timeout
        return is_recent or isinstance(exc, CommitUnknown)
