from __future__ import annotations

import asyncio
import time

import pytest

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import BadInput, CallTimeout
from a2a_fabric.core.tasks import Deadline, enforce_deadline
from a2a_fabric.testing import ScriptedRuntime, Turn
from tests.marks import requirement
from tests.unit.made import agent, call


@requirement("001-44")
async def test_work_that_takes_too_long_ends_as_a_timeout() -> None:
    started = time.monotonic()
    with pytest.raises(CallTimeout, match=r"No answer within 0\.05 s"), Deadline(0.05):
        await asyncio.sleep(10)
    assert time.monotonic() - started < 8


async def test_work_in_time_is_left_alone_and_so_is_what_follows() -> None:
    with Deadline(0.02):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_deadline_already_over_stops_at_the_first_wait() -> None:
    with pytest.raises(CallTimeout), Deadline(-1):
        await asyncio.sleep(10)


async def test_a_cancellation_from_outside_is_not_a_timeout() -> None:
    entered = asyncio.Event()

    async def work() -> None:
        with Deadline(30):
            entered.set()
            await asyncio.sleep(30)

    task = asyncio.ensure_future(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_in_the_same_instant_wins_over_the_timeout() -> None:
    async def work() -> None:
        with Deadline(0.01):
            await asyncio.sleep(30)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    time.sleep(0.02)  # noqa: ASYNC251  # the loop stands still, so both are due in its next round
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_deadlines_is_the_one_that_is_told() -> None:
    with pytest.raises(CallTimeout, match=r"0\.01 s"), Deadline(5), Deadline(0.01):
        await asyncio.sleep(10)


async def test_the_outer_deadline_passes_through_the_inner() -> None:
    with pytest.raises(CallTimeout, match=r"0\.01 s"), Deadline(0.01), Deadline(5):
        await asyncio.sleep(10)


async def test_errors_of_the_work_itself_pass_even_when_time_is_up() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as exc:
            raise BadInput("mine") from exc

    with pytest.raises(BadInput, match="mine"), Deadline(0.01):
        await work()
    await asyncio.sleep(0)  # nothing is left behind that would cancel this


@requirement("001-44")
async def test_the_deadline_step_cancels_the_agents_work() -> None:
    slow = ScriptedRuntime(agent("percy", "reason"), [Turn(answer={}, delay=10)])
    with pytest.raises(CallTimeout):
        await enforce_deadline(slow)(call(timeout_ms=20), ignore_event)
    assert len(slow.cancelled) == 1
