"""The contract suite of a store. Needs the extra `testing`: pip install 'a2a-fabric[testing]'.

class TestMyStore(StoreContract):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await build(f"mine:{tmp_path / 'store'}")
        yield store
        await store.aclose()
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.errors import AgentNotFound, BadInput, Conflict, Forbidden, JobNotFound
from a2a_fabric.core.job import Job, JobFilter, summary_from_job
from a2a_fabric.core.keys import KEYS_TOPIC, NewKey, UsedTokenStore
from a2a_fabric.core.logins import LoginAttempt, LoginRecord
from a2a_fabric.core.message import Party, make_extension_part
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.receipts import StoredReceipt
from a2a_fabric.core.registration import HealthCheck, IdReservation, RegistrationFilter, StoredDescription
from a2a_fabric.core.result import Part
from a2a_fabric.core.spans import CallFilter, StoredCall
from a2a_fabric.core.stores import AGENTS_TOPIC, Store, inbox_topic
from a2a_fabric.testing.job_store_contract import JobStoreContract
from a2a_fabric.testing.values import TIMEOUT, join_text, make_manifest, make_new_job, make_new_message, wait_until

PERCY = Party(id="percy").inbox


async def _is_over(moment: float) -> bool:
    return time.time() > moment + 0.05


async def read_job(store: Store, job_id: str) -> Job:
    job = await store.jobs.get(job_id)
    assert job is not None
    return job


def make_stored_receipt(seq: int, chain: str = "node", at: float = 0.0) -> StoredReceipt:
    return StoredReceipt(chain=chain, seq=seq, at=at, digest=f"{chain}-{seq}", body=b'{"seq":%d}' % seq)


def make_stored_call(number: int, **fields: Any) -> StoredCall:
    defaults: dict[str, Any] = {
        "trace_id": f"trace-{number}",
        "span_id": f"{number:016x}",
        "started_at": float(number),
        "owner": "psk:anna",
        "principal": "anna",
        "door": "mcp",
        "agent_id": "percy",
        "capability": "reason",
        "body": b"{}",
    }
    return StoredCall(**{**defaults, **fields})


class CallStoreContract:
    """The contract of `Store.calls`."""

    async def list_spans(self, store: Store, **fields: Any) -> list[str]:
        return [each.span_id.lstrip("0") for each in await store.calls.list(CallFilter(**fields))]

    async def test_calls_are_filtered_and_listed_newest_first(self, store: Store) -> None:
        await store.calls.append([])
        await store.calls.append(
            [
                make_stored_call(1),
                make_stored_call(2, is_failed=True, agent_id="morse", used="percy"),
                make_stored_call(3, owner="psk:bert", principal="bert", door="a2a", capability="draft"),
                make_stored_call(4, is_call=False),
            ]
        )
        assert await self.list_spans(store) == ["3", "2", "1"]
        assert await self.list_spans(store, owner="psk:anna") == ["2", "1"]
        assert await self.list_spans(store, agent_id="percy") == ["3", "2", "1"]
        assert await self.list_spans(store, agent_id="morse") == ["2"]
        assert await self.list_spans(store, principal="bert", door="a2a", capability="draft") == ["3"]
        assert await self.list_spans(store, is_failed=True) == ["2"]
        assert await self.list_spans(store, is_failed=False) == ["3", "1"]
        assert await self.list_spans(store, since=2.0, until=3.0) == ["2"]
        assert await self.list_spans(store, trace_id="trace-1") == ["1"]
        first, *_ = await store.calls.list(CallFilter(), limit=1)
        assert [each.span_id[-1] for each in await store.calls.list(CallFilter(), before=first.seq)] == ["2", "1"]
        oldest = (await store.calls.list(CallFilter(), before=first.seq))[-1]
        assert [each.span_id[-1] for each in await store.calls.list(CallFilter(), after=oldest.seq)] == ["2", "3"]
        assert await store.calls.find_newest() > first.seq, "the job has a number, too"

    async def test_a_trace_has_calls_and_jobs_and_each_is_stored_once(self, store: Store) -> None:
        rows = [make_stored_call(2, trace_id="t", body=b"two"), make_stored_call(1, trace_id="t", is_call=False)]
        await store.calls.append(rows)
        await store.calls.append([*rows, make_stored_call(3, trace_id="t", owner="psk:bert")])
        assert [each.span_id[-1] for each in await store.calls.read_trace("t")] == ["1", "2", "3"]
        assert [each.span_id[-1] for each in await store.calls.read_trace("t", owner="psk:bert")] == ["3"]
        assert (await store.calls.read_trace("t"))[1].body == b"two"
        assert await store.calls.read_trace("other") == []

    async def test_old_calls_and_those_beyond_a_number_and_a_size_are_pruned(self, store: Store) -> None:
        await store.calls.append([make_stored_call(number, body=b"x" * 100) for number in range(1, 11)])
        assert await store.calls.prune(3.0, 100, 10**6) == 2
        assert await store.calls.prune(0.0, 6, 10**6) == 2
        assert await store.calls.prune(0.0, 100, 450) == 2
        assert await store.calls.prune(0.0, 100, 450) == 0
        assert await self.list_spans(store) == ["a", "9", "8", "7"]
        assert await store.calls.prune(100.0, 100, 10**6, limit=3) == 3


class ReceiptStoreContract:
    """The contract of `Store.receipts`."""

    async def test_receipts_are_appended_in_order_and_each_number_once(self, store: Store) -> None:
        receipts = store.receipts
        assert await receipts.read_head("node") is None
        assert await receipts.append([])
        assert await receipts.append([make_stored_receipt(1), make_stored_receipt(2)])
        assert await receipts.read_head("node") == make_stored_receipt(2)
        assert not await receipts.append([make_stored_receipt(2), make_stored_receipt(3)])  # taken
        assert not await receipts.append([make_stored_receipt(4)])  # a gap
        assert await receipts.append([make_stored_receipt(3)])
        assert await receipts.append([make_stored_receipt(1, "other")])
        assert [(each.chain, each.seq) for each in await receipts.read()] == [
            *(("node", number) for number in (1, 2, 3)),
            ("other", 1),
        ]
        assert [each.seq for each in await receipts.read(chain="node", after=("node", 1), limit=1)] == [2]

    async def test_of_many_writers_of_one_chain_one_wins_each_number(self, store: Store) -> None:
        async def write(name: int) -> bool:
            receipts = [
                msgspec.structs.replace(make_stored_receipt(seq, "race"), digest=f"{name}-{seq}")
                for seq in range(1, 3 + name)
            ]
            return await store.receipts.append(receipts)

        written = await asyncio.gather(*(write(number) for number in range(5)))
        assert sum(written) == 1
        winner = written.index(True)
        rows = await store.receipts.read(chain="race")
        assert [each.digest for each in rows] == [f"{winner}-{seq}" for seq in range(1, 3 + winner)]

    async def test_old_receipts_and_those_beyond_a_number_are_pruned_but_the_newest_stays(self, store: Store) -> None:
        await store.receipts.append([make_stored_receipt(seq, at=seq) for seq in range(1, 11)])
        await store.receipts.append([make_stored_receipt(seq, "quiet", at=0.5) for seq in (1, 2)])
        assert await store.receipts.prune(before=3.5, most=100, limit=2) == 2
        while await store.receipts.prune(before=3.5, most=5, limit=2):
            pass
        left = [(each.chain, each.seq) for each in await store.receipts.read()]
        assert left == [*(("node", seq) for seq in range(6, 11)), ("quiet", 2)]


class UsedTokenStoreContract:
    """The contract of `Store.used_tokens`, which a store may do without."""

    async def test_a_token_counts_once_until_its_time_is_over(self, store: Any) -> None:
        used_tokens: UsedTokenStore = store.used_tokens
        assert await used_tokens.add(b"a" * 32, 60)
        assert not await used_tokens.add(b"a" * 32, 60)
        assert await used_tokens.add(b"b" * 32, -1)
        assert await used_tokens.add(b"b" * 32, 60)  # the first one is forgotten

    async def test_of_many_who_use_a_token_at_once_one_wins(self, store: Any) -> None:
        used_tokens: UsedTokenStore = store.used_tokens
        digests = [bytes([number % 5]) * 32 for number in range(50)]
        outcomes = await asyncio.gather(*(used_tokens.add(digest, 60) for digest in digests))
        assert sum(outcomes) == 5


class LoginStoreContract:
    """The contract of `Store.logins`."""

    async def test_a_login_belongs_to_its_principal_alone(self, store: Store) -> None:
        mine = LoginRecord(
            owner="psk:a", agent_id="x", issuer="https://i", scopes=("r", "w"), secret=b"1\x00\xff", revision=7
        )
        assert await store.logins.put(mine)
        kept = await store.logins.get("psk:a", "x")
        assert kept is not None
        assert (kept.secret, kept.scopes, kept.issuer, kept.revision) == (b"1\x00\xff", ("r", "w"), "https://i", 7)
        assert kept.created_at == kept.updated_at > 0
        assert await store.logins.get("psk:b", "x") is None
        assert await store.logins.list("psk:b") == []
        assert not await store.logins.remove("psk:b", "x")
        assert await store.logins.remove("psk:a", "x")
        assert await store.logins.list("psk:a") == []

    async def test_a_secret_is_replaced_only_by_the_one_that_read_it_last(self, store: Store) -> None:
        record = LoginRecord(owner="psk:a", agent_id="x", issuer="https://i", secret=b"1", revision=7)
        await store.logins.put(record)
        assert await store.logins.set_listing("psk:a", "x", b"[]")
        assert not await store.logins.set_listing("psk:b", "x", b"[]")
        replaced = [await store.logins.put(msgspec.structs.replace(record, secret=each), 7) for each in (b"2", b"3")]
        assert replaced == [True, False]
        kept = await store.logins.get("psk:a", "x")
        assert kept is not None
        assert (kept.secret, kept.revision, kept.listing) == (b"2", 8, b"[]")
        assert await store.logins.read_listings(10) == [("psk:a", "x", b"[]")]
        await store.logins.put(msgspec.structs.replace(record, secret=b"4", revision=99))
        kept = await store.logins.get("psk:a", "x")
        assert kept is not None
        assert (kept.secret, kept.revision, kept.listing) == (b"4", 99, None)

    async def test_an_attempt_is_taken_once_and_in_time(self, store: Store) -> None:
        now = time.time()
        for number in range(4):
            attempt = LoginAttempt(
                attempt_id=f"i{number}", owner="psk:a", agent_id="x", secret=b"s", expires_at=now + 60 + number
            )
            await store.logins.add_attempt(attempt, most=3)
        assert await store.logins.take_attempt("i0") is None  # the oldest, beyond the bound
        taken = await asyncio.gather(*(store.logins.take_attempt("i3") for _ in range(5)))
        assert [each.secret for each in taken if each is not None] == [b"s"]
        late = LoginAttempt(attempt_id="late", owner="psk:b", agent_id="x", secret=b"s", expires_at=now - 1)
        await store.logins.add_attempt(late, most=3)
        assert await store.logins.take_attempt("late") is None


class KeyStoreContract:
    """The contract of `Store.keys`."""

    async def test_a_key_comes_back_as_it_was_written_and_its_name_is_taken(self, store: Store) -> None:
        new = make_new_key("reader", scopes=("agent:percy", "metrics"), trust="org", view="office", lifetime=60.0)
        added = await store.keys.add(new)
        assert (added.key_id, added.digest, added.scopes) == (new.key_id, new.digest, ("agent:percy", "metrics"))
        assert (added.trust, added.view, added.last_used_at, added.replaced) == ("org", "office", None, False)
        assert added.expires_at == added.created_at + 60.0
        assert await store.keys.list() == [added]
        with pytest.raises(Conflict):
            await store.keys.add(make_new_key("reader"))
        assert await store.keys.list() == [added]

    async def test_replaced_keys_end_after_the_overlap_and_never_later_than_before(self, store: Store) -> None:
        with pytest.raises(Conflict):
            await store.keys.add(make_new_key("reader"), overlap=10.0)
        first = await store.keys.add(make_new_key("reader"))
        second = await store.keys.add(make_new_key("reader", lifetime=5.0), overlap=30.0)
        third = await store.keys.add(make_new_key("reader"), overlap=600.0)
        rows = {row.key_id: row for row in await store.keys.list()}
        assert [rows[key.key_id].replaced for key in (first, second, third)] == [True, True, False]
        assert rows[first.key_id].expires_at == second.created_at + 30.0
        assert rows[second.key_id].expires_at == second.expires_at
        assert rows[third.key_id].expires_at is None
        now = third.created_at
        assert [rows[key.key_id].describe_state(now) for key in (first, second, third)] == [
            "ending",
            "ending",
            "active",
        ]
        await store.keys.add(make_new_key("reader"), overlap=0.0)
        states = [row.describe_state(time.time() + 1.0) for row in await store.keys.list()]
        assert states == ["expired", "expired", "expired", "active"]

    async def test_revoking_a_name_ends_all_its_keys_and_revoking_an_id_ends_one(self, store: Store) -> None:
        first = await store.keys.add(make_new_key("reader"))
        second = await store.keys.add(make_new_key("reader"), overlap=600.0)
        other = await store.keys.add(make_new_key("writer"))
        assert [row.key_id for row in await store.keys.revoke(first.key_id)] == [first.key_id]
        assert [row.key_id for row in await store.keys.revoke("reader")] == [second.key_id]
        assert not await store.keys.revoke("reader")
        assert not await store.keys.revoke("unknown")
        usable = [row.key_id for row in await store.keys.list() if row.is_usable(time.time())]
        assert usable == [other.key_id]
        await store.keys.add(make_new_key("reader"))  # the name is free again

    async def test_the_last_use_only_moves_forward_and_wakes_no_watcher(self, store: Store) -> None:
        key = await store.keys.add(make_new_key("reader"))
        with store.notices.watch(KEYS_TOPIC) as handle:
            await handle.wait(0.0)
            for moment in (50.0, 40.0):
                await store.keys.touch({key.key_id: moment, "unknown": 60.0})
            assert [row.last_used_at for row in await store.keys.list()] == [50.0]
            await store.keys.revoke("reader")
            assert await handle.wait(TIMEOUT)

    async def test_keys_of_one_name_that_come_at_once_are_one(self, store: Store) -> None:
        outcomes = await asyncio.gather(
            *(store.keys.add(make_new_key("reader")) for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(each, Conflict) for each in outcomes) == 4
        assert len(await store.keys.list()) == 1


def make_new_key(name: str, **more: Any) -> NewKey:
    key_id = new_id()
    fields: dict[str, Any] = {"scopes": ("*",), "digest": hashlib.sha256(key_id.encode()).digest(), **more}
    return NewKey(key_id=key_id, name=name, **fields)


class MessageStoreContract:
    """The contract of `Store.messages`: conversations, inboxes and topics."""

    async def test_a_message_comes_back_as_it_was_written(self, store: Store) -> None:
        new = make_new_message("percy", key="mine", metadata={"a": [1]}, reply_to="msg_0", priority=4, expires_at=9e9)
        posted = await store.messages.append(new)
        assert posted.is_new
        assert posted.message.number == 1
        kept = await store.messages.get(new.message_id)
        assert kept == posted.message
        assert (kept.parts, kept.recipients, kept.sender, kept.metadata) == (
            new.parts, new.recipients, new.sender, {"a": [1]},
        )  # fmt: skip
        assert await store.messages.find("psk:alice", "mine") == kept
        assert await store.messages.get("msg_unknown") is None
        assert await store.messages.find("psk:bob", "mine") is None

    async def test_parts_of_every_kind_and_of_unknown_types_are_kept(self, store: Store) -> None:
        parts = (
            Part(kind="text", text="ünï"),
            Part(kind="image", blob="AAAA", mime_type="image/png", name="a.png"),
            Part(kind="file", url="https://example.org/x"),
            Part(kind="function_call", data={"name": "f", "arguments": {}}),
            make_extension_part("mycompany.custom_type", {"any": "thing"}),
        )
        new = make_new_message()
        new = type(new)(**{**{f: getattr(new, f) for f in new.__struct_fields__}, "parts": parts})
        await store.messages.append(new)
        kept = await store.messages.get(new.message_id)
        assert kept is not None
        assert kept.parts == parts

    async def test_the_same_key_is_the_same_message_and_is_delivered_once(self, store: Store) -> None:
        first = await store.messages.append(make_new_message("percy", key="k"))
        again = await store.messages.append(make_new_message("percy", key="k"))
        assert (again.is_new, again.message) == (False, first.message)
        with pytest.raises(Conflict):
            await store.messages.append(make_new_message("percy", key="k", text="other"))
        with pytest.raises(Conflict):
            await store.messages.append(type(first.message)(**{
                f: getattr(first.message, f) for f in first.message.__struct_fields__} | {"key": None}))  # fmt: skip
        assert (await store.messages.status(PERCY)).waiting == 1

    async def test_a_conversation_is_in_order_without_gaps_however_many_write(self, store: Store) -> None:
        await asyncio.gather(*(store.messages.append(make_new_message(text=str(n))) for n in range(40)))
        await store.messages.append(make_new_message(conversation="other"))
        seen = [*await store.messages.read_conversation("conv_1", limit=25)]
        seen += await store.messages.read_conversation("conv_1", after=seen[-1].number)
        assert [message.number for message in seen] == list(range(1, 41))
        assert {join_text(message.parts) for message in seen} == {str(n) for n in range(40)}
        assert [m.number for m in await store.messages.read_conversation("other")] == [1]
        assert await store.messages.read_conversation("none") == []

    async def test_messages_with_jobs_that_are_written_at_once_share_the_numbering(self, store: Store) -> None:
        await store.messages.append(make_new_message())
        names = ["conv_1", "conv_2", "conv_1", "conv_2", "conv_1"]
        news = [make_new_message("percy", conversation=each, is_brought=True) for each in names]
        posted = await asyncio.gather(*(store.messages.append(new, make_new_job()) for new in news))
        numbers = [(each.message.conversation_id, each.message.number) for each in posted]
        assert sorted(numbers) == [("conv_1", 2), ("conv_1", 3), ("conv_1", 4), ("conv_2", 1), ("conv_2", 2)]
        for new, each in zip(news, posted, strict=True):
            assert each.message == await store.messages.get(new.message_id)
            assert each.job is not None
            assert await store.jobs.get(each.job.job_id) is not None
        assert (await store.messages.append(make_new_message(conversation="conv_2"))).message.number == 3

    async def test_a_message_is_in_the_inbox_of_each_recipient_until_acknowledged(self, store: Store) -> None:
        posted = await store.messages.append(make_new_message("percy", "coder"))
        assert posted.inboxes == 2
        [delivery] = await store.messages.receive(PERCY)
        assert (delivery.message, delivery.attempt) == (posted.message, 1)
        assert await store.messages.receive(PERCY) == []
        status = await store.messages.status(PERCY)
        assert (status.waiting, status.held) == (0, 1)
        assert await store.messages.acknowledge(PERCY, [delivery.entry, 987654]) == [delivery.entry]
        assert await store.messages.acknowledge(PERCY, [delivery.entry]) == []
        assert (await store.messages.status(PERCY)).held == 0
        assert len(await store.messages.receive(Party(id="coder").inbox)) == 1

    async def test_an_inbox_cannot_acknowledge_for_another(self, store: Store) -> None:
        await store.messages.append(make_new_message("percy"))
        [delivery] = await store.messages.receive(PERCY)
        assert await store.messages.acknowledge("agent:coder", [delivery.entry]) == []
        assert (await store.messages.status(PERCY)).held == 1

    async def test_numbers_and_text_beyond_all_bounds_match_nothing_or_are_refused(self, store: Store) -> None:
        await store.messages.append(make_new_message("percy"))
        assert await store.messages.read_conversation("conv_1", after=2**70) == []
        assert len(await store.messages.read_conversation("conv_1", after=-(2**70))) == 1
        assert await store.messages.acknowledge(PERCY, [2**70, -(2**70), 0]) == []
        assert await store.messages.find("psk:\ud800", "k") is None
        assert await store.messages.read_conversation("\ud800") == []
        assert await store.jobs.get("\ud800") is None
        with pytest.raises(JobNotFound):
            await store.jobs.events("\ud800", after=2**70)

    async def test_what_is_not_acknowledged_comes_again(self, store: Store) -> None:
        await store.messages.append(make_new_message("percy"))
        [first] = await store.messages.receive(PERCY, hold=0)
        [second] = await store.messages.receive(PERCY, hold=60)
        assert (first.entry, first.attempt, second.attempt) == (second.entry, 1, 2)

    async def test_several_receivers_of_one_inbox_share_it(self, store: Store) -> None:
        await asyncio.gather(*(store.messages.append(make_new_message("percy")) for _ in range(50)))
        batches = await asyncio.gather(*(store.messages.receive(PERCY, limit=7) for _ in range(10)))
        entries = [delivery.entry for batch in batches for delivery in batch]
        assert len(entries) == len(set(entries)) == 50

    async def test_messages_are_received_by_priority_then_age_and_not_after_their_time(self, store: Store) -> None:
        for text, priority in (("a", 2), ("b", 4), ("c", 2)):
            await store.messages.append(make_new_message("percy", text=text, priority=priority))
        await store.messages.append(make_new_message("percy", text="late", expires_at=time.time() - 1))
        got = await store.messages.receive(PERCY, limit=10)
        assert [join_text(delivery.message.parts) for delivery in got] == ["b", "a", "c"]

    async def test_what_is_published_passes_by_inboxes_that_are_full(self, store: Store) -> None:
        for inbox in ("quick", "slow"):
            await store.messages.subscribe("news", inbox)
        posted = []
        for number in range(4):
            posted.append(await store.messages.publish("news", make_new_message(text=str(number)), most=3))
            (got,) = await store.messages.receive("quick")
            await store.messages.acknowledge("quick", [got.entry])
        assert [(each.inboxes, each.full) for each in posted] == [(2, 0), (2, 0), (2, 0), (1, 1)]
        assert [join_text(each.message.parts) for each in await store.messages.receive("slow")] == ["0", "1", "2"]
        together = await asyncio.gather(*(store.messages.publish("news", make_new_message(), most=3) for _ in range(5)))
        assert [(each.inboxes, each.full) for each in together] == [(1, 1)] * 3 + [(0, 2)] * 2

    async def test_topics_reach_every_subscriber_once(self, store: Store) -> None:
        assert await store.messages.subscribe("news", "agent:a")
        assert not await store.messages.subscribe("news", "agent:a")
        assert await store.messages.subscribe("news", "agent:b")
        assert await store.messages.subscribe("other", "agent:c")
        assert await store.messages.list_subscribers("news") == ["agent:a", "agent:b"]
        await store.messages.subscribe("third", "agent:c")
        counts = [(inbox, most) for inbox in ("agent:a", "agent:c", "stranger") for most in (1, 9)]
        assert [await store.messages.count_topics(*each) for each in counts] == [1, 1, 1, 2, 0, 0]
        await store.messages.unsubscribe("third", "agent:c")
        assert await store.messages.list_topics() == [("news", 2), ("other", 1)]
        assert await store.messages.list_topics(after="news", limit=1) == [("other", 1)]
        posted = await store.messages.publish("news", make_new_message("a"))
        assert (posted.inboxes, posted.message.topic) == (2, "news")
        assert [len(await store.messages.receive(f"agent:{each}")) for each in "abc"] == [1, 1, 0]
        assert await store.messages.unsubscribe("news", "agent:a")
        assert not await store.messages.unsubscribe("news", "agent:a")
        assert (await store.messages.publish("news", make_new_message())).inboxes == 1
        assert (await store.messages.publish("unread", make_new_message())).inboxes == 0

    async def test_a_watcher_of_an_inbox_hears_of_what_arrives(self, store: Store) -> None:
        await store.messages.subscribe("news", PERCY)
        with store.notices.watch(inbox_topic(PERCY)) as bell:
            await store.messages.append(make_new_message("percy"))
            assert await bell.wait(TIMEOUT)
            await store.messages.publish("news", make_new_message())
            assert await bell.wait(TIMEOUT)

    async def test_pruning_removes_old_messages_everywhere_and_keeps_the_numbering(self, store: Store) -> None:
        old = await store.messages.append(make_new_message("percy", key="k"))
        await store.messages.append(make_new_message("percy"))
        assert await store.messages.prune(old.message.sent_at - 1) == 0
        assert await store.messages.prune(time.time() + 60, limit=1) == 1
        assert await store.messages.prune(time.time() + 60) == 1
        assert await store.messages.get(old.message.message_id) is None
        assert await store.messages.find("psk:alice", "k") is None
        assert await store.messages.receive(PERCY) == []
        assert (await store.messages.append(make_new_message())).message.number == 3

    async def test_what_waited_in_vain_leaves_the_inboxes_and_stays_in_its_conversation(self, store: Store) -> None:
        soon = time.time() + 2.5
        await store.messages.append(make_new_message("percy", text="held", expires_at=soon))
        (held,) = await store.messages.receive(PERCY, hold=60)
        for text in ("a", "b"):
            await store.messages.append(make_new_message("percy", text=text, expires_at=soon - 60))
        await store.messages.append(make_new_message("percy", text="later", expires_at=soon + 3600))
        await store.messages.append(make_new_message("percy", text="any time"))
        await wait_until(lambda: _is_over(soon))
        assert [await store.messages.expire(limit=1) for _ in range(3)] == [1, 1, 0]
        assert [join_text(each.message.parts) for each in await store.messages.receive(PERCY)] == ["later", "any time"]
        assert await store.messages.acknowledge(PERCY, [held.entry]) == [held.entry]
        assert len(await store.messages.read_conversation("conv_1")) == 5

    async def test_a_message_and_the_job_that_brings_it_are_written_together(self, store: Store) -> None:
        new = make_new_message("percy", key="k", is_brought=True)
        posted = await store.messages.append(new, make_new_job(job_id="task_1"))
        assert posted.job is not None
        assert posted.job == summary_from_job(await read_job(store, "task_1"))
        again = await store.messages.append(new, make_new_job(job_id="task_2"))
        assert (again.is_new, again.job, again.message) == (False, None, posted.message)
        assert await store.jobs.get("task_2") is None

    async def test_neither_is_there_if_one_of_the_two_is_refused(self, store: Store) -> None:
        first = make_new_message("percy", key="k", is_brought=True)
        await store.messages.append(first, make_new_job(job_id="task_1"))
        other = make_new_message("percy", key="other", is_brought=True)
        with pytest.raises(Conflict):  # the job is there already
            await store.messages.append(other, make_new_job(job_id="task_1"))
        assert await store.messages.get(other.message_id) is None
        with pytest.raises(Conflict):  # the key was for another message
            await store.messages.append(make_new_message("percy", key="k", text="else"), make_new_job(job_id="task_2"))
        with pytest.raises(BadInput):
            await store.messages.append(
                make_new_message("percy", key="high"), make_new_job(job_id="task_2", priority=9)
            )
        assert await store.jobs.get("task_2") is None
        assert (await store.messages.append(make_new_message())).message.number == 2

    async def test_messages_with_jobs_that_come_at_once_do_not_disturb_each_other(self, store: Store) -> None:
        """Each of these keys comes twice, and every third job cannot be."""
        await store.jobs.accept(make_new_job(job_id="taken"))

        async def post(number: int) -> str:
            job_id = "taken" if number % 3 == 0 else f"task_{number}_{new_id()}"
            new = make_new_message("percy", text=str(number), key=str(number), is_brought=True)
            try:
                posted = await store.messages.append(new, make_new_job(job_id=job_id))
            except Conflict:
                return "refused"
            return "new" if posted.job is not None else "known"

        outcomes = await asyncio.gather(*(post(number // 2) for number in range(60)))
        for number in range(30):
            assert sorted(outcomes[2 * number : 2 * number + 2]) == (
                ["refused"] * 2 if number % 3 == 0 else ["known", "new"]
            )
        kept = await store.messages.read_conversation("conv_1")
        assert [message.number for message in kept] == list(range(1, 21))
        assert len((await store.jobs.list(JobFilter())).jobs) == 21

    async def test_a_page_of_large_messages_is_shorter_but_never_empty(self, store: Store) -> None:
        for _ in range(6):
            await store.messages.append(make_new_message(text="x" * 1000))

        async def numbers(after: int, max_bytes: int) -> list[int]:
            return [
                m.number for m in await store.messages.read_conversation("conv_1", after=after, max_bytes=max_bytes)
            ]

        assert await numbers(0, 4000) in ([1, 2], [1, 2, 3])
        assert await numbers(2, 1) == [3]
        assert await numbers(0, 10**6) == [1, 2, 3, 4, 5, 6]
        assert await numbers(6, 1) == []

    async def test_large_messages_are_received_a_few_at_a_time_and_the_others_go_on_waiting(self, store: Store) -> None:
        for number in range(5):
            await store.messages.append(make_new_message("percy", text=f"{number}{'x' * 1000}"))
        seen: list[str] = []
        for _ in range(3):
            got = await store.messages.receive(PERCY, limit=10, max_bytes=3000)
            assert len(got) <= 2
            seen += [join_text(delivery.message.parts)[0] for delivery in got]
            assert all(delivery.attempt == 1 for delivery in got)
        assert seen == ["0", "1", "2", "3", "4"]
        await store.messages.append(make_new_message("percy", text="x" * 1000))
        assert len(await store.messages.receive(PERCY, max_bytes=1)) == 1


ALICE, BOB = "psk:alice", "psk:bob"


LONG = IdReservation(seconds=3600, names=10)


def look(at: float, agent_id: str = "percy", **about: Any) -> HealthCheck:
    return HealthCheck(agent_id=agent_id, checked_at=at, **{"status": "online", **about})


async def left_behind(store: Store) -> None:
    """A message and a subscription of an agent whose registration has ended."""
    await store.registrations.register(make_manifest("percy"), ALICE)
    await store.messages.append(make_new_message("percy", text="for alice's percy only"))
    await store.messages.subscribe("news", PERCY)
    assert await store.registrations.remove("percy", ALICE)


class RegistrationStoreContract:
    """The contract of `Store.registrations` and `Store.health`: leases, owners, changes, reserved ids, history."""

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

    async def test_an_agent_whose_lease_ran_out_may_be_registered_by_another_owner(self, store: Store) -> None:
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
        ("filters", "found"),
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
        self, store: Store, filters: dict[str, Any], found: list[str]
    ) -> None:  # fmt: skip
        one = make_manifest("one", "parse_recipe", tags=("x",), runtime="http", realm="r", cog_id="c", delegate_id="d")
        two = make_manifest("two", "fly", tags=("x", "y"), runtime="mcp", node_id="n2", trust_tier="public")
        await store.registrations.register(one, ALICE)
        await store.registrations.register(two, BOB)
        assert [row.agent_id for row in await store.registrations.list(RegistrationFilter(**filters))] == found

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
        assert (await store.messages.status(PERCY)).waiting == 1
        assert await store.messages.list_subscribers("news") == [PERCY]

    async def test_another_owner_begins_with_an_empty_inbox_and_no_subscriptions(self, store: Store) -> None:
        await left_behind(store)
        over = IdReservation(seconds=0, names=10)
        taken = await store.registrations.register(make_manifest("percy"), BOB, reservation=over)
        assert taken.owner == BOB
        assert (await store.messages.status(PERCY)).waiting == 0
        assert await store.messages.receive(PERCY) == []
        assert await store.messages.list_subscribers("news") == []
        assert await store.messages.list_topics() == []

    async def test_the_next_owner_after_a_lease_that_ran_out_inherits_nothing_either(self, store: Store) -> None:
        await left_behind(store)
        await store.registrations.register(make_manifest("percy"), ALICE, lease=0)
        await store.registrations.register(make_manifest("percy"), BOB)
        assert (await store.messages.status(PERCY)).waiting == 0
        assert await store.messages.list_subscribers("news") == []

    async def test_the_first_owner_of_an_id_begins_with_an_empty_inbox_too(self, store: Store) -> None:
        await store.messages.append(make_new_message("percy", text="to a mere name"))
        await store.messages.subscribe("news", PERCY)
        await store.registrations.register(make_manifest("percy"), BOB, reservation=LONG)
        assert (await store.messages.status(PERCY)).waiting == 0
        assert await store.messages.list_subscribers("news") == []

    async def test_only_an_owner_s_latest_ids_are_reserved_so_no_owner_hoards_them(self, store: Store) -> None:
        for number in range(4):
            await store.registrations.register(make_manifest(f"percy-{number}"), ALICE)
        for number in range(4):
            await store.registrations.remove(f"percy-{number}", ALICE)
        few = IdReservation(seconds=3600, names=2)
        assert (await store.registrations.register(make_manifest("percy-0"), BOB, reservation=few)).owner == BOB
        with pytest.raises(Forbidden, match="reserved"):
            await store.registrations.register(make_manifest("percy-3"), BOB, reservation=few)


@pytest.mark.asyncio
class DescriptionStoreContract:
    """The contract of `Store.descriptions`."""

    async def test_descriptions_are_replaced_by_agent_and_connection(self, store: Store) -> None:
        first = StoredDescription(agent_id="percy", connection="a", body=b'{"version":"1"}', seen_at=1.0)
        other = msgspec.structs.replace(first, connection="b", seen_at=2.0)
        last = msgspec.structs.replace(first, agent_id="zed", body=b"\x00\xff", seen_at=3.0)
        await store.descriptions.put([last, other, first])
        assert list(await store.descriptions.read()) == [first, other, last]
        assert list(await store.descriptions.read(limit=1)) == [first]
        assert list(await store.descriptions.read(after=("percy", "a"))) == [other, last]
        newer = msgspec.structs.replace(first, body=b"{}", seen_at=5.0)
        await store.descriptions.put([newer])
        await store.descriptions.put([])
        assert await store.descriptions.prune(3.0) == 1
        assert list(await store.descriptions.read()) == [newer, last]

    async def test_large_descriptions_are_read_in_pages(self, store: Store) -> None:
        large = [
            StoredDescription(agent_id=f"a{number}", connection="c", body=bytes(9 << 20), seen_at=1.0)
            for number in range(3)
        ]
        await store.descriptions.put(large)
        names: list[str] = []
        while page := await store.descriptions.read(after=(names[-1], "c") if names else ("", "")):
            assert len(page) == 1
            names += [each.agent_id for each in page]
        assert names == ["a0", "a1", "a2"]


class StoreContract(
    JobStoreContract,
    MessageStoreContract,
    RegistrationStoreContract,
    DescriptionStoreContract,
    LoginStoreContract,
    CallStoreContract,
    ReceiptStoreContract,
    KeyStoreContract,
):
    """What every store promises. Subclass it, and add a fixture `store`: an empty store that is open."""
