"""Several processes on one store, and processes that die."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from a2a_fabric.core.errors import LeaseLost
from a2a_fabric.core.job import HoldRequest, JobFilter
from a2a_fabric.core.registration import RegistrationFilter
from a2a_fabric.core.result import Result
from a2a_fabric.core.stores import AGENTS_TOPIC, Store, inbox_topic, job_topic
from tests.contracts.stores import (
    CANCELLED,
    WAIT_TIMEOUT,
    Engine,
    begun,
    completed,
    log_of,
    new_job,
    new_message,
    opened,
    text_of,
    tokens,
    until,
)
from tests.unit.made import agent

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("STORE_CRASH_ROUNDS", "4"))  # `make soak` asks for more


@asynccontextmanager
async def child(*words: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fixtures.store_child", *words, cwd=ROOT, stdin=PIPE, stdout=PIPE,
        stderr=STDOUT,  # it has nothing else to say
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: Process) -> list[list[str]]:
    """Everything it says until it ends; a last line that was cut short does not count."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_TIMEOUT):
        text = (await process.stdout.read()).decode()
    return [line.split() for line in text.split("\n")[:-1]]


async def heard(process: Process, lines: int) -> list[list[str]]:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_TIMEOUT):
        return [(await process.stdout.readline()).decode().split() for _ in range(lines)]


