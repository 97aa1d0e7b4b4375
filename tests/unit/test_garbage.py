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
