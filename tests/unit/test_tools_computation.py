"""Long computations of built-in tools run in processes, so that they cannot keep other callers waiting."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from a2a_fabric.core.errors import FabricError, RateLimited
from a2a_fabric.tools.computation import SMALL, Computations, compute
from a2a_fabric.tools.toolkit import TimeLimit, tool_error
from tests.unit.made import until


def get_process(_: TimeLimit) -> int:
    return os.getpid()


def sleep_long(_: TimeLimit, marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    time.sleep(60)


def refuse(_: TimeLimit) -> None:
    raise tool_error("DIFF_ERROR", "The texts are too long")


def fail(_: TimeLimit) -> None:
    raise ValueError("not a number")


def end_process(_: TimeLimit) -> None:
    os._exit(1)


@pytest.fixture
def computations() -> Iterator[Computations]:
    computations = Computations(2, 0.5)
    yield computations
    computations.close()


async def test_large_work_runs_in_another_process_and_small_work_does_not(computations: Computations) -> None:
    assert await compute(computations, SMALL, get_process) == os.getpid()
    first = await compute(computations, SMALL + 1, get_process)
    assert first != os.getpid()
    assert await compute(computations, SMALL + 1, get_process) == first, "the process is used again"


async def test_a_process_has_a_lower_priority_and_neither_a_session_of_its_own_nor_our_ctrl_c(
    computations: Computations,
) -> None:
    """Where Linux shares the processors out by sessions, a session of its own would undo the lower priority."""
    process = await compute(computations, SMALL + 1, get_process)
    assert os.getpriority(os.PRIO_PROCESS, process) > os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getsid(process) == os.getsid(0)
    assert os.getpgid(process) != os.getpgid(0)


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the call's number is of x86-64")
async def test_other_processes_may_interrupt_one_that_computes(computations: Computations) -> None:
    """By a longer slice, which kernels before Linux 6.12 do not know."""
    process = await compute(computations, SMALL + 1, get_process)
    attributes = ctypes.create_string_buffer(48)
    sched_getattr = 315
    assert ctypes.CDLL(None).syscall(sched_getattr, process, attributes, len(attributes), 0) == 0
    nice, slice_nanoseconds = struct.unpack("=16xi4xQ16x", attributes.raw)
    assert nice == os.getpriority(os.PRIO_PROCESS, process)
    if tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) < (6, 12):
        pytest.skip(f"Linux {os.uname().release} has no slices to choose")
    assert slice_nanoseconds == 100_000_000


async def test_errors_of_the_work_reach_the_caller(computations: Computations) -> None:
    with pytest.raises(FabricError, match="too long") as refused:
        await computations.run("ada", refuse)
    assert refused.value.details["tool_error"] == "DIFF_ERROR"
    with pytest.raises(ValueError, match="not a number"):
        await computations.run("ada", fail)


async def test_work_is_killed_when_its_caller_no_longer_waits(computations: Computations, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    work = asyncio.ensure_future(computations.run("ada", sleep_long, str(marker)))
    await until(lambda: marker.exists() and marker.read_text())
    work.cancel()
    await until(lambda: not _is_running(int(marker.read_text())))
    assert await computations.run("ada", get_process) != os.getpid()


async def test_a_process_that_dies_is_reported_and_replaced(computations: Computations) -> None:
    with pytest.raises(FabricError, match="too much memory"):
        await computations.run("ada", end_process)
    assert await computations.run("ada", get_process) != os.getpid()


async def test_a_process_that_ended_while_it_was_idle_is_replaced(computations: Computations) -> None:
    first = await computations.run("ada", get_process)
    os.kill(first, 9)
    assert await computations.run("ada", get_process) not in (first, os.getpid())


async def test_one_caller_cannot_keep_another_from_the_processes(computations: Computations, tmp_path: Path) -> None:
    hogging = [
        asyncio.ensure_future(computations.run("mallory", sleep_long, str(tmp_path / str(number))))
        for number in range(100)
    ]
    await asyncio.sleep(0)
    assert any(isinstance(each.exception(), RateLimited) for each in hogging if each.done()), "its queue is bounded"
    async with asyncio.timeout(30):
        assert await computations.run("ada", get_process) != os.getpid()
    for each in hogging:
        each.cancel()
    await asyncio.gather(*hogging, return_exceptions=True)


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
