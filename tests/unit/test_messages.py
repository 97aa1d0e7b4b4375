"""Messages when their store is not what it should be."""

from __future__ import annotations

import hashlib
import time
from typing import cast

import pytest

from a2a_fabric.app import Fabric
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.core.job import NewJob
from a2a_fabric.core.message import NewMessage, Party, PostResult, new_message_id
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Part
from a2a_fabric.messages.conversations import ConversationSignals, Senders
from a2a_fabric.messages.messages import MessageDraft, Messages
from a2a_fabric.messages.settings import MessageSettings
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.sqlite.messages import SqliteMessages
from a2a_fabric.testing.values import make_new_job
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


async def test_the_delivery_of_a_message_of_an_older_version_is_found_and_ids_of_new_ones_sort_by_age() -> None:
    async with running(percy(), config={"store": "memory:"}) as node:
        messages, store = node.fabric.messages, node.fabric.store
        caller = Principal(mode="psk", principal_id="someone", trust="local")
        owner = owner_from_principal(caller)
        new = NewMessage(
            message_id=new_message_id(),
            conversation_id="conv_1",
            owner=owner,
            sender=Party(id="someone", kind="client"),
            recipients=(Party(id="percy"),),
            is_brought=True,
        )
        digest = hashlib.sha256(new.message_id.encode()).hexdigest()[:32]
        posted = await store.messages.append(new, make_new_job("percy", owner, job_id=f"task_{digest}"))
        found = await messages.find_delivery(caller, posted.message)
        assert found is not None
        assert found.job_id == f"task_{digest}"
        draft = MessageDraft(recipient=Party(id="percy"), parts=(Part(kind="text", text="hi"),))
        sent = [await messages.post(caller, new_trace(), draft) for _ in range(3)]
        job_ids = [each.job.job_id for each in sent if each.job is not None]
        assert [job_id[5:] for job_id in job_ids] == [each.message.message_id[4:] for each in sent]
        assert all([(await messages.find_delivery(caller, each.message)) for each in sent])
