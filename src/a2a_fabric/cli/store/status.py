"""`a2a-fabric store status`"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress
from a2a_fabric.cli.output import print_fields, print_json, reported
from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.store.place import configured, look, opened_as_it_is
from a2a_fabric.core.stores import StoreStatus
from a2a_fabric.stores.migrate import SchemaLook


def run(store: StoreAddress = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Show what is in the store, and whether its schema is current.

    Changes nothing: a store that is not there is not made, and one that is behind is not migrated.

    Example: a2a-fabric store status --store sqlite:fabric.db
    """
    with reported(as_json=as_json):
        _, address = configured(config, store)
        schema, status = asyncio.run(_look(address))
    if as_json:
        counted: dict[str, Any] = {} if status is None else msgspec.to_builtins(status)
        print_json({"ok": True, **msgspec.to_builtins(schema), **counted})
    else:
        print_fields(_fields(schema, status))


async def _look(address: str) -> tuple[SchemaLook, StoreStatus | None]:
    there = await look(address)
    if there is not None and there.pending:
        return there, None
    async with opened_as_it_is(address) as store:
        status = await store.status()
    return SchemaLook(place=status.place, schema=status.schema), status


def _fields(schema: SchemaLook, status: StoreStatus | None) -> list[tuple[str, str]]:
    if status is None:
        pending = f"{schema.schema}; pending: {', '.join(schema.pending)}. Apply with: {NAME} store migrate"
        return [("store", schema.place), ("schema", pending)]
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(status.jobs.items()))
    return [
        ("store", status.place),
        ("schema", f"{status.schema} (current)"),
        ("jobs", jobs or "none"),
        ("agents", str(status.agents)),
        ("messages", str(status.messages)),
        ("size", "" if status.bytes is None else _size(status.bytes)),
    ]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
