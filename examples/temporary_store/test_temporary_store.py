"""The store, through the contract suite that comes with Fabric."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporary_store import build

from a2a_fabric.core import Store
from a2a_fabric.testing.store_contract import StoreContract


class TestTemporaryStore(StoreContract):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await build(f"temporary:{tmp_path}")
        yield store
        await store.aclose()
