"""SQLite's errors translated into store errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from a2a_fabric.core.errors import (
    BadInput,
    FabricError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)

_BY_CODE: dict[int, Callable[[str, str], StoreError]] = {
    sqlite3.SQLITE_BUSY: lambda place, why: _build_busy(place),
    sqlite3.SQLITE_LOCKED: lambda place, why: _build_busy(place),
    sqlite3.SQLITE_PROTOCOL: lambda place, why: _build_busy(place),
    sqlite3.SQLITE_FULL: lambda place, why: StoreFull(place),
    sqlite3.SQLITE_READONLY: lambda place, why: StoreReadOnly(place),
    sqlite3.SQLITE_PERM: lambda place, why: StoreReadOnly(place),
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_CANTOPEN: lambda place, why: StoreUnusable(
        f"{place} cannot be opened: it must be a file, and its folder must exist and be writable",
        store=place,
    ),
    sqlite3.SQLITE_IOERR: lambda place, why: StoreUnavailable(
        f"The disk under {place} does not read or write as it should ({why}); nothing was acknowledged", store=place
    ),
}
# What Python cannot hand to SQLite: numbers beyond 64 bits, text that is not Unicode.
UNSTORABLE = (OverflowError, UnicodeEncodeError)


def build_unstorable(error: Exception, address: str) -> FabricError:
    return BadInput(f"This holds text or numbers that {address} cannot keep: {error}")


def translate(error: sqlite3.Error, address: str) -> StoreError:
    """The StoreError that says what to do."""
    code = getattr(error, "sqlite_errorcode", None)
    build_error = _BY_CODE.get(code & 0xFF) if code is not None else None
    return build_error(address, str(error)) if build_error else StoreError(f"{address}: {error}", store=address)


def _build_busy(address: str) -> StoreError:
    return StoreBusy(
        f"{address} is locked by another program (a backup, a shell with an open transaction?); try again",
        store=address,
    )
