"""`a2a-fabric store export`"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress
from a2a_fabric.cli.output import print_json, remark, reported
from a2a_fabric.cli.store.place import configured, opened_as_it_is
from a2a_fabric.cli.store.tally import Tally
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.stores.transfer import export_lines

_FRAME = 2  # the first line names the format, the last one counts


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; - is stdout.", allow_dash=True)] = Path("-"),
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Write everything in the store as JSON lines.

    The file may hold secrets (of webhooks, and headers of registered agents), so only you can read it.

    Example: a2a-fabric store export backup.jsonl --store sqlite:fabric.db
    """
    if as_json and str(file) == "-":
        raise typer.BadParameter("needs a FILE, since the export itself is on stdout", param_hint="--json")
    with reported(as_json=as_json), closing(Tally("Exported")) as tally:
        _, address = configured(config, store)
        with _target(file) as target:
            asyncio.run(_export(address, target, tally))
    records = tally.count - _FRAME
    if as_json:
        print_json({"ok": True, "file": str(file), "records": records, "bytes": tally.bytes})
    else:
        remark(f"Exported {records} records{'' if str(file) == '-' else f' to {file}'}.")


async def _export(address: str, target: IO[bytes], tally: Tally) -> None:
    async with opened_as_it_is(address) as store, aclosing(export_lines(store.archive)) as lines:
        async for line in lines:
            target.write(line)
            tally.add(len(line))
        target.flush()


@contextmanager
def _target(file: Path) -> Iterator[IO[bytes]]:
    """A file is there whole or not at all."""
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(draft, "xb", opener=_private) as target:
            yield target
            os.fsync(target.fileno())
        draft.replace(file)
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be written: {exc.strerror}") from exc
    finally:
        draft.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
