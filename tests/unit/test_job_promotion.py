"""A call that becomes a job while its agent speaks: every event once and in order, and never too much in memory."""

from __future__ import annotations

import asyncio
import time

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.core.job import HoldRequest, JobSummary
from a2a_fabric.core.result import Event, Result, token
from a2a_fabric.jobs.promotion import Promotion
from a2a_fabric.jobs.run import Recorder
from a2a_fabric.stores.sqlite import MemoryStore
from tests.contracts.stores import log_of, new_job
from tests.unit.made import call

WAIT_TIMEOUT = 20.0


class PromotionSetup:
    """An agent that says what it is told to, and a store that takes its time to write a job."""

    def __init__(self) -> None:
        self.store = MemoryStore(time.time)
        self.is_away = False
        self.asked_to_write = asyncio.Event()
        self.may_write = asyncio.Event()
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.cancelled = asyncio.Event()
        self.adopted: tuple[JobSummary, asyncio.Task[Result], Recorder] | None = None
        self.is_adopted = asyncio.Event()
        self.heard: list[str] = []

    async def agent(self, call: Call, emit: Emit) -> Result:
        try:
            while (word := await self.words.get()) is not None:
                await emit(token(word))
                self.words.task_done()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Result(data={"answer": "done"})

    async def create_job(self, events: object) -> tuple[JobSummary, Recorder]:
        self.asked_to_write.set()
        await self.may_write.wait()
        if self.is_away:
            raise StoreUnavailable("gone")
        new = new_job(hold=HoldRequest(worker="w", lease=60.0), events=events)
        job = (await self.store.jobs.accept(new)).job
        return job, Recorder(self.store.jobs, job, 1 << 30, self._lost)

    def attach(self, job: JobSummary, task: asyncio.Task[Result], recorder: Recorder) -> None:
        self.adopted = (job, task, recorder)
        self.is_adopted.set()

    async def hear(self, event: Event) -> None:
        self.heard.append(event.data["text"])

    def begun(self, timeout: float) -> asyncio.Future[Result | JobSummary]:
        return asyncio.ensure_future(Promotion(self.agent, self, call("percy"), self.hear).wait(timeout))

    def say(self, *words: str) -> None:
        for word in words:
            self.words.put_nowait(word)

    async def written(self) -> list[tuple[int, str]]:
        """The log, once the agent is done."""
        assert self.adopted is not None
        job, task, recorder = self.adopted
        self.words.put_nowait(None)
        await task
        rest = await recorder.close()
        await self.store.jobs.append(job.fencing_token, rest)
        return await log_of(self.store, job.job_id)

    def _lost(self) -> None:
        raise AssertionError("nobody takes it")


async def test_what_is_said_while_the_job_is_written_down_is_in_its_log_too() -> None:
    setup = PromotionSetup()
    async with asyncio.timeout(WAIT_TIMEOUT):
        setup.say("before")
        calling = setup.begun(0.05)
        await setup.asked_to_write.wait()
        setup.say("meanwhile")
        await setup.words.join()
        setup.may_write.set()
        job = await calling
        setup.say("after")
        assert isinstance(job, JobSummary)
        assert await setup.written() == [(1, "before"), (2, "meanwhile"), (3, "after")]
        assert setup.heard == ["before"]  # the rest is after the number that the handle shows
        assert job.events == 1


async def test_a_call_that_says_very_much_becomes_a_job_before_its_time() -> None:
    setup = PromotionSetup()
    setup.may_write.set()
    async with asyncio.timeout(WAIT_TIMEOUT):
        calling = setup.begun(3600.0)
        setup.say(*(str(number) for number in range(5000)))
        assert isinstance(await calling, JobSummary)
        assert await setup.written() == [(number + 1, str(number)) for number in range(5000)]


async def test_a_call_that_cannot_become_a_job_is_waited_for_as_any_other() -> None:
    setup = PromotionSetup()
    setup.is_away = True
    setup.may_write.set()
    async with asyncio.timeout(WAIT_TIMEOUT):
        calling = setup.begun(0.01)
        await setup.asked_to_write.wait()
        setup.say("word")
        setup.words.put_nowait(None)
        assert await calling == Result(data={"answer": "done"})
        assert setup.heard == ["word"]


async def test_who_leaves_while_a_call_fails_to_become_a_job_takes_its_work_along() -> None:
    setup = PromotionSetup()
    setup.is_away = True
    async with asyncio.timeout(WAIT_TIMEOUT):
        calling = setup.begun(0.01)
        await setup.asked_to_write.wait()
        calling.cancel()
        await asyncio.wait({calling})
        setup.may_write.set()
        await setup.cancelled.wait()


async def test_who_leaves_while_a_call_becomes_a_job_leaves_the_work_to_it() -> None:
    setup = PromotionSetup()
    async with asyncio.timeout(WAIT_TIMEOUT):
        calling = setup.begun(0.01)
        await setup.asked_to_write.wait()
        calling.cancel()
        await asyncio.wait({calling})
        setup.may_write.set()
        await setup.is_adopted.wait()
        setup.say("on")
        assert await setup.written() == [(1, "on")]
