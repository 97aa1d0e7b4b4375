"""A message that is not received in time does not stay in an inbox."""

from __future__ import annotations

import asyncio
import time

from a2a_fabric.core.stores import InboxRecord
from a2a_fabric.messages.inboxes import MessagePruner
from a2a_fabric.stores.sqlite import MemoryStore
from tests.contracts.stores import new_message, records_of, until


async def test_inboxes_are_rid_of_what_waited_in_vain() -> None:
    store = MemoryStore()
    await store.messages.append(new_message("percy", text="too late", expires_at=time.time() - 1))
    await store.messages.append(new_message("percy"))
    keeping = asyncio.create_task(MessagePruner(store.messages, 3600.0, expire_interval=0.01).run())

    async def is_tidy() -> bool:
        return sum(isinstance(each, InboxRecord) for each in await records_of(store)) == 1

    await until(is_tidy)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert len(await store.messages.read_conversation("conv_1")) == 2
