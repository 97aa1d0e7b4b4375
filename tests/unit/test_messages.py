"""Messages when their store is not what it should be."""

from __future__ import annotations

import time
from typing import cast

import pytest

from a2a_fabric.app import Fabric
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.core.job import NewJob
from a2a_fabric.core.message import NewMessage, Party, PostResult
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Part
from a2a_fabric.messages.conversations import ConversationSignals, Senders
from a2a_fabric.messages.messages import MessageDraft, Messages
from a2a_fabric.messages.settings import MessageSettings
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from tests.doors.rest_bench import percy
from tests.fixtures.node import WAIT_TIMEOUT, running


class Forgetful(SqliteMessages):
    """Writes, and then is away before it can say so, once."""

    has_forgotten = False

    async def append(self, new: NewMessage, job: NewJob | None = None) -> PostResult:
        posted = await super().append(new, job)
        if not self.has_forgotten:
            self.has_forgotten = True
            raise StoreUnavailable("gone", store="memory")
        return posted


@pytest.mark.parametrize("given_id", [None, "mine"])
async def test_a_message_whose_writing_was_not_confirmed_is_written_once_and_brought(
    given_id: str | None,
) -> None:
    async with running(percy(), config={"store": "memory:"}) as node:
        await _written_once(node.fabric, given_id)


async def _written_once(fabric: Fabric, given_id: str | None) -> None:
    memory = cast(MemoryStore, fabric.store)  # timed, and with the attributes of the store itself
    store = Forgetful(memory.writer, memory.reader, time.time)
    parties = Senders(lambda _: None, lambda _: True)
    desk = Messages(store, fabric.jobs, parties, fabric.registry.get_for, MessageSettings(), ConversationSignals())
    caller = Principal(mode="psk", principal_id="someone", trust="local")
    draft = MessageDraft(recipient=Party(id="percy"), parts=(Part(kind="text", text="hi"),), sender_message_id=given_id)
    sent_once = await desk.post(caller, new_trace(), draft)
    assert store.has_forgotten
    assert sent_once.job is not None
    conversation = await store.read_conversation(sent_once.message.conversation_id)
    assert len([message for message in conversation if message.reply_to is None]) == 1  # besides the agent's answer
    await fabric.jobs.result(caller, sent_once.job.job_id, WAIT_TIMEOUT)
