"""`a2a-fabric store migrate`"""

from __future__ import annotations

import asyncio

import msgspec

from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress
from a2a_fabric.cli.output import print_json, print_line, reported
from a2a_fabric.cli.store.place import configured, look, opened


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    schema: int
    was: int
    is_new: bool

    @property
    def words(self) -> str:
        if self.is_new:
            return f"{self.place} was made, with schema {self.schema}."
        if self.was == self.schema:
            return f"{self.place} is up to date, with schema {self.schema}."
        return f"{self.place} has schema {self.schema} now; it had {self.was}."


def run(store: StoreAddress = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Bring the store's schema up to date.

    Nodes do so by themselves when they start; of several that start together, one does the work.

    Example: a2a-fabric store migrate --store sqlite:fabric.db
    """
    with reported(as_json=as_json):
        _, address = configured(config, store)
        done = asyncio.run(_migrate(address))
    if as_json:
        print_json({"ok": True, "place": done.place, "schema": done.schema, "was": done.was})
    else:
        print_line(done.words)


async def _migrate(address: str) -> Migrated:
    before = await look(address)
    async with opened(address) as store:
        now = await store.status()
    was = before.schema if before else 0
    return Migrated(place=now.place, schema=now.schema, was=was, is_new=was == 0)
