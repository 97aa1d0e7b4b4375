"""Numbered SQL files per engine, each applied once: which are there, and which are still to be applied.

An engine keeps what it has applied in a table `schema_migrations` (number, name,
checksum, applied_at), and reads and writes it under one lock, so that of several
nodes that start together exactly one does the work. Deciding is done here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from a2a_fabric.core.store_errors import SchemaChanged, SchemaTooNew

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    checksum: str
    sql: str


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    checksum: str


class SchemaLook(msgspec.Struct, frozen=True, kw_only=True):
    """A store's schema as it is; `pending` names what a newer program would still apply."""

    place: str
    schema: int
    pending: tuple[str, ...] = ()


@cache
def migrations(engine: str) -> tuple[Migration, ...]:
    """All that this program knows for an engine, in order."""
    folder = files("a2a_fabric.stores").joinpath("sql", engine)
    found = sorted((file for file in folder.iterdir() if _NAME.fullmatch(file.name)), key=lambda file: file.name)
    known = tuple(_read(file) for file in found)
    assert [each.number for each in known] == list(range(1, len(known) + 1)), "numbers without gaps"  # noqa: S101
    return known


def pending(known: Sequence[Migration], applied: Sequence[Applied], place: str) -> Sequence[Migration]:
    """What is left to apply. Raises SchemaTooNew or SchemaChanged; then nothing may be touched."""
    newest = max((each.number for each in applied), default=0)
    if newest > len(known):
        raise SchemaTooNew(place, newest, len(known))
    for ours, theirs in zip(known, sorted(applied, key=lambda each: each.number), strict=False):
        if ours.number != theirs.number or ours.checksum != theirs.checksum:
            raise SchemaChanged(place, theirs.name)
    return known[len(applied) :]


def looked(engine: str, applied: Sequence[Applied], place: str) -> SchemaLook:
    """Raises SchemaTooNew or SchemaChanged."""
    left = pending(migrations(engine), applied, place)
    return SchemaLook(place=place, schema=len(applied), pending=tuple(each.name for each in left))


def _read(file: Traversable) -> Migration:
    sql = file.read_text("utf-8")
    checksum = hashlib.sha256("\n".join(sql.split()).encode()).hexdigest()  # line ends and indents do not count
    return Migration(number=int(file.name[:4]), name=file.name.removesuffix(".sql"), checksum=checksum, sql=sql)
