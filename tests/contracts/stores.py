"""The engines that every store contract runs against, and short ways to make what goes in.

A new engine is one class with `open` and one row in ENGINES.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from a2a_fabric.core.stores import ArchiveRecord, Store
from a2a_fabric.stores.nats.store import NatsStore, settings_from_address
from a2a_fabric.stores.postgres.store import PostgresSettings, PostgresStore
from a2a_fabric.stores.sqlite import MemoryStore, SqliteSettings, SqliteStore
from a2a_fabric.testing import values
from tests.fixtures import nats
from tests.fixtures.postgres import shared

# Under the short names that tests know them by.
WAIT_TIMEOUT = values.TIMEOUT
CANCELLED = values.CANCELLED_OUTCOME
new_job = values.make_new_job
new_message = values.make_new_message
claim_request = values.make_claim_request
begun = values.accept_and_claim
tokens = values.make_tokens
completed = values.make_completed_outcome
log_of = values.read_event_log
text_of = values.join_text
until = values.wait_until


class Engine(Protocol):
    """One place. Each `open` is another node's view of it; `address` is how another process finds it."""

    name: str
    address: str

    async def open(self) -> Store: ...


class MemoryEngine:
    name = "memory"
    address = "memory"

    def __init__(self, folder: Path) -> None:
        self._store = MemoryStore()

    async def open(self) -> Store:
        return self._store


class SqliteEngine:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.settings = SqliteSettings(path=folder / "fabric.db")
        self.address = self.settings.address

    async def open(self) -> Store:
        return await SqliteStore.open(self.settings)


class PostgresEngine:
    name = "postgres"

    def __init__(self, folder: Path) -> None:
        self.address = shared().database()

    async def open(self) -> Store:
        return await PostgresStore.open(PostgresSettings(address=self.address))


class NatsEngine:
    name = "nats"

    def __init__(self, folder: Path) -> None:
        self.address = nats.shared().address()

    async def open(self) -> Store:
        return await NatsStore.open(settings_from_address(self.address))


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "memory": MemoryEngine,
    "sqlite": SqliteEngine,
    "postgres": PostgresEngine,
    "nats": NatsEngine,
}
SHARED = [name for name in ENGINES if name != "memory"]  # those that several processes can open


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Store]:
    store = await engine.open()
    try:
        yield store
    finally:
        await store.aclose()


async def records_of(store: Store) -> list[ArchiveRecord]:
    return [record async for record in store.archive.dump()]
