"""`a2a-fabric store` and `jobs prune`: commands that open the store themselves, also while a node uses it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.node_setup import plan_setup
from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress, parse_duration
from a2a_fabric.cli.output import print_fields, print_json, print_line, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.config import Config, read_environment
from a2a_fabric.core.errors import BadInput, ConfigError, StoreUnusable
from a2a_fabric.core.files import report_write_errors
from a2a_fabric.core.job import PruneResult, RetentionPolicy
from a2a_fabric.core.stores import Store, StoreStatus
from a2a_fabric.node.context import open_store, resolve_store_address
from a2a_fabric.plugins import canonical_kind, load_schema_inspector, load_store
from a2a_fabric.stores.address import kind_from_address, resolve_address
from a2a_fabric.stores.migrate import SchemaStatus
from a2a_fabric.stores.transfer import ImportCounts, export_lines, import_lines


def resolve_store(config_file: Path | None, store: str | None) -> tuple[Config, str]:
    """The configuration, and the address of the named store, else of the configured one. Raises ConfigError."""
    setup = plan_setup(config_file, (), None, read_environment())
    store_config = setup.with_store_in(setup.own_folder or Path()).config
    address = (
        resolve_address(store, Path.cwd()) if store is not None else resolve_store_address(store_config, setup.base)
    )
    load_store(kind_from_address(address))
    if canonical_kind(kind_from_address(address)) == "memory":
        raise ConfigError("store: a store in memory cannot be opened from outside its node. Name a store with --store")
    return setup.config, address


async def inspect_schema(address: str) -> SchemaStatus | None:
    """The schema of a store, without changing anything; None if there is no store. Raises StoreError."""
    status: SchemaStatus | None = await load_schema_inspector(kind_from_address(address))(address)
    return status


@asynccontextmanager
async def open_migrated(address: str) -> AsyncIterator[Store]:
    """Open a store, after creating or migrating it if necessary. Raises StoreError."""
    store = await open_store(address)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def open_unchanged(address: str) -> AsyncIterator[Store]:
    """Open a store that exists and whose schema is current. Raises StoreError."""
    schema = await inspect_schema(address)
    if schema is None:
        raise StoreUnusable(f"There is no store at {address}. Name one with --store", store=address)
    if schema.pending:
        raise StoreUnusable(
            f"{schema.place} has schema {schema.schema}, and {len(schema.pending)} migrations are pending. "
            f"Apply them with: {NAME} store migrate",
            store=schema.place,
        )
    async with open_migrated(address) as store:
        yield store


_REDRAW_INTERVAL = 0.1
_CLEAR = "\r\x1b[2K"


class ProgressCounter:
    """Counts lines and bytes, and shows both on a terminal."""

    def __init__(self, label: str, err: IO[str] | None = None) -> None:
        self._label = label
        self._err = err or sys.stderr
        self._can_draw = self._err.isatty()
        self._drawn_at = 0.0
        self.count = 0
        self.bytes = 0

    def add(self, size: int) -> None:
        self.count += 1
        self.bytes += size
        if self._can_draw and time.monotonic() - self._drawn_at >= _REDRAW_INTERVAL:
            self._drawn_at = time.monotonic()
            self._err.write(f"{_CLEAR}{self._label} {self.count:,} lines, {self.bytes / 1e6:.1f} MB")
            self._err.flush()

    def close(self) -> None:
        """Erase the progress line."""
        if self._drawn_at:
            self._drawn_at = 0.0
            self._err.write(_CLEAR)
            self._err.flush()


def show_store_status(store: StoreAddress = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Show what is in the store, and whether its schema is current.

    Changes nothing: the store is neither created nor migrated.

    Example: a2a-fabric store status --store sqlite:fabric.db
    """
    with report_errors(as_json=as_json):
        _, address = resolve_store(config, store)
        schema, status = asyncio.run(_read_status(address))
    if as_json:
        counts: dict[str, Any] = {} if status is None else msgspec.to_builtins(status)
        print_json({"ok": True, **msgspec.to_builtins(schema), **counts})
    else:
        print_fields(_build_fields(schema, status))


async def _read_status(address: str) -> tuple[SchemaStatus, StoreStatus | None]:
    schema = await inspect_schema(address)
    if schema is not None and schema.pending:
        return schema, None
    async with open_unchanged(address) as store:
        status = await store.status()
    return SchemaStatus(place=status.place, schema=status.schema), status


def _build_fields(schema: SchemaStatus, status: StoreStatus | None) -> list[tuple[str, str]]:
    if status is None:
        pending = f"{schema.schema}; pending: {', '.join(schema.pending)}. Apply with: {NAME} store migrate"
        return [("store", schema.place), ("schema", pending)]
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(status.jobs.items()))
    count = status.bytes or 0
    size = f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
    return [
        ("store", status.place),
        ("schema", f"{status.schema} (current)"),
        ("jobs", jobs or "none"),
        ("agents", str(status.agents)),
        ("messages", str(status.messages)),
        ("size", "" if status.bytes is None else size),
    ]


