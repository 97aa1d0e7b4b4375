"""A call to a sleeping agent for each pair, all at once: their deadlines pass together, not one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from tests.matrix.agents import RUNTIMES
from tests.matrix.bench import Bench
from tests.matrix.door_client import WAIT_TIMEOUT, DoorClient, Outcome, Question, ignore
from tests.matrix.table import exception

LIMIT = 3.0  # seconds: long enough for an agent to fall asleep first, except on a very busy machine
_EARLY = 2.0


@dataclass
class SleepingCall:
    """`fell_asleep`: so long before its time was up that the caller could know of it."""

    note: Path
    asking: asyncio.Future[Outcome]
    fell_asleep: bool = False

    def look(self, at_latest: float) -> None:
        self.fell_asleep = self.note.exists() and asyncio.get_running_loop().time() < at_latest


class SleepingCalls:
    def __init__(self, bench: Bench, wanted: Collection[tuple[str, str]]) -> None:
        self._bench = bench
        self._wanted = wanted
        self._started: dict[tuple[str, str], SleepingCall] = {}

    def __call__(self, door: str, runtime: str) -> SleepingCall:
        """The one of this pair; the first question starts them all."""
        if not self._started:
            self._started = {pair: self._start(*pair) for pair in self._wanted}
        return self._started[door, runtime]

    async def aclose(self) -> None:
        await asyncio.gather(*(each.asking for each in self._started.values()), return_exceptions=True)

    def _start(self, door: str, runtime: str) -> SleepingCall:
        note = self._bench.new_file()
        question = replace(RUNTIMES[runtime].sleeping(note), timeout=LIMIT)
        is_hopeless = exception(door, runtime, "timeout") is not None
        timeout = 3 * LIMIT if is_hopeless else WAIT_TIMEOUT
        sleeper = SleepingCall(note, asyncio.ensure_future(_within(timeout, self._bench.clients[door], question)))
        loop = asyncio.get_running_loop()
        loop.call_later(_EARLY, sleeper.look, loop.time() + (_EARLY + LIMIT) / 2)
        return sleeper


async def _within(timeout: float, client: DoorClient, question: Question) -> Outcome:
    async with asyncio.timeout(timeout):
        return await client.ask(question, ignore)
