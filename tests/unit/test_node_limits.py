"""Limits that hold over all processes of a node. Here the processes share plain memory, and in one test a file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.limits import TokenBucket
from a2a_fabric.core.node_limits import NodeBuckets, NodeLimit
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.doors.mcp.sessions import OpenSessions
from a2a_fabric.mesh.workers import WorkerPlace
from a2a_fabric.steps.entry import CallRateLimit
from a2a_fabric.telemetry.exposition import merge_expositions
from a2a_fabric.telemetry.node_metrics import UsageGauges
from a2a_fabric.testing import FakeClock
from a2a_fabric.web.supervisor import create_counts, open_counts


def share_memory(processes: int) -> list[SharedCounts]:
    memory = bytearray(SharedCounts.measure(processes))
    return [SharedCounts(memoryview(memory), processes, number) for number in range(processes)]


def build(capacity: int, processes: int = 2, share: float = 0.75) -> list[NodeLimit]:
    return [NodeLimit(counts, "calls", capacity, share) for counts in share_memory(processes)]


def count_acquired(limit: NodeLimit, caller: str | None) -> int:
    number = 0
    while limit.can_acquire(caller):
        limit.acquire(caller)
        number += 1
    with pytest.raises(RateLimited):
        limit.acquire(caller)
    return number


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_all_processes_together_have_the_capacity_and_one_alone_has_it_whole(processes: int) -> None:
    first, *others = build(8, processes, 1.0)
    assert count_acquired(first, "alice") == 8
    for other in others:
        assert count_acquired(other, "alice") == 0
    first.release("alice")
    for other in others:
        assert count_acquired(other, "bob") == 1
        other.release("bob")


def test_a_caller_has_one_share_of_all_processes() -> None:
    first, second = build(64)
    assert [count_acquired(first, "alice"), count_acquired(second, "alice")] == [48, 0]
    assert [count_acquired(second, "bob"), count_acquired(first, "carol")] == [12, 3]
    with pytest.raises(RateLimited, match="This caller has 48 of the node's 64 calls, which is its share"):
        second.check("alice")
    assert (first.in_use, second.in_use) == (51, 12)
    first.release("alice")
    assert first.count_held_by("alice") == second.count_held_by("alice") == 47


async def test_what_a_process_keeps_without_using_it_is_free_for_the_others_soon() -> None:
    first, second = build(1000, share=1.0)
    for _ in range(50):
        first.acquire("alice")
    for _ in range(50):
        first.release("alice")
    async with asyncio.timeout(30):
        while second._count_free() < 1000:  # noqa: ASYNC110  # it is given back by a timer
            await asyncio.sleep(0.02)
    assert count_acquired(second, "bob") == 1000


async def test_many_processes_together_keep_a_twentieth_at_most() -> None:
    first, *others = build(2000, 32, 1.0)
    for limit in others:
        for number in range(30):
            limit.acquire(f"caller {number}")
        for number in range(30):
            limit.release(f"caller {number}")
    assert count_acquired(first, "bob") >= 1900


async def test_a_limit_that_shrinks_holds_at_once_for_what_processes_keep() -> None:
    limits = build(10_000, share=1.0)
    for limit in limits:
        for _ in range(100):
            limit.acquire("alice")
        for _ in range(100):
            limit.release("alice")
    for limit in limits:
        limit.resize(10)
    assert sum(count_acquired(limit, "alice") for limit in limits) == 10


def test_what_a_process_held_that_has_ended_is_free_again() -> None:
    memory = bytearray(SharedCounts.measure(2))
    counts = [SharedCounts(memoryview(memory), 2, number) for number in range(2)]
    first, second = (NodeLimit(each, "calls", 8, 1.0) for each in counts)
    count_acquired(first, "alice")
    assert not second.can_acquire("bob")
    counts[1].clear(0)
    successor = NodeLimit(SharedCounts(memoryview(memory), 2, 0), "calls", 8, 1.0)
    successor.acquire("alice")
    assert count_acquired(second, "bob") == 7


def test_limits_of_different_names_do_not_count_together() -> None:
    (counts,) = share_memory(1)
    calls, streams = NodeLimit(counts, "calls", 1, 1.0), NodeLimit(counts, "streams", 1, 1.0)
    calls.acquire("alice")
    streams.acquire("alice")


async def test_many_callers_that_hold_nothing_cost_no_more_memory_and_none_is_counted_twice() -> None:
    first, second = build(1000)
    first.acquire("holder")
    for number in range(40_000):
        with second.hold(f"caller {number}"):
            pass
    assert len(second._usage._slots) <= 20_000
    assert second.count_held_by("holder") == 1
    assert second.can_acquire("holder")
    assert second._count_free() == 999


async def test_a_process_keeps_at_most_a_hundredth_that_it_does_not_use() -> None:
    first, second = build(1000, share=1.0)
    for number in range(100):
        with first.hold(f"caller {number}"):
            pass
    for _ in range(50):
        first.acquire("alice")
    for _ in range(50):
        first.release("alice")
    assert first.in_use == 0
    assert count_acquired(second, "bob") == 990
    assert count_acquired(first, "alice") == 10
    assert not second.can_acquire("bob")


async def test_most_calls_touch_nothing_that_is_shared() -> None:
    first, second = build(1000)
    first.acquire("alice")
    first.release("alice")
    before = second.count_held_by("alice")
    first.acquire("alice")
    assert second.count_held_by("alice") == before == 1


def find_neighbours(counts: SharedCounts, resource_name: str, number: int, sets: int = 2048) -> list[str]:
    """Callers whose keys have their place in the set in which that of all callers together has its own."""
    wanted = counts.make_key(resource_name, "") % sets
    names = (f"caller {each}" for each in range(10**9))
    return list(islice((name for name in names if counts.make_key(resource_name, name) % sets == wanted), number))


def test_callers_that_fill_a_set_of_the_table_take_the_place_of_the_whole_process_only_for_as_long() -> None:
    counts = share_memory(2)
    calls, first, second = (NodeLimit(counts[0], "calls", 99, 1.0), *(NodeLimit(each, "b", 99, 1.0) for each in counts))
    neighbours = find_neighbours(counts[0], "b", 8)
    squatters = [NodeLimit(counts[0], "b", 99, 1.0) for _ in neighbours]
    for limit, name in zip(squatters, neighbours, strict=True):
        limit._usage.publish(name, 1, 0)
    first.acquire("alice")
    assert second._count_free() == 99  # it is counted by its own process only
    for limit, name in zip(squatters, neighbours, strict=True):
        limit._usage.publish(name, 0, 0)
    first.acquire("alice")
    assert second._count_free() == 97
    assert calls.can_acquire("alice")


def test_a_caller_cannot_tell_which_names_collide_with_others() -> None:
    """Names of agents and callers may be chosen; eight in one set would leave others uncounted."""
    node, guess = open_counts(descriptor := create_counts(1), 1, 0), share_memory(1)[0]
    os.close(descriptor)
    found = find_neighbours(guess, "calls", 8)
    assert len({node.make_key("calls", name) % 2048 for name in found}) > 1


def test_a_key_that_a_killed_process_wrote_last_is_found_by_the_others() -> None:
    """It was killed after it had written the key, and before it had counted it."""
    memory = bytearray(SharedCounts.measure(2))
    counts = [SharedCounts(memoryview(memory), 2, number) for number in range(2)]
    first, second = (NodeLimit(each, "calls", 8, 1.0) for each in counts)
    assert second.count_held_by("alice") == second._usage.count_others() == 0
    first.acquire("alice")
    counts[0].words[0] = 0
    counts[1].clear(0)
    NodeLimit(SharedCounts(memoryview(memory), 2, 0), "calls", 8, 1.0).acquire("alice")
    assert (second.count_held_by("alice"), second._count_free()) == (1, 7)


def test_callers_without_a_place_are_not_remembered_and_none_is_asked_what_it_holds() -> None:
    (limit,) = build(100_000, 1, 1.0)
    for number in range(30_000):
        limit.acquire(f"caller {number}")
    began_at = time.process_time()
    for number in range(30_000):
        limit.can_acquire(f"guest {number}")
    assert time.process_time() - began_at < 30  # minutes, if each of them looked at all the others
    assert len(limit._usage._slots) <= 2048 * 8


async def test_more_callers_than_have_a_place_are_still_counted_by_their_own_process() -> None:
    (limit,) = build(100_000, 1, 1.0)
    for number in range(30_000):
        limit.acquire(f"caller {number}")
    assert limit.count_held_by("caller 29999") == 1
    for number in range(30_000):
        limit.release(f"caller {number}")
    assert limit.can_acquire("another")
    assert (limit.in_use, limit._count_free()) == (0, 100_000)


def test_a_rate_is_that_of_all_processes_whichever_of_them_is_asked() -> None:
    clock = FakeClock()
    limits = [CallRateLimit(60, clock, counts) for counts in share_memory(3)]
    for number in range(60):
        limits[number % 2].count("alice")
    for limit in limits:
        with pytest.raises(RateLimited) as refusal:
            limit.count("alice")
        assert refusal.value.retry_after == pytest.approx(1.0, abs=0.001)
        limit.count(f"another caller of {id(limit)}")
    clock.advance(2.0)
    limits[2].count("alice")
    limits[0].count("alice")
    with pytest.raises(RateLimited):
        limits[1].count("alice")


def test_one_process_alone_may_use_the_whole_rate() -> None:
    clock = FakeClock()
    first, second = (CallRateLimit(10, clock, counts) for counts in share_memory(2))
    first.count("alice", 7)
    clock.advance(600.0)  # it is full again, however much was taken long ago
    for _ in range(10):
        second.count("alice")
    with pytest.raises(RateLimited):
        second.count("alice")


def test_what_was_taken_stays_taken_when_a_process_is_replaced() -> None:
    clock, memory = FakeClock(), bytearray(SharedCounts.measure(2))
    counts = [SharedCounts(memoryview(memory), 2, number) for number in range(2)]
    CallRateLimit(10, clock, counts[0]).count("alice", 10)
    counts[1].clear(0)
    successor = CallRateLimit(10, clock, SharedCounts(memoryview(memory), 2, 0))
    with pytest.raises(RateLimited):
        successor.count("alice")


def test_buckets_of_several_processes_are_as_one_bucket() -> None:
    """The same calls at the same moments, by turns in three processes, get what one bucket gives."""
    clock = FakeClock()
    shared = [NodeBuckets(counts, "calls", 30, clock) for counts in share_memory(3)]
    one = TokenBucket(30, clock())
    for number in range(3000):
        clock.advance((number * 7919 % 100) / 31.4159)
        tokens = 1 + number % 4
        left, wait = shared[number * 31 % 3].take("alice", tokens)
        assert wait == pytest.approx(one.take(clock(), tokens), abs=1e-3)
        assert left == pytest.approx(one.tokens, abs=1e-3)


HAMMER = """
import mmap, sys, time
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.limits import DEFAULT_SHARE
from a2a_fabric.core.node_limits import NodeLimit
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.mesh.workers import WorkerPlace
from a2a_fabric.steps.entry import CallRateLimit
from a2a_fabric.telemetry.exposition import merge_expositions
from a2a_fabric.telemetry.node_metrics import UsageGauges