def migrate_store(store: StoreAddress = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Bring the store's schema up to date.

    A node migrates its store when it starts, so this is seldom needed.

    Example: a2a-fabric store migrate --store sqlite:fabric.db
    """
    with report_errors(as_json=as_json):
        _, address = resolve_store(config, store)
        status, previous = asyncio.run(_migrate(address))
    if as_json:
        print_json({"ok": True, "place": status.place, "schema": status.schema, "was": previous})
    elif previous == 0:
        print_line(f"{status.place} was created with schema {status.schema}.")
    elif previous == status.schema:
        print_line(f"{status.place} is up to date with schema {status.schema}.")
    else:
        print_line(f"{status.place} was migrated from schema {previous} to {status.schema}.")


async def _migrate(address: str) -> tuple[StoreStatus, int]:
    """The store's status, and the schema that it had before: 0 for a new store."""
    before = await inspect_schema(address)
    async with open_migrated(address) as store:
        return await store.status(), before.schema if before else 0


_FRAME_LINES = 2  # the first line names the format, the last one counts


def export_store(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; - is stdout.", allow_dash=True)] = Path("-"),
    with_keys: Annotated[
        bool, typer.Option("--keys", help="Also the keys of callers, to move a node to another store.")
    ] = False,
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Write everything in the store as JSON lines.

    The file may hold secrets of webhooks and registered agents, so only you can read it. Logins are left out, and keys,
    because an old export must not bring revoked keys back; `--keys` takes them along.

    Example: a2a-fabric store export backup.jsonl --store sqlite:fabric.db
    """
    if as_json and str(file) == "-":
        raise typer.BadParameter("needs a FILE, since the export itself is on stdout", param_hint="--json")
    with report_errors(as_json=as_json), closing(ProgressCounter("Exported")) as progress:
        _, address = resolve_store(config, store)
        with _open_target(file) as target:
            left_out = asyncio.run(_export(address, target, progress, with_keys=with_keys))
    records = progress.count - _FRAME_LINES
    if as_json:
        report = {"records": records, "bytes": progress.bytes, "keys_left_out": left_out}
        print_json({"ok": True, "file": str(file), **report})
        return
    remark(f"Exported {records} records{'' if str(file) == '-' else f' to {file}'}.")
    if left_out:
        remark(f"Keys of callers that were left out: {left_out}. To move a node with its keys: store export --keys")


async def _export(address: str, target: IO[bytes], progress: ProgressCounter, *, with_keys: bool) -> int:
    """How many usable keys were left out."""
    async with (
        open_unchanged(address) as store,
        aclosing(export_lines(store.archive, with_keys=with_keys)) as lines,
    ):
        async for line in lines:
            target.write(line)
            progress.add(len(line))
        target.flush()
        now = time.time()
        return 0 if with_keys else sum(key.is_usable(now) for key in await store.keys.list())


@contextmanager
def _open_target(file: Path) -> Iterator[IO[bytes]]:
    """The file appears when it is complete, or not at all."""
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with report_write_errors(file):
            with open(draft, "xb", opener=_open_private) as target:
                yield target
                os.fsync(target.fileno())
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_MAX_LINE = 256 << 20


def import_store(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; - reads stdin.", allow_dash=True)],
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Read an export into the store; existing records stay.

    If an import was interrupted, run it again to complete it. A missing store is created.

    Example: a2a-fabric store import backup.jsonl --store sqlite:copy.db
    """
    with report_errors(as_json=as_json), closing(ProgressCounter("Imported")) as progress:
        _, address = resolve_store(config, store)
        with _open_source(file) as source:
            counts = asyncio.run(_import(address, source, progress))
    if as_json:
        print_json({"ok": True, "file": str(file), "read": counts.read, "new": counts.new})
    else:
        print_line(f"Imported {counts.new} records; {counts.read - counts.new} existed already.")


async def _import(address: str, source: IO[bytes], progress: ProgressCounter) -> ImportCounts:
    async with open_migrated(address) as store:
        return await import_lines(store.archive, _read_lines(source, progress))


def _read_lines(source: IO[bytes], progress: ProgressCounter) -> Iterator[bytes]:
    while line := source.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise BadInput(f"Line {progress.count + 1} is longer than {_MAX_LINE >> 20} MiB")
        progress.add(len(line))
        yield line


@contextmanager
def _open_source(file: Path) -> Iterator[IO[bytes]]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        with file.open("rb") as source:
            yield source
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc


_PRUNE_BATCH = 500


def prune_jobs(
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Jobs that ended before that: 30d, 12h, 90m, 0s. Default: jobs.keep_seconds."
        ),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES", min=0, help="Also the oldest jobs, until this size remains. Default: jobs.keep_bytes."
        ),
    ] = None,
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove ended jobs from the store.

    Removes the jobs of all callers, with their logs and results. Nodes do the same by themselves, as configured.
    Needs access to the store, not to a node.

    Example: a2a-fabric jobs prune --older-than 7d --store sqlite:fabric.db
    """
    age = None if older_than is None else parse_duration(older_than, "--older-than")
    with report_errors(as_json=as_json):
        settings, address = resolve_store(config, store)
        retention = RetentionPolicy(
            max_age=settings.jobs.keep_seconds if age is None else age,
            max_bytes=settings.jobs.keep_bytes if keep_bytes is None else keep_bytes,
        )
        pruned = asyncio.run(_prune(address, retention))
    if as_json:
        print_json({"ok": True, "jobs": pruned.jobs, "bytes": pruned.bytes})
    else:
        print_line(f"Removed {pruned.jobs} jobs, {pruned.bytes / 1e6:.1f} MB.")


async def _prune(address: str, retention: RetentionPolicy) -> PruneResult:
    jobs = size = 0
    async with open_unchanged(address) as store:
        is_done = False
        while not is_done:
            pruned = await store.jobs.prune(retention, _PRUNE_BATCH)
            jobs, size, is_done = jobs + pruned.jobs, size + pruned.bytes, pruned.is_done
    return PruneResult(jobs, size)
