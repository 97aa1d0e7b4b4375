"""Writing and following a job's log: the recorder and the reader over a store in memory that can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from a2a_fabric.core.errors import JobNotFound, StoreUnavailable, UpstreamFailed
from a2a_fabric.core.job import ClaimRequest, EventPage, FencingToken, HoldRequest, Job, JobOutcome, NewJob, new_job_id
from a2a_fabric.core.result import Event, Result, token
from a2a_fabric.core.stores import JobStore
from a2a_fabric.jobs.reader import JobReader, LocalState
from a2a_fabric.jobs.run import EventsTooLarge, Recorder
from a2a_fabric.stores.sqlite import MemoryStore
from tests.unit.made import call

pytestmark = pytest.mark.usefixtures("without_polling")


async def running_job(store: MemoryStore) -> Job:
    new = NewJob(job_id=new_job_id(), owner="psk:alice", call=call())
    await store.jobs.accept(new)
    (job,) = await store.jobs.claim(ClaimRequest(hold=HoldRequest(worker="w", lease=60.0)))
    return job


async def end(store: MemoryStore, job: Job, *events: Event) -> None:
    await store.jobs.release(job.fencing_token, JobOutcome(state="completed", result=Result(data={}), events=events))


def never() -> None:
    raise AssertionError("the job was not lost")


def elsewhere(job_id: str) -> LocalState:
    """No worker of this process runs it."""
    return "elsewhere"


class Shaky:
    """The jobs of a store whose appends fail now and then: before they are done, or after."""

    def __init__(self, jobs: JobStore, *troubles: str) -> None:
        self._jobs = jobs
        self._troubles = list(troubles)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    async def append(self, held: FencingToken, events: Sequence[Event]) -> int:
        trouble = self._troubles.pop(0) if self._troubles else ""
        if trouble == "before":
            raise StoreUnavailable("gone")
        last = await self._jobs.append(held, events)
        if trouble == "after":
            raise StoreUnavailable("gone, but it was written")
        return last


async def texts(store: MemoryStore, job: Job) -> list[str]:
    page = await store.jobs.events(job.job_id, limit=100_000, max_bytes=1 << 30)
    assert [line.number for line in page.events] == list(range(1, len(page.events) + 1))
    return [line.event.data["text"] for line in page.events]


@pytest.mark.parametrize("troubles", [(), ("before",), ("after",), ("before", "after", "before")])
async def test_events_are_written_once_and_in_order_whatever_the_store_does(troubles: tuple[str, ...]) -> None:
    store = MemoryStore()
    job = await running_job(store)
    recorder = Recorder(Shaky(store.jobs, *troubles), job, 1 << 20, never)
    for number in range(50):
        await recorder.emit(token(str(number)))
        if number % 10 == 0:
            await asyncio.sleep(0.005)
    async with asyncio.timeout(20):
        rest = await recorder.close()
    await end(store, job, *rest)
    assert await texts(store, job) == [str(number) for number in range(50)]


async def test_a_log_has_a_largest_size_and_the_job_a_typed_end() -> None:
    store = MemoryStore()
    job = await running_job(store)
    recorder = Recorder(store.jobs, job, job.size + 100, never)
    await recorder.emit(token("x" * 50))
    with pytest.raises(EventsTooLarge) as refused:
        await recorder.emit(token("y" * 50))
    assert refused.value.details["reason"] == "events_too_large"
    assert recorder.refusal is refused.value
    assert len(await recorder.close()) <= 1


async def test_what_json_cannot_hold_is_refused_before_it_is_kept() -> None:
    store = MemoryStore()
    recorder = Recorder(store.jobs, await running_job(store), 1 << 20, never)
    with pytest.raises(UpstreamFailed):
        await recorder.emit(Event("artifact", {"odd": object()}))
    assert await recorder.close() == ()


async def test_who_has_lost_the_job_is_told_and_writes_nothing() -> None:
    store, lost = MemoryStore(), asyncio.Event()
    job = await running_job(store)
    await store.jobs.heartbeat([job.fencing_token], 0.0)
    await store.jobs.take_over(HoldRequest(worker="other", lease=60.0))
    recorder = Recorder(store.jobs, job, 1 << 20, lost.set)
    await recorder.emit(token("too late"))
    async with asyncio.timeout(20):
        await lost.wait()
    assert await texts(store, job) == []


async def test_readers_who_come_at_any_time_hear_everything_once() -> None:
    store = MemoryStore()
    reader = JobReader(store, elsewhere)
    job = await running_job(store)

    async def read(after: int) -> list[int]:
        return [line.number async for line in reader.follow(job.job_id, after)]

    readers = []
    for number in range(200):
        if number % 5 == 0:
            readers.append((number // 2, asyncio.ensure_future(read(number // 2))))
        await store.jobs.append(job.fencing_token, [token(f"{number}.{part}") for part in range(10)])
        if number % 7 == 0:
            await asyncio.sleep(0)
    await end(store, job)
    async with asyncio.timeout(20):
        for after, reading in readers:
            assert await reading == list(range(after + 1, 2001))
    assert await read(1990) == list(range(1991, 2001))
    assert await read(99_999) == []


async def test_a_slow_reader_delays_no_other_reader_and_misses_nothing() -> None:
    store = MemoryStore()
    reader = JobReader(store, elsewhere)
    job = await running_job(store)
    slow = reader.follow(job.job_id)
    await store.jobs.append(job.fencing_token, [token("first")])
    assert (await anext(slow)).number == 1
    for _ in range(50):
        await store.jobs.append(job.fencing_token, [token("x" * 1000) for _ in range(100)])
        await asyncio.sleep(0)
    await end(store, job)
    fast = [line.number async for line in reader.follow(job.job_id)]
    assert fast == list(range(1, 5002))
    assert [line.number async for line in slow] == fast[1:]


async def test_a_reader_ends_at_a_question_or_stays_as_it_chose() -> None:
    store = MemoryStore()
    reader = JobReader(store, elsewhere)
    job = await running_job(store)
    staying = asyncio.ensure_future(_numbers(reader.follow(job.job_id, past_questions=True)))
    await store.jobs.release(job.fencing_token, JobOutcome(state="input_required", question={}, events=(token("?"),)))
    assert await _numbers(reader.follow(job.job_id)) == [1]
    await store.jobs.answer(job.job_id, {}, [token("!")])
    (again,) = await store.jobs.claim(ClaimRequest(hold=HoldRequest(worker="w", lease=60.0)))
    await end(store, again, token("done"))
    async with asyncio.timeout(20):
        assert await staying == [1, 2, 3]


async def test_a_job_that_is_not_there_cannot_be_followed() -> None:
    with pytest.raises(JobNotFound):
        await anext(JobReader(MemoryStore(), elsewhere).follow("job_0"))


async def test_a_reader_that_waits_for_the_end_gets_it_and_questions_as_it_chose() -> None:
    store = MemoryStore()
    reader = JobReader(store, elsewhere)
    job = await running_job(store)
    short, long = (
        asyncio.ensure_future(reader.wait_until_settled(job.job_id, past_questions=past)) for past in (False, True)
    )  # fmt: skip
    await store.jobs.append(job.fencing_token, [token("hm")])
    await asyncio.sleep(0.01)
    assert not short.done()
    await store.jobs.release(job.fencing_token, JobOutcome(state="input_required", question={}))
    async with asyncio.timeout(20):
        await short
        await store.jobs.answer(job.job_id, {})
        (again,) = await store.jobs.claim(ClaimRequest(hold=HoldRequest(worker="w", lease=60.0)))
        assert not long.done()
        await end(store, again)
        await long
        await reader.wait_until_settled(job.job_id)
    with pytest.raises(JobNotFound):
        await reader.wait_until_settled("job_0")


async def test_who_waits_for_the_end_of_work_that_is_done_here_reads_nothing_until_it_is_left() -> None:
    store = MemoryStore()
    looks: list[str] = []
    standing: LocalState = "working"

    class Counted:
        notices = store.notices

        class jobs:
            @staticmethod
            async def events(job_id: str, **how: Any) -> EventPage:
                looks.append("state")
                return await store.jobs.events(job_id, **how)

            @staticmethod
            async def get(job_id: str) -> Job | None:
                looks.append("job")
                return await store.jobs.get(job_id)

    reader = JobReader(Counted, lambda job_id: standing)  # type: ignore[arg-type]
    job = await running_job(store)
    waiting = asyncio.ensure_future(reader.wait_until_settled(job.job_id))
    for number in range(20):
        await store.jobs.append(job.fencing_token, [token(str(number))])
        await asyncio.sleep(0.001)
    assert looks == ["state"]
    standing = "leaving"
    await end(store, job)
    async with asyncio.timeout(20):
        await waiting
    assert looks == ["state", "job"]


async def test_who_waits_for_the_end_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    job = await running_job(store)
    await end(store, job)
    known, troubles = store.jobs.events, [StoreUnavailable("gone"), StoreUnavailable("gone")]

    async def events(job_id: str, **how: Any) -> EventPage:
        if troubles:
            raise troubles.pop()
        return await known(job_id, **how)

    monkeypatch.setattr(store.jobs, "events", events)
    async with asyncio.timeout(20):
        await JobReader(store, elsewhere).wait_until_settled(job.job_id)
    assert not troubles


async def test_who_waits_for_the_end_is_sent_away_when_the_node_stops() -> None:
    store = MemoryStore()
    reader = JobReader(store, elsewhere)
    job = await running_job(store)
    waiting = asyncio.ensure_future(reader.wait_until_settled(job.job_id))
    await asyncio.sleep(0.01)
    reader.stop()
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable, match="being stopped"):
            await waiting
        with pytest.raises(StoreUnavailable, match="being stopped"):
            await reader.wait_until_settled(job.job_id)


async def _numbers(lines: Any) -> list[int]:
    return [line.number async for line in lines]
