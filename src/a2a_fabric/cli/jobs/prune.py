"""`a2a-fabric jobs prune`"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from a2a_fabric.cli.jobs.moments import seconds_of
from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress
from a2a_fabric.cli.output import print_json, print_line, reported
from a2a_fabric.cli.store.place import configured, opened_as_it_is
from a2a_fabric.core.job import Keep, Pruned

_AT_ONCE = 500


def run(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Ended so long ago: 30d, 12h, 90m, 0s. Default: jobs.keep_seconds."),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=0, help="Then the oldest beyond this size. Default: jobs.keep_bytes."),
    ] = None,
    store: StoreAddress = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Remove ended jobs from the store.

    Everybody's, with their logs and results; nodes do so by themselves by what they are configured with. The store
    is opened by the command itself, so this is for whoever runs it.

    Example: a2a-fabric jobs prune --older-than 7d --store sqlite:fabric.db
    """
    age = None if older_than is None else seconds_of(older_than, "--older-than")
    with reported(as_json=as_json):
        settings, address = configured(config, store)
        keep = Keep(
            max_age=settings.jobs.keep_seconds if age is None else age,
            max_bytes=settings.jobs.keep_bytes if keep_bytes is None else keep_bytes,
        )
        gone = asyncio.run(_prune(address, keep))
    if as_json:
        print_json({"ok": True, "jobs": gone.jobs, "bytes": gone.bytes})
    else:
        print_line(f"Removed {gone.jobs} jobs, {gone.bytes / 1e6:.1f} MB.")


async def _prune(address: str, keep: Keep) -> Pruned:
    jobs = size = 0
    async with opened_as_it_is(address) as store:
        is_done = False
        while not is_done:
            gone = await store.jobs.prune(keep, _AT_ONCE)
            jobs, size, is_done = jobs + gone.jobs, size + gone.bytes, gone.is_done
    return Pruned(jobs, size)
