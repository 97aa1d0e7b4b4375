"""The contract of `Store.registrations` and `Store.health`: leases, owners, changes, reserved ids, health history."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import AgentNotFound, Forbidden
from a2a_fabric.core.message import NewMessage, Party, inbox_name, new_message_id
from a2a_fabric.core.part import Part
from a2a_fabric.core.registration import HealthCheck, IdReservation, RegistrationFilter
from a2a_fabric.core.stores import AGENTS_TOPIC, Store
from a2a_fabric.testing.values import TIMEOUT, make_manifest

ALICE, BOB = "psk:alice", "psk:bob"


def look(at: float, agent_id: str = "percy", **about: Any) -> HealthCheck:
    return HealthCheck(agent_id=agent_id, checked_at=at, **{"status": "online", **about})


ALICE, BOB = "psk:alice", "psk:bob"

LONG = IdReservation(seconds=3600, names=10)

INBOX = inbox_name("percy")


async def left_behind(store: Store) -> None:
    """A message and a subscription of an agent whose registration has ended."""
    await store.registrations.register(make_manifest("percy"), ALICE)
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


class RegistrationStoreContract:
    """Every test gets a fixture `store`: an empty store that is open."""

    async def test_a_registered_agent_comes_back_whole(self, store: Store) -> None:
        manifest = make_manifest(
            "percy",
            Capability(name="reason", streaming=True, modalities=("text", "image"), max_timeout_ms=5000,
                       input_schema={"type": "object"}, output_schema={"type": "string"}),
            display_name="Percy", version="1.2.3", description="thinks", runtime="http", node_id="node-1",
            delegate_id="d", cog_id="c", realm="r", trust_tier="org", tags=("a", "b"), metadata={"x": [1]},
        )  # fmt: skip
        made = await store.registrations.register(manifest, ALICE, lease=60)
        assert made.manifest == manifest
        assert (made.owner, made.revision) == (ALICE, 1)
        assert made.lease_until == pytest.approx(time.time() + 60, abs=10)
        assert await store.registrations.get("percy") == made
        assert await store.registrations.get("stranger") is None

    async def test_registering_again_replaces_but_only_by_its_owner(self, store: Store) -> None:
        first = await store.registrations.register(make_manifest("percy", "reason"), ALICE)
        second = await store.registrations.register(make_manifest("percy", "fly"), ALICE)
        assert second.registered_at == first.registered_at
        assert second.revision > first.revision
        with pytest.raises(Forbidden):
            await store.registrations.register(make_manifest("percy", "steal"), BOB)
        kept = await store.registrations.get("percy")
        assert kept is not None
        assert [each.name for each in kept.manifest.capabilities] == ["fly"]
        assert [row.agent_id for row in await store.registrations.list(RegistrationFilter(capability="reason"))] == []

    async def test_an_agent_whose_lease_ran_out_may_be_registered_by_somebody_else(self, store: Store) -> None:
        await store.registrations.register(make_manifest("percy"), ALICE, lease=0)
        assert (await store.registrations.register(make_manifest("percy"), BOB)).owner == BOB

    async def test_renewing_extends_the_lease_and_is_no_change_for_others(self, store: Store) -> None:
        made = await store.registrations.register(make_manifest("percy"), ALICE, lease=10)
        renewed = await store.registrations.renew("percy", ALICE, lease=3600)
        assert renewed.revision == made.revision
        assert (renewed.lease_until or 0) > (made.lease_until or 0)
        assert renewed.seen_at >= made.seen_at
        assert await store.registrations.get("percy") == renewed
        with pytest.raises(Forbidden):
            await store.registrations.renew("percy", BOB)
        with pytest.raises(AgentNotFound):
            await store.registrations.renew("stranger", ALICE)

    async def test_only_the_owner_removes(self, store: Store) -> None:
        await store.registrations.register(make_manifest("percy"), ALICE)
        with pytest.raises(Forbidden):
            await store.registrations.remove("percy", BOB)
        assert await store.registrations.remove("percy", ALICE)
        assert not await store.registrations.remove("percy", ALICE)
        assert await store.registrations.get("percy") is None

    async def test_expired_registrations_are_removed_once(self, store: Store) -> None:
        await store.registrations.register(make_manifest("gone"), ALICE, lease=0)
        await store.registrations.register(make_manifest("alive"), ALICE, lease=60)
        await store.registrations.register(make_manifest("forever"), ALICE)
        batches = await asyncio.gather(*(store.registrations.expire() for _ in range(5)))
        assert [agent_id for batch in batches for agent_id in batch] == ["gone"]
        assert [row.agent_id for row in await store.registrations.list(RegistrationFilter())] == ["alive", "forever"]

    async def test_changes_tell_each_agent_once_with_its_latest_state(self, store: Store) -> None:
        for agent_id in ("a", "b", "c"):
            await store.registrations.register(make_manifest(agent_id), ALICE)
        seen = await store.registrations.read_changes(0)
        assert [(change.agent_id, change.registration is None) for change in seen] == [
            ("a", False), ("b", False), ("c", False),
        ]  # fmt: skip
        await store.registrations.register(make_manifest("a", "new"), ALICE)
        await store.registrations.remove("b", ALICE)
        later = await store.registrations.read_changes(seen[-1].revision)
        assert [(change.agent_id, change.registration is None) for change in later] == [("a", False), ("b", True)]
        assert later[0].registration == await store.registrations.get("a")
        assert await store.registrations.read_changes(later[-1].revision) == []
        assert len(await store.registrations.read_changes(0, limit=2)) == 2

    async def test_an_agent_that_came_back_is_no_longer_gone(self, store: Store) -> None:
        await store.registrations.register(make_manifest("a"), ALICE)
        await store.registrations.remove("a", ALICE)
        await store.registrations.register(make_manifest("a"), BOB)
        [change] = await store.registrations.read_changes(0)
        assert change.registration is not None
        assert change.registration.owner == BOB

    async def test_a_follower_of_changes_misses_none_while_many_register(self, store: Store) -> None:
        seen: set[str] = set()

        async def follow() -> None:
            after = 0
            with store.notices.watch(AGENTS_TOPIC) as bell:
                while len(seen) < 60:
                    for change in await store.registrations.read_changes(after, limit=7):
                        seen.add(change.agent_id)
                        after = change.revision
                    if not await store.registrations.read_changes(after) and len(seen) < 60:
                        assert await bell.wait(TIMEOUT)

        follower = asyncio.create_task(follow())
        await asyncio.gather(*(store.registrations.register(make_manifest(f"a{n}"), ALICE) for n in range(60)))
        async with asyncio.timeout(TIMEOUT):
            await follower
        assert seen == {f"a{n}" for n in range(60)}

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ({}, ["one", "two"]),
            ({"owner": BOB}, ["two"]),
            ({"capability": "Parse-Recipe"}, ["one"]),
            ({"tag": "x"}, ["one", "two"]),
            ({"tag": "y"}, ["two"]),
            ({"runtime": "http"}, ["one"]),
            ({"node_id": "n2"}, ["two"]),
            ({"trust_tier": "public"}, ["two"]),
            ({"realm": "r"}, ["one"]),
            ({"cog_id": "c"}, ["one"]),
            ({"delegate_id": "d"}, ["one"]),
            ({"tag": "y", "runtime": "http"}, []),
        ],
    )
    async def test_every_field_of_a_manifest_can_be_searched(
        self, store: Store, wanted: dict[str, Any], found: list[str]
    ) -> None:  # fmt: skip
        one = make_manifest("one", "parse_recipe", tags=("x",), runtime="http", realm="r", cog_id="c", delegate_id="d")
        two = make_manifest("two", "fly", tags=("x", "y"), runtime="mcp", node_id="n2", trust_tier="public")
        await store.registrations.register(one, ALICE)
        await store.registrations.register(two, BOB)
        assert [row.agent_id for row in await store.registrations.list(RegistrationFilter(**wanted))] == found

    async def test_listing_goes_page_by_page(self, store: Store) -> None:
        for n in range(5):
            await store.registrations.register(make_manifest(f"a{n}"), ALICE)
        first = await store.registrations.list(RegistrationFilter(), limit=3)
        rest = await store.registrations.list(RegistrationFilter(), after=first[-1].agent_id)
        assert [row.agent_id for row in (*first, *rest)] == ["a0", "a1", "a2", "a3", "a4"]

    async def test_health_is_kept_as_a_history_newest_first(self, store: Store) -> None:
        looks = [look(1.0), look(2.0, status="offline", error="refused", node_id="n2"), look(3.0, latency=0.25)]
        await store.health.append(looks)
        await store.health.append([look(9.0, "other")])
        assert list(await store.health.read("percy")) == looks[::-1]
        assert list(await store.health.read("percy", since=2.0, until=3.0)) == [looks[1]]
        assert list(await store.health.read("percy", limit=1)) == [looks[2]]
        assert await store.health.read("stranger") == []
        await store.health.append([])

    async def test_old_health_is_forgotten(self, store: Store) -> None:
        await store.health.append([look(1.0), look(2.0), look(2.0, "other")])
        assert await store.health.prune(2.0) == 1
        assert list(await store.health.read("percy")) == [look(2.0)]

    @pytest.mark.parametrize("ending", ["removed", "run out", "expired"])
    async def test_an_id_that_lapsed_is_reserved_for_its_owner(self, store: Store, ending: str) -> None:
        await store.registrations.register(make_manifest("percy"), ALICE, lease=None if ending == "removed" else 0)
        if ending == "removed":
            await store.registrations.remove("percy", ALICE)
        if ending == "expired":
            assert await store.registrations.expire() == ["percy"]
        with pytest.raises(Forbidden, match="reserved"):
            await store.registrations.register(make_manifest("percy"), BOB, reservation=LONG)
        assert (await store.registrations.register(make_manifest("percy"), ALICE, reservation=LONG)).owner == ALICE

    async def test_the_owner_who_comes_back_finds_inbox_and_subscriptions_and_is_no_newcomer(
        self, store: Store
    ) -> None:
        first = await store.registrations.register(make_manifest("percy"), ALICE)
        await left_behind(store)
        again = await store.registrations.register(make_manifest("percy"), ALICE, reservation=LONG)
        assert again.registered_at == first.registered_at
        assert (await store.messages.status(INBOX)).waiting == 1
        assert await store.messages.list_subscribers("news") == [INBOX]

    async def test_another_owner_begins_with_an_empty_inbox_and_no_subscriptions(self, store: Store) -> None:
        await left_behind(store)
        over = IdReservation(seconds=0, names=10)
        taken = await store.registrations.register(make_manifest("percy"), BOB, reservation=over)
        assert taken.owner == BOB
        assert (await store.messages.status(INBOX)).waiting == 0
        assert await store.messages.receive(INBOX) == []
        assert await store.messages.list_subscribers("news") == []
        assert await store.messages.list_topics() == []

    async def test_an_heir_of_a_lease_that_ran_out_inherits_nothing_either(self, store: Store) -> None:
        await left_behind(store)
        await store.registrations.register(make_manifest("percy"), ALICE, lease=0)
        await store.registrations.register(make_manifest("percy"), BOB)
        assert (await store.messages.status(INBOX)).waiting == 0
        assert await store.messages.list_subscribers("news") == []

    async def test_messages_to_an_id_that_nobody_ever_held_wait_for_its_first_owner(self, store: Store) -> None:
        await store.messages.subscribe("news", INBOX)
        await store.registrations.register(make_manifest("percy"), BOB, reservation=LONG)
        assert await store.messages.list_subscribers("news") == [INBOX]

    async def test_only_an_owner_s_latest_ids_are_reserved_so_nobody_hoards_them(self, store: Store) -> None:
        for number in range(4):
            await store.registrations.register(make_manifest(f"percy-{number}"), ALICE)
        for number in range(4):
            await store.registrations.remove(f"percy-{number}", ALICE)
        few = IdReservation(seconds=3600, names=2)
        assert (await store.registrations.register(make_manifest("percy-0"), BOB, reservation=few)).owner == BOB
        with pytest.raises(Forbidden, match="reserved"):
            await store.registrations.register(make_manifest("percy-3"), BOB, reservation=few)
