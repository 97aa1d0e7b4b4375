"""Schema migrations: numbered SQL files per engine, each applied once.

An engine records what it has applied in a table `schema_migrations` (number, name,
checksum, applied_at), and reads and writes that table under one lock, so that of several
nodes that start together exactly one does the work. This module only decides what is pending."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from a2a_fabric.core.errors import SchemaChanged, SchemaTooNew

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    checksum: str
    sql: str


class AppliedMigration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    checksum: str


class SchemaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a store; `pending` names the migrations that this program would still apply."""

    place: str
    schema: int
    pending: tuple[str, ...] = ()


@cache
def load_migrations(engine: str) -> tuple[Migration, ...]:
    """All migrations of this program for an engine, in order."""
    folder = files("a2a_fabric.stores").joinpath("sql", engine)
    sql_files = sorted(
        (file for file in folder.iterdir() if _FILE_NAME.fullmatch(file.name)), key=lambda file: file.name
    )
    loaded = tuple(_read_migration(file) for file in sql_files)
    assert [each.number for each in loaded] == list(range(1, len(loaded) + 1)), "migration numbers have no gaps"  # noqa: S101
    return loaded


def find_pending(
    available: Sequence[Migration], applied: Sequence[AppliedMigration], address: str
) -> Sequence[Migration]:
    """The migrations left to apply. Raises SchemaTooNew or SchemaChanged; then nothing may be changed."""
    newest = max((each.number for each in applied), default=0)
    if newest > len(available):
        raise SchemaTooNew(address, newest, len(available))
    for migration, record in zip(available, sorted(applied, key=lambda each: each.number), strict=False):
        if migration.number != record.number or migration.checksum != record.checksum:
            raise SchemaChanged(address, record.name)
    return available[len(applied) :]


def check_schema(engine: str, applied: Sequence[AppliedMigration], address: str) -> SchemaStatus:
    """Raises SchemaTooNew or SchemaChanged."""
    remaining = find_pending(load_migrations(engine), applied, address)
    return SchemaStatus(place=address, schema=len(applied), pending=tuple(each.name for each in remaining))


def _read_migration(file: Traversable) -> Migration:
    sql = file.read_text("utf-8")
    checksum = hashlib.sha256("\n".join(sql.split()).encode()).hexdigest()  # line ends and indentation do not count
    return Migration(number=int(file.name[:4]), name=file.name.removesuffix(".sql"), checksum=checksum, sql=sql)
