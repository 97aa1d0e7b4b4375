"""`a2a-fabric store import`"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress
from a2a_fabric.cli.output import print_json, print_line, reported
from a2a_fabric.cli.store.place import configured, opened
from a2a_fabric.cli.store.tally import Tally
from a2a_fabric.core.errors import BadInput, ConfigError
from a2a_fabric.stores.transfer import Imported, import_lines

_LINE_BYTES = 256 << 20


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; - reads stdin.", allow_dash=True)],
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Read an export into the store; what is there stays.

    Repeating an import that broke off completes it. The store is made if it is not there.

    Example: a2a-fabric store import backup.jsonl --store sqlite:copy.db
    """
    with reported(as_json=as_json), closing(Tally("Imported")) as tally:
        _, address = configured(config, store)
        with _source(file) as source:
            done = asyncio.run(_import(address, source, tally))
    if as_json:
        print_json({"ok": True, "file": str(file), "read": done.read, "new": done.new})
    else:
        print_line(f"Imported {done.new} records; {done.read - done.new} were there already.")


async def _import(address: str, source: IO[bytes], tally: Tally) -> Imported:
    async with opened(address) as store:
        return await import_lines(store.archive, _lines(source, tally))


def _lines(source: IO[bytes], tally: Tally) -> Iterator[bytes]:
    while line := source.readline(_LINE_BYTES + 1):
        if len(line) > _LINE_BYTES:
            raise BadInput(f"Line {tally.count + 1} is longer than {_LINE_BYTES >> 20} MiB")
        tally.add(len(line))
        yield line


@contextmanager
def _source(file: Path) -> Iterator[IO[bytes]]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        with file.open("rb") as source:
            yield source
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc
