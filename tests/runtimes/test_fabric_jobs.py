"""Calls that become jobs on the other node: they are followed to their end, and never left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Question, Result, make_input_required
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.runtimes.fabric_nodes import QUIET, Line, entry, line_to, listed


class Clerk:
    """An agent all of whose work is written down: at once, or after a moment."""

    def __init__(self) -> None:
        self.agent = Agent("clerk")
        self.started = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        for function in (self.note, self.refuse, self.inquire, self.linger):
            self.agent.capability(name=function.__name__, job_after_ms=0)(function)
        self.agent.capability(name="dawdle", job_after_ms=50)(self.dawdle)

    async def note(self, task: str) -> AsyncIterator[str | dict[str, Any]]:
        """Write word by word, and wait in between."""
        yield "first"
        self.started.set()
        await self.may_go_on.wait()
        yield "second"
        yield {"noted": task}

    async def dawdle(self, task: str) -> AsyncIterator[str | dict[str, Any]]:
        """Begin as a call, end as a job."""
        async for each in self.note(task):
            yield each

    async def refuse(self, task: str) -> dict[str, Any]:
        """Say no, on paper."""
        raise BadInput("not on a Monday", day="Monday")

    async def inquire(self, task: str, call: Call) -> Result:
        """Ask first."""
        if not call.answers:
            return make_input_required(
                {"when": Question(kind="form", message="When?", schema={"type": "object"})}, "the-form"
            )
        return Result(data={"on": call.answers.answers["when"].content})

    async def linger(self, task: str) -> dict[str, Any]:
        """Work until cancelled."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return {}


class Office:
    def __init__(self, here: Node, there: Node, line: Line, clerk: Clerk) -> None:
        self.here = here
        self.there = there
        self.line = line
        self.clerk = clerk

    async def jobs(self) -> list[dict[str, Any]]:
        envelope = await self.there.operation("fabric.job.list", {})
        jobs: list[dict[str, Any]] = envelope["result"]["jobs"]
        return jobs

    async def until_jobs_are(self, *states: str) -> None:
        async def they_are() -> bool:
            return [job["state"] for job in await self.jobs()] == list(states)

        await eventually(they_are)

    async def until_followed(self) -> None:
        """Until the call knows here that it is a job there."""

        async def is_followed() -> bool:
            return b"fabric.job.stream" in self.line.asked

        await eventually(is_followed)


@pytest_asyncio.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    clerk = Clerk()
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(running(clerk.agent, base=tmp_path, config=QUIET))
        line = await stack.enter_async_context(line_to(there))
        here = await stack.enter_async_context(running(manifests=[entry(line.url)], config=QUIET))
        await listed(here, "lab/clerk")
        yield Office(here, there, line, clerk)


@pytest.mark.parametrize("capability", ["note", "dawdle"])
async def test_a_call_that_became_a_job_there_is_still_an_answer_here(office: Office, capability: str) -> None:
    asking_ = asyncio.ensure_future(office.here.ask("lab/clerk", capability, "the answer"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await office.clerk.started.wait()
        await office.until_jobs_are("running")
        office.clerk.may_go_on.set()
        envelope = await asking_
    assert envelope["result"] == {"noted": "the answer"}
    assert "job_id" not in envelope
    await office.until_jobs_are("completed")


@pytest.mark.parametrize("capability", ["note", "dawdle"])
async def test_its_events_come_once_and_in_order_through_a_broken_line(office: Office, capability: str) -> None:
    words: list[str] = []
    given = {"agent_id": "lab/clerk", "capability": capability, "task": "it"}
    async with asyncio.timeout(WAIT_TIMEOUT), office.here.stream("fabric.call", given) as events:
        async for event in events:
            if event["event"] == "token":
                words.append(event["data"]["text"])
            if words == ["first"] and not office.clerk.may_go_on.is_set():
                await office.until_jobs_are("running")
                await office.until_followed()
                await office.line.cut()
                office.clerk.may_go_on.set()
                await office.until_jobs_are("completed")
                await office.line.mend()
        assert event["event"] == "final"
    assert words == ["first", "second"]
    assert event["data"]["result"] == {"noted": "it"}


async def test_the_error_of_a_job_is_the_error_of_the_call(office: Office) -> None:
    envelope = await office.here.ask("lab/clerk", "refuse")
    assert envelope["error_code"] == "BAD_INPUT"
    assert envelope["error"] == "not on a Monday"
    assert envelope["error_details"]["day"] == "Monday"
    assert envelope["error_details"]["hops"] == ["lab"]


async def test_leaving_cancels_the_job(office: Office) -> None:
    asking_ = asyncio.ensure_future(office.here.ask("lab/clerk", "linger"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await office.clerk.started.wait()
        asking_.cancel()
        await office.clerk.cancelled.wait()
    await office.until_jobs_are("cancelled")


async def test_a_job_whose_caller_ran_out_of_time_is_not_left_behind(office: Office) -> None:
    envelope = await office.here.ask("lab/clerk", "linger", timeout_ms=2000)
    assert envelope["error_code"] == "TIMEOUT"
    async with asyncio.timeout(WAIT_TIMEOUT):
        await office.clerk.cancelled.wait()

    async def has_ended() -> bool:
        return [job["state"] for job in await office.jobs()] in (["cancelled"], ["timeout"])

    await eventually(has_ended)


async def test_a_question_of_a_job_is_answered_from_here(office: Office) -> None:
    told = (await office.here.ask("lab/clerk", "inquire"))["result"]["input_required"]
    await office.until_jobs_are("input_required")
    answers = {"when": {"content": {"day": "Tuesday"}}}
    envelope = await office.here.ask("lab/clerk", "inquire", continuation=told["continuation"], answers=answers)
    assert envelope["result"] == {"on": {"day": "Tuesday"}}
    await office.until_jobs_are("completed")


async def test_a_job_of_ours_can_be_one_of_theirs(office: Office) -> None:
    handle = await office.here.ask("lab/clerk", "note", "twice", **{"async": True})
    job_id = handle["job_id"]
    office.clerk.may_go_on.set()
    envelope = await office.here.operation("fabric.job.result", {"job_id": job_id, "wait_ms": 20_000})
    assert envelope["result"] == {"noted": "twice"}
    await office.until_jobs_are("completed")