path, number = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as file:
    counts = SharedCounts(memoryview(mmap.mmap(file.fileno(), 0)), 2, number)
rate, limit = CallRateLimit(200, lambda: 1000.0, counts), NodeLimit(counts, "calls", 50, 1.0)
print("ready", flush=True)
sys.stdin.readline()
admitted = held = 0
for _ in range(2000):
    try:
        rate.count("alice")
        admitted += 1
    except RateLimited:
        pass
    try:
        limit.acquire("alice")
        held += 1
    except RateLimited:
        pass
print(admitted, held, flush=True)
"""


def test_two_processes_at_one_moment_never_get_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    with path.open("wb") as file:
        file.truncate(SharedCounts.measure(2))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        outputs = [process.communicate("go\n", timeout=60)[0] for process in processes[::-1]]
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    admitted, held = (sum(column) for column in zip(*(map(int, output.split()) for output in outputs), strict=True))
    assert (admitted, held) == (200, 50)


async def test_sessions_are_limited_over_all_processes_and_a_caller_has_one_share() -> None:
    first, second = (OpenSessions("MCP sessions", 8, share=0.75, counts=counts) for counts in share_memory(2))
    for _ in range(6):
        await first.open("alice")
    with pytest.raises(RateLimited, match="This caller has 6 of 8"):  # each has a request in flight
        await second.open("alice")
    session = await second.open("bob")
    await second.open("bob")
    with pytest.raises(RateLimited, match="All 8 MCP sessions are in use"):
        await second.open("carol")
    second.end(session)
    await first.open("carol")
    assert second.restore("kept", "bob", 0.0) is None


async def test_a_caller_with_few_sessions_in_each_process_but_most_in_all_makes_room() -> None:
    memory = share_memory(3)
    first, second, third = (OpenSessions("MCP sessions", 12, share=1.0, counts=counts) for counts in memory)
    for sessions, caller, number in ((first, "crowd", 3), (second, "crowd", 3), (third, "crowd", 2), (third, "bob", 4)):
        for _ in range(number):
            sessions.finish_request(await sessions.open(caller))
    await first.open("bob")  # who has four, and the crowd eight, though only three of them here
    assert (len(first), len(second), len(third)) == (3, 3, 6)
    assert second.make_room("bob", 5)
    assert (len(first), len(second), len(third)) == (3, 2, 6)
    assert not third.make_room("carol", 7)


async def test_a_session_that_is_refused_leaves_nothing_behind() -> None:
    first, second = (OpenSessions("MCP sessions", 2, share=1.0, counts=counts) for counts in share_memory(2))
    held = [await first.open("alice"), await second.open("alice")]
    for sessions in (first, second):
        with pytest.raises(RateLimited):
            await sessions.open("alice")
    first.end(held[0])
    await second.open("alice")
    assert (len(first), len(second)) == (0, 2)


async def test_a_session_in_another_process_is_closed_for_a_new_one() -> None:
    async def make_room(owner: str, held: int) -> bool:
        return first.make_room(owner, held)

    counts = share_memory(2)
    first = OpenSessions("MCP sessions", 4, share=1.0, counts=counts[0])
    second = OpenSessions("MCP sessions", 4, share=1.0, counts=counts[1], make_room_elsewhere=make_room)
    idle = [await first.open("alice") for _ in range(4)]
    for session in idle:
        first.finish_request(session)
    await second.open("bob")
    assert (len(first), len(second)) == (3, 1)
    await second.open("bob")
    assert (len(first), len(second)) == (2, 2)
    with pytest.raises(RateLimited):  # bob has as many as alice
        await second.open("bob")


@pytest.mark.parametrize(("slots", "parts"), [(64, [32, 32]), (5, [3, 2]), (1, [1, 0]), (0, [0, 0])])
def test_workers_divide_the_slots_for_jobs(slots: int, parts: list[int]) -> None:
    assert [WorkerPlace(number=number, count=2, folder="").divide(slots) for number in range(2)] == parts


def test_the_metrics_of_all_processes_add_up_to_the_limit_of_the_node() -> None:
    limits = build(64)
    limits[0].acquire("alice")
    limits[1].acquire("bob")
    usages = [UsageGauges({"calls": limit}, dict, {}, lambda: ({}, [])) for limit in limits]
    merged = merge_expositions(["\n".join(usage.render()).encode() for usage in usages]).decode()
    assert 'fabric_limit_max{limit="calls"} 64\n' in merged
    assert 'fabric_limit_used{limit="calls"} 2\n' in merged