class Ledger:
    """What was acknowledged to anybody, over all rounds."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}  # key -> id
        self.events: Counter[str] = Counter()
        self.ended: set[str] = set()
        self.messages: dict[str, int] = {}

    def note(self, lines: list[list[str]]) -> None:
        for kind, first, second in lines:
            if kind == "accepted":
                assert second not in self.jobs
                self.jobs[second] = first
            elif kind == "event":
                self.events[first] = int(second)
            elif kind == "ended":
                self.ended.add(first)
            else:
                self.messages[second] = int(first)

    async def check(self, store: Store) -> None:
        for key, job_id in self.jobs.items():
            job = await store.jobs.find("psk:alice", key)
            assert job is not None, f"{key} was acknowledged and is gone"
            assert job.job_id == job_id
            log = await log_of(store, job_id)
            assert log == [(n, str(n)) for n in range(1, len(log) + 1)]
            assert self.events[job_id] <= len(log) == job.events
            if job_id in self.ended:
                assert (job.state, job.result) == ("completed", Result(data={"key": key}))
            assert (job.state == "completed") == (len(log) == 4)
        await self._check_messages(store)
        assert (await store.status()).jobs.keys() <= {"running", "completed"}

    async def _check_messages(self, store: Store) -> None:
        kept = {}
        after = 0
        while page := await store.messages.read_conversation("conv_1", after=after, limit=500):
            for message in page:
                assert message.number == after + 1
                kept[text_of(message.parts)] = after = message.number
        assert self.messages.items() <= kept.items()
        assert len(kept) == after, "a message was written twice"
        inbox = await store.messages.status("agent:percy")
        assert inbox.waiting == len(kept)


@pytest.mark.rounds
async def test_after_kill_nothing_acknowledged_is_missing_or_doubled(shared_engine: Engine) -> None:
    ledger = Ledger()
    chance = random.Random()
    for round_ in range(ROUNDS):
        async with child("write", shared_engine.address, f"r{round_}") as process:
            first = await heard(process, chance.randint(1, 40))
            await asyncio.sleep(chance.uniform(0, 0.3))  # the moment is what is tried, not what is waited for
            process.kill()
            ledger.note([*first, *await said(process)])
        async with opened(shared_engine) as store:
            await ledger.check(store)
    assert len(ledger.jobs) >= 1


async def test_several_processes_share_the_work_and_each_job_is_done_once(shared_engine: Engine) -> None:
    async with opened(shared_engine) as store:
        accepted = await asyncio.gather(
            *(store.jobs.accept(new_job("narrow" if n % 3 else "wide")) for n in range(90))
        )  # fmt: skip
        ids = {each.job.job_id for each in accepted}
        async with (
            child("work", shared_engine.address, "w1") as one,
            child("work", shared_engine.address, "w2") as two,
            child("work", shared_engine.address, "w3") as three,
        ):
            await until(lambda: _all_ended(store))
            late = (await store.jobs.accept(new_job())).job.job_id  # the idle ones hear of it
            await until(lambda: _all_ended(store))
            claims = []
            for process in (one, two, three):
                assert process.stdin is not None
                process.stdin.close()
                claims += [line for line in await said(process) if line[0] == "claimed"]
        assert sorted(job_id for _, job_id, _ in claims) == sorted(ids | {late})
        for job_id in ids:
            [(_, worker), (_, end)] = await log_of(store, job_id)
            assert worker in {"w1", "w2", "w3"}
            assert end == "end"


async def _all_ended(store: Store) -> bool:
    return not (await store.jobs.list(JobFilter(states=("queued", "running")), limit=1)).jobs


async def test_a_reader_follows_a_log_that_another_node_writes(shared_engine: Engine) -> None:
    async with opened(shared_engine) as here, opened(shared_engine) as there:
        job = await begun(there)

        async def follow() -> list[int]:
            seen: list[int] = []
            with here.notices.watch(job_topic(job.job_id)) as wake_handle:
                while True:
                    page = await here.jobs.events(job.job_id, after=len(seen))
                    seen += [line.number for line in page.events]
                    if page.is_complete:
                        return seen
                    assert await wake_handle.wait(WAIT_TIMEOUT), "nobody told of the change"

        reader = asyncio.create_task(follow())
        for number in range(1, 6):
            await there.jobs.append(job.fencing_token, tokens(str(number)))
            await until(lambda: _is_read(here, job.job_id, number))  # noqa: B023
        await there.jobs.release(job.fencing_token, completed())
        assert await reader == [1, 2, 3, 4, 5]


async def _is_read(store: Store, job_id: str, number: int) -> bool:
    return (await store.jobs.events(job_id)).last >= number


async def test_an_agent_registered_on_one_node_is_seen_by_the_others(shared_engine: Engine) -> None:
    async with opened(shared_engine) as here, opened(shared_engine) as there:
        with there.notices.watch(AGENTS_TOPIC) as wake_handle:
            assert await there.registrations.read_changes(0) == []
            await here.registrations.register(agent("percy"), "psk:alice")
            assert await wake_handle.wait(WAIT_TIMEOUT)
            assert [row.agent_id for row in await there.registrations.list(RegistrationFilter())] == ["percy"]


async def test_of_several_nodes_that_start_together_one_makes_the_schema(shared_engine: Engine) -> None:
    async def start() -> list[list[str]]:
        async with child("open", shared_engine.address) as process:
            return await said(process)

    answers = await asyncio.gather(*(start() for _ in range(4)))
    assert len({tuple(answer[0]) for answer in answers}) == 1
    assert answers[0][0][0] == "opened"


async def test_a_node_that_comes_back_finds_everything(shared_engine: Engine) -> None:
    async with opened(shared_engine) as store:
        job = await begun(store)
        await store.jobs.append(job.fencing_token, tokens("a"))
        await store.registrations.register(agent("percy"), "psk:alice", lease=3600)
    async with opened(shared_engine) as store:
        assert await store.jobs.append(job.fencing_token, tokens("b")) == 2
        assert await log_of(store, job.job_id) == [(1, "a"), (2, "b")]
        assert await store.registrations.get("percy") is not None


async def test_an_inbox_filled_by_one_node_rings_on_the_others(shared_engine: Engine) -> None:
    async with opened(shared_engine) as here, opened(shared_engine) as there:
        with there.notices.watch(inbox_topic("agent:percy")) as wake_handle:
            assert await there.messages.receive("agent:percy") == []
            await here.messages.append(new_message("percy"))
            assert await wake_handle.wait(WAIT_TIMEOUT)
            assert len(await there.messages.receive("agent:percy")) == 1


async def test_a_request_to_cancel_on_one_node_rings_where_the_job_is_held(shared_engine: Engine) -> None:
    async with opened(shared_engine) as here, opened(shared_engine) as there:
        job = await begun(here)
        with here.notices.watch(job_topic(job.job_id)) as wake_handle:
            await there.jobs.cancel(job.job_id, CANCELLED)
            assert await wake_handle.wait(WAIT_TIMEOUT)
            [pulse] = await here.jobs.heartbeat([job.fencing_token], 60)
            assert pulse.cancel_requested


async def test_a_holder_that_was_replaced_on_another_node_is_refused(shared_engine: Engine) -> None:
    async with opened(shared_engine) as here, opened(shared_engine) as there:
        job = await begun(here, lease=0)
        [taken] = await there.jobs.take_over(HoldRequest(worker="there", lease=60))
        with pytest.raises(LeaseLost):
            await here.jobs.append(job.fencing_token, tokens("stalled"))
        assert await there.jobs.append(taken.fencing_token, tokens("mine")) == 1
