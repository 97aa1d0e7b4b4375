"""What a piece of work leaves behind in this process: tasks, open files, children."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

WAIT_TIMEOUT = 30.0

T = TypeVar("T")


@dataclass(frozen=True)
class Footprint:
    tasks: int
    files: int
    children: int

    @classmethod
    def now(cls) -> Footprint:
        return cls(len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), _children())

    def is_within(self, other: Footprint) -> bool:
        return self.tasks <= other.tasks and self.files <= other.files and self.children <= other.children


def _children() -> int:
    """Threads come and go; one that has gone has none."""
    found = 0
    for thread in Path("/proc/self/task").iterdir():
        try:
            found += len((thread / "children").read_text().split())
        except OSError:
            continue
    return found


async def settled(before: Footprint, timeout: float) -> Footprint:
    """As soon as it is no larger than before, or as it is when the time is over."""
    ends_at = time.monotonic() + timeout
    while True:
        now = Footprint.now()
        if now.is_within(before) or time.monotonic() > ends_at:
            return now
        gc.collect()
        await asyncio.sleep(0.02)


async def watched(work: Callable[[], Awaitable[T]], timeout: float = WAIT_TIMEOUT) -> tuple[T, Footprint, Footprint]:
    """What it came to, and the footprints before and after.

    What a library keeps for ever after its first use is no leak; what the second use adds is one.
    """
    before = Footprint.now()
    done = await work()
    after = await settled(before, min(1.0, timeout))
    if after.is_within(before):
        return done, before, after
    done = await work()
    return done, after, await settled(after, timeout)
