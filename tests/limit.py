"""No test goes on for ever: one that hangs fails by its name and says where it stands, instead of holding up all.

Nobody should come near the limit, on however busy a machine; tests bound what they wait for themselves.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

import pytest

SECONDS = 240.0
TO_SET_UP = 600.0  # the first one may have to install what it speaks to
_AGAIN = 1.0  # an alarm that is raised inside of another task may be lost

T = TypeVar("T")


class TooLong(Exception):
    pass


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooLong in the main thread, whatever that waits for. Blocks may stand in one another."""

    def ring(number: int, frame: FrameType | None) -> None:
        _tell_where_tasks_stand()
        raise TooLong(f"it is still going on after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, _AGAIN)


def _tell_where_tasks_stand() -> None:
    with suppress(RuntimeError):  # there is no event loop
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)


class Limit:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, T, T]:
        return (yield from _bounded(item, TO_SET_UP))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, T, T]:
        return (yield from _bounded(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, T, T]:
        return (yield from _bounded(item))


def _bounded(item: pytest.Item, seconds: float = SECONDS) -> Generator[None, T, T]:
    if any(map(item.get_closest_marker, ("soak", "rounds"))):
        return (yield)
    with limited(seconds):
        return (yield)
