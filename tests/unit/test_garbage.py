"""Garbage collection: what stays is left out; all objects are looked at only when it pays and no request waits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from a2a_fabric.web.garbage import GarbageCollection


class Circle:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def no_objects_stay_frozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def freeze_circles(number: int) -> weakref.ref[Circle]:
    """As if they had been in use for a while; one of them is returned."""
    circles = [Circle() for _ in range(number)]
    gc.freeze()
    return weakref.ref(circles[0])


async def test_circles_that_were_frozen_are_freed_at_a_moment_without_requests() -> None:
    gc.freeze()
    collection = GarbageCollection(lambda: True, max_growth=1000)
    frozen = freeze_circles(gc.get_freeze_count() + 1000)
    gc.collect()
    assert frozen() is not None
    await collection.collect_all_if_it_pays()
    assert frozen() is None


async def test_a_busy_node_is_not_stopped_for_that() -> None:
    gc.freeze()
    collection = GarbageCollection(lambda: False, max_growth=1000, max_wait=0.0)
    frozen = freeze_circles(gc.get_freeze_count() + 1000)
    await collection.collect_all_if_it_pays()
    assert frozen() is not None


async def test_few_new_objects_are_not_worth_it() -> None:
    gc.freeze()
    collection = GarbageCollection(lambda: True, max_growth=1_000_000)
    frozen = freeze_circles(10)
    await collection.collect_all_if_it_pays()
    assert frozen() is not None


async def test_a_collection_of_all_objects_puts_off_no_later_one() -> None:
    """Python waits until a quarter as many objects were added as the last collection looked at."""
    number = 200_000
    kept: list[Circle] = [Circle() for _ in range(number)]
    looked_at: list[int] = []

    def on_collection(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(sum(len(gc.get_objects(generation=each)) for each in range(3)))

    collection = GarbageCollection(lambda: True, max_growth=1000)
    thresholds = gc.get_threshold()
    gc.freeze()
    await collection.collect_all_if_it_pays()
    gc.set_threshold(1000, 2, 1)
    gc.callbacks.append(on_collection)
    try:
        kept += [Circle() for _ in range(number // 10)]
    finally:
        gc.callbacks.remove(on_collection)
        gc.set_threshold(*thresholds)
    assert looked_at
    assert looked_at[0] < number // 10
