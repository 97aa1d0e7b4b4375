"""A look at a file's schema that changes nothing, not even by making the file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from a2a_fabric.core.store_errors import StoreUnusable
from a2a_fabric.stores.migrate import SchemaLook, looked
from a2a_fabric.stores.sqlite.errors import translate
from a2a_fabric.stores.sqlite.opening import refuse_strangers, schema_of

_PATIENCE = 10.0


async def look(address: str) -> SchemaLook | None:
    """None if there is no such file. Raises StoreError."""
    path = Path(address.removeprefix("sqlite:"))
    try:
        return await asyncio.to_thread(_look, path, address)
    except sqlite3.Error as exc:
        raise translate(exc, address) from exc


def _look(path: Path, place: str) -> SchemaLook | None:
    if not path.exists():
        return None
    if path.is_dir():
        raise StoreUnusable(f"{place} is a folder; name a file in it", store=place)
    name = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(name, uri=True, timeout=_PATIENCE)) as connection:
        refuse_strangers(connection, place)
        return looked("sqlite", schema_of(connection), place)
