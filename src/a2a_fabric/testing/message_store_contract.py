"""The contract of `Store.messages`: conversations, inboxes and topics."""

from __future__ import annotations

import asyncio
import time

import pytest

from a2a_fabric.core.errors import BadInput, Conflict, JobNotFound
from a2a_fabric.core.job import Job, JobFilter
from a2a_fabric.core.job_lifecycle import summary_from_job
from a2a_fabric.core.message import Party, make_extension_part
from a2a_fabric.core.part import Part
from a2a_fabric.core.stores import Store, inbox_topic
from a2a_fabric.core.trace import new_id
from a2a_fabric.testing.values import (
    TIMEOUT,
    join_text,
    make_new_job,
    make_new_message,
    wait_until,
)

PERCY = Party(id="percy").inbox


async def _is_over(moment: float) -> bool:
    return time.time() > moment + 0.05


async def read_job(store: Store, job_id: str) -> Job:
    job = await store.jobs.get(job_id)
    assert job is not None
    return job


class MessageStoreContract:
    """Every test gets a fixture `store`: an empty store that is open."""

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

        said = await asyncio.gather(*(post(number // 2) for number in range(60)))
        for number in range(30):
            assert sorted(said[2 * number : 2 * number + 2]) == (
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
