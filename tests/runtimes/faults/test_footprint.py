"""What the fault suite relies on: whatever stays behind is seen."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import pytest

from tests.runtimes.faults.footprint import watched


class Leaking:
    """Leaves one more of something behind with each use."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[bool]] = []
        self.files: list[int] = []
        self.children: list[asyncio.subprocess.Process] = []

    async def task(self) -> None:
        self.tasks.append(asyncio.create_task(asyncio.Event().wait()))

    async def file(self) -> None:
        self.files.append(os.open("/dev/null", os.O_RDONLY))

    async def child(self) -> None:
        self.children.append(await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)"))

    async def clean(self) -> None:
        for task in self.tasks:
            task.cancel()
        for file in self.files:
            os.close(file)
        for child in self.children:
            child.kill()
            await child.wait()


@pytest.mark.parametrize("kind", ["task", "file", "child"])
async def test_what_stays_behind_is_seen(kind: str) -> None:
    leaking = Leaking()
    work: Callable[[], Awaitable[None]] = getattr(leaking, kind)
    try:
        _, before, after = await watched(work, timeout=0.2)
        assert not after.is_within(before)
    finally:
        await leaking.clean()


async def test_what_a_library_keeps_for_ever_is_no_leak() -> None:
    leaking = Leaking()

    async def only_the_first_time() -> None:
        if not leaking.files:
            await leaking.file()

    _, before, after = await watched(only_the_first_time, timeout=0.2)
    assert after.is_within(before)
    await leaking.clean()
