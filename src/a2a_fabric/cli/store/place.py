"""Which store a command works on, and how it is opened: by the command itself, beside any node that uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.setup import plan
from a2a_fabric.config import Config, environment
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.store_errors import StoreUnusable
from a2a_fabric.core.stores import Store
from a2a_fabric.places import open_store, store_address
from a2a_fabric.plugins import canonical, find
from a2a_fabric.stores.address import kind_of, located
from a2a_fabric.stores.migrate import SchemaLook


def configured(config_file: Path | None, store: str | None) -> tuple[Config, str]:
    """The configuration, and the address of its store or of the one that was named. Raises ConfigError."""
    setup = plan(config_file, (), None, environment())
    kept = setup.keeping(setup.home or Path()).config
    address = located(store, Path.cwd()) if store is not None else store_address(kept, setup.base)
    find("stores", kind_of(address))
    if canonical(kind_of(address)) == "memory":
        raise ConfigError("store: what is in memory is inside its node; name another store with --store")
    return setup.config, address


async def look(address: str) -> SchemaLook | None:
    """Its schema, without touching anything; None if it is not there. Raises StoreError."""
    found: SchemaLook | None = await find("schemas", kind_of(address))(address)
    return found


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Store]:
    """Brought up to date, or made, if it needs be. Raises StoreError."""
    store = await open_store(address)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def opened_as_it_is(address: str) -> AsyncIterator[Store]:
    """Never made nor migrated by a command that only looks. Raises StoreError."""
    there = await look(address)
    if there is None:
        raise StoreUnusable(f"There is no store at {address}. Name one with --store", store=address)
    if there.pending:
        raise StoreUnusable(
            f"{there.place} has schema {there.schema}, and {len(there.pending)} migrations are pending. "
            f"Apply them with: {NAME} store migrate",
            store=there.place,
        )
    async with opened(address) as store:
        yield store
