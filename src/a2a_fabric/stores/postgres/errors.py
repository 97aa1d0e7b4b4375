"""PostgreSQL's own complaints, as ours, and which of them pass by themselves.

is_lost       the server is away, restarting, or no longer the one that may be written to: try again soon,
              on another connection
is_refused    the server undid the transaction (a deadlock, a lock that did not come): try it again
"""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.core.store_errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnusable,
)


class Again(Exception):
    """Raised by a piece of work that found the world changed under it: undo it all and begin anew."""


class Unsure(Exception):
    """The connection broke while committing: whether it did is to be found out."""


_LOST_STATES = (
    "08",  # connection exceptions, a pooler's complaints among them
    "57P0",  # shutting down, crashed, starting up
    "53300",  # too many connections
    "25006",  # read-only: it has become a standby
    "25P03",  # idle for too long inside a transaction
    "26000", "42P05",  # a prepared statement that is not where we thought
)  # fmt: skip
_REFUSED_STATES = ("40", "55P03", "57014")

_BY_STATE: dict[str, Callable[[str, str], FabricError]] = {
    "22": lambda place, why: BadInput(f"This holds text or numbers that {place} cannot keep: {why}"),
    "54": lambda place, why: BadInput(f"This is longer than {place} can keep: {why}"),
    "53100": lambda place, why: StoreFull(place),
    "53": lambda place, why: StoreBusy(f"{place} is short of resources ({why}); try again", store=place),
    "58": lambda place, why: StoreUnavailable(f"The machine under {place} does not work as it should ({why})"),
    "XX": StoreCorrupt,
    "28": lambda place, why: StoreUnusable(f"{place} does not let us in: {why}", store=place),
    "3D": lambda place, why: StoreUnusable(
        f"{place}: {why}. Create it, or name another one with --store", store=place
    ),
    "42501": lambda place, why: StoreUnusable(
        f"{place}: {why}. This user needs CREATE on the database, or all rights in the schema a2a_fabric", store=place
    ),
    "42": lambda place, why: StoreUnusable(
        f"{place} is not as this program left it ({why}): restore a copy, or begin with an empty database", store=place
    ),
}  # fmt: skip


def is_lost(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "").startswith(_LOST_STATES)
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # those are bad values and settings; the rest: closed under us
    return isinstance(error, OSError | TimeoutError | Unsure | asyncpg.InternalClientError)


def is_refused(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.InvalidCachedStatementError):
        return str(error.sqlstate or "").startswith(_REFUSED_STATES)
    return isinstance(error, Again | asyncpg.InvalidCachedStatementError)


def translate(error: BaseException, place: str) -> FabricError:
    """The error that says what to do."""
    why = str(error).strip() or type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        state = str(error.sqlstate or "")
        for length in (5, 3, 2):
            if made := _BY_STATE.get(state[:length]):
                return made(place, why)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return StoreUnusable(f"{place} is not a usable address: {why}", store=place)
    if isinstance(error, asyncpg.InterfaceError):
        return BadInput(f"This holds text or numbers that {place} cannot keep: {why}")
    if isinstance(error, ValueError):  # its words may hold a part of the password
        return StoreUnusable(
            f"{place} is not a usable address: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
            "and what is neither letter nor digit in the password as %XX",
            store=place,
        )
    return StoreError(f"{place}: {why}", store=place)


def unavailable(error: BaseException, place: str, waited: float, hope: str) -> StoreUnavailable:
    """`hope` says what comes next."""
    why = str(error).strip() or type(error).__name__
    kind = StoreBusy if is_refused(error) else StoreUnavailable
    doubt = " (whether it was written is not known)" if isinstance(error, Unsure) else ""
    return kind(f"{place} did not answer within {waited:.3g} s{doubt}: {why}{hope}", store=place)
