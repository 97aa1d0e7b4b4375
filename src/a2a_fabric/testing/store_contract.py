"""The contract suite of a store. Needs the extra `testing`: pip install 'a2a-fabric[testing]'.

class TestMyStore(StoreContract):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await build(f"mine:{tmp_path / 'store'}")
        yield store
        await store.aclose()
"""

from __future__ import annotations

import pytest

from a2a_fabric.testing.job_store_contract import JobStoreContract
from a2a_fabric.testing.message_store_contract import MessageStoreContract
from a2a_fabric.testing.registration_store_contract import RegistrationStoreContract


@pytest.mark.asyncio
class StoreContract(JobStoreContract, MessageStoreContract, RegistrationStoreContract):
    """What every store promises. Subclass it, and add a fixture `store`: an empty store that is open."""
