"""What every store promises about agent ids that lapsed: they wait for their owner, and an heir inherits nothing."""

from __future__ import annotations

import pytest

from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.message import NewMessage, Party, inbox_name, new_message_id
from a2a_fabric.core.part import Part
from a2a_fabric.core.registration import IdReservation
from a2a_fabric.core.stores import Store
from tests.unit.made import agent

ALICE, BOB = "psk:alice", "psk:bob"
LONG = IdReservation(seconds=3600, names=10)
INBOX = inbox_name("percy")


async def left_behind(store: Store) -> None:
    """A message and a subscription of an agent whose registration has ended."""
    await store.registrations.register(agent("percy"), ALICE)
    new = NewMessage(
        message_id=new_message_id(),
        conversation_id="talk",
        owner="psk:carol",
        sender=Party(id="carol", kind="client"),
        recipients=(Party(id="percy"),),
        parts=(Part(kind="text", text="for alice's percy only"),),
    )
    await store.messages.append(new)
    await store.messages.subscribe("news", INBOX)
    assert await store.registrations.remove("percy", ALICE)


@pytest.mark.parametrize("ending", ["removed", "run out", "expired"])
async def test_an_id_that_lapsed_is_reserved_for_its_owner(store: Store, ending: str) -> None:
    await store.registrations.register(agent("percy"), ALICE, lease=None if ending == "removed" else 0)
    if ending == "removed":
        await store.registrations.remove("percy", ALICE)
    if ending == "expired":
        assert await store.registrations.expire() == ["percy"]
    with pytest.raises(Forbidden, match="reserved"):
        await store.registrations.register(agent("percy"), BOB, reservation=LONG)
    assert (await store.registrations.register(agent("percy"), ALICE, reservation=LONG)).owner == ALICE


async def test_the_owner_who_comes_back_finds_inbox_and_subscriptions_and_is_no_newcomer(store: Store) -> None:
    first = await store.registrations.register(agent("percy"), ALICE)
    await left_behind(store)
    again = await store.registrations.register(agent("percy"), ALICE, reservation=LONG)
    assert again.registered_at == first.registered_at
    assert (await store.messages.status(INBOX)).waiting == 1
    assert await store.messages.list_subscribers("news") == [INBOX]


async def test_another_owner_begins_with_an_empty_inbox_and_no_subscriptions(store: Store) -> None:
    await left_behind(store)
    over = IdReservation(seconds=0, names=10)
    taken = await store.registrations.register(agent("percy"), BOB, reservation=over)
    assert taken.owner == BOB
    assert (await store.messages.status(INBOX)).waiting == 0
    assert await store.messages.receive(INBOX) == []
    assert await store.messages.list_subscribers("news") == []
    assert await store.messages.list_topics() == []


async def test_an_heir_of_a_lease_that_ran_out_inherits_nothing_either(store: Store) -> None:
    await left_behind(store)
    await store.registrations.register(agent("percy"), ALICE, lease=0)
    await store.registrations.register(agent("percy"), BOB)
    assert (await store.messages.status(INBOX)).waiting == 0
    assert await store.messages.list_subscribers("news") == []


async def test_messages_to_an_id_that_nobody_ever_held_wait_for_its_first_owner(store: Store) -> None:
    await store.messages.subscribe("news", INBOX)
    await store.registrations.register(agent("percy"), BOB, reservation=LONG)
    assert await store.messages.list_subscribers("news") == [INBOX]


async def test_only_an_owner_s_latest_ids_are_reserved_so_nobody_hoards_them(store: Store) -> None:
    for number in range(4):
        await store.registrations.register(agent(f"percy-{number}"), ALICE)
    for number in range(4):
        await store.registrations.remove(f"percy-{number}", ALICE)
    few = IdReservation(seconds=3600, names=2)
    assert (await store.registrations.register(agent("percy-0"), BOB, reservation=few)).owner == BOB
    with pytest.raises(Forbidden, match="reserved"):
        await store.registrations.register(agent("percy-3"), BOB, reservation=few)
