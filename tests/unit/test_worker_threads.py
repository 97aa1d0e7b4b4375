"""Threads in which one caller cannot keep the others waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.threads import WorkerThreads, run_in_worker_thread, worker_threads

WITHIN = 20.0


@contextmanager
def of(threads: int) -> Iterator[WorkerThreads]:
    pool = WorkerThreads("tests", threads)
    try:
        yield pool
    finally:
        pool.close()


async def begun(pool: WorkerThreads, caller: str, number: int, free: threading.Event) -> list[asyncio.Task[Any]]:
    """So much work that goes on until `free` is set; then it says whose it was."""

    def work() -> str:
        assert free.wait(WITHIN)
        return caller

    tasks = [asyncio.ensure_future(pool.run(caller, work)) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def test_one_callers_work_leaves_threads_to_others() -> None:
    free = threading.Event()
    with of(4) as pool:
        held = await begun(pool, "greedy", 20, free)
        assert [await asyncio.wait_for(pool.run("honest", int), WITHIN) for _ in range(5)] == [0] * 5
        free.set()
        assert await asyncio.wait_for(asyncio.gather(*held), WITHIN) == ["greedy"] * 20


async def test_queues_take_turns() -> None:
    ended: list[str] = []
    free = threading.Event()
    with of(1) as pool:
        first = await begun(pool, "greedy", 1, free)
        waiting = [
            asyncio.ensure_future(pool.run(caller, ended.append, caller))
            for caller in ("greedy", "greedy", "greedy", "honest")
        ]
        await asyncio.sleep(0)
        free.set()
        await asyncio.wait_for(asyncio.gather(*first, *waiting), WITHIN)
    assert ended.index("honest") <= 1


async def test_no_more_waits_than_there_is_room_for() -> None:
    free = threading.Event()
    with of(1) as pool:
        held = await begun(pool, "greedy", 100, free)
        done, _ = await asyncio.wait(held, timeout=0)
        refused = [task for task in done if isinstance(task.exception(), RateLimited)]
        assert len(refused) == 100 - 25
        honest = asyncio.ensure_future(pool.run("honest", int))
        free.set()
        assert await asyncio.wait_for(honest, WITHIN) == 0
        await asyncio.wait_for(asyncio.wait(set(held) - set(refused)), WITHIN)


async def test_abandoned_work_keeps_its_thread_until_it_ends_and_what_waited_is_dropped() -> None:
    free, ran = threading.Event(), list[str]()
    with of(1) as pool:
        [running] = await begun(pool, "greedy", 1, free)
        waiting = asyncio.ensure_future(pool.run("greedy", ran.append, "never"))
        await asyncio.sleep(0)
        for task in (running, waiting):
            task.cancel()
        await asyncio.wait({running, waiting})
        next_one = asyncio.ensure_future(pool.run("greedy", ran.append, "next"))
        await asyncio.sleep(0)
        assert ran == []
        free.set()
        await asyncio.wait_for(next_one, WITHIN)
    assert ran == ["next"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration()])
async def test_what_the_work_raises_comes_out(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with of(1) as pool:
        with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
            await pool.run("anybody", fail)
        assert await pool.run("anybody", int) == 0


async def test_without_a_node_any_thread_will_do() -> None:
    assert await run_in_worker_thread(threading.current_thread) is not threading.main_thread()
    with of(1) as pool:
        token = worker_threads.set((pool, "anybody"))
        try:
            assert (await run_in_worker_thread(threading.current_thread)).name.startswith("fabric tests")
        finally:
            worker_threads.reset(token)
