"""A store that is removed with its node: SQLite in a folder of its own, under the folder that the address names.

    store: temporary:/var/tmp

It shows the smallest complete store: one that uses another and changes how it begins and ends. A store for another
database implements the ports of `a2a_fabric.core.stores` itself.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from a2a_fabric.core import Store, StoreError, StorePlugin
from a2a_fabric.core.keys import KeyStore
from a2a_fabric.core.logins import LoginStore
from a2a_fabric.core.receipts import ReceiptStore
from a2a_fabric.core.spans import CallStore
from a2a_fabric.core.stores import (
    Archive,
    ChangeNotices,
    DescriptionStore,
    HealthLog,
    JobStore,
    MessageStore,
    RegistrationStore,
    StoreStatus,
)
from a2a_fabric.stores import sqlite


class TemporaryStore:
    """All ports are those of the store inside."""

    def __init__(self, folder: TemporaryDirectory[str], inner: Store) -> None:
        self._folder = folder
        self._inner = inner
        self.jobs: JobStore = inner.jobs
        self.registrations: RegistrationStore = inner.registrations
        self.health: HealthLog = inner.health
        self.descriptions: DescriptionStore = inner.descriptions
        self.messages: MessageStore = inner.messages
        self.logins: LoginStore = inner.logins
        self.keys: KeyStore = inner.keys
        self.receipts: ReceiptStore = inner.receipts
        self.calls: CallStore = inner.calls
        self.notices: ChangeNotices = inner.notices
        self.archive: Archive = inner.archive

    async def status(self) -> StoreStatus:
        return await self._inner.status()

    async def aclose(self) -> None:
        await self._inner.aclose()
        self._folder.cleanup()  # may be called twice


async def build(address: str) -> TemporaryStore:
    """The store at `temporary:FOLDER`. Raises StoreError if the folder cannot be used."""
    try:
        folder = TemporaryDirectory(dir=address.removeprefix("temporary:") or None)
    except OSError as exc:
        raise StoreError(f"{address}: {exc.strerror}") from exc
    try:
        return TemporaryStore(folder, await sqlite.build(f"sqlite:{folder.name}/fabric.db"))
    except BaseException:
        folder.cleanup()
        raise


plugin = StorePlugin(build=build)
