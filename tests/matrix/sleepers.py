"""A call to a sleeping agent for each pair, all at once: their deadlines pass together, not one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from tests.matrix.agents import RUNTIMES
from tests.matrix.asking import PATIENCE, Face, Outcome, Question, ignore
from tests.matrix.bench import Bench
from tests.matrix.table import exception, pairs

LIMIT = 3.0  # seconds: long enough for an agent on a busy machine to fall asleep first


@dataclass(frozen=True)
class Sleeper:
    note: Path
    asking: asyncio.Future[Outcome]


class Sleepers:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._started: dict[tuple[str, str], Sleeper] = {}

    def __call__(self, door: str, runtime: str) -> Sleeper:
        """The one of this pair; the first question starts them all."""
        if not self._started:
            self._started = {pair: self._start(*pair) for pair in pairs() if pair[1] in self._bench.runtimes}
        return self._started[door, runtime]

    async def aclose(self) -> None:
        await asyncio.gather(*(each.asking for each in self._started.values()), return_exceptions=True)

    def _start(self, door: str, runtime: str) -> Sleeper:
        note = self._bench.new_file()
        question = replace(RUNTIMES[runtime].sleeping(note), timeout=LIMIT)
        is_hopeless = exception(door, runtime, "timeout") is not None
        patience = 3 * LIMIT if is_hopeless else PATIENCE
        return Sleeper(note, asyncio.ensure_future(_within(patience, self._bench.faces[door], question)))


async def _within(patience: float, face: Face, question: Question) -> Outcome:
    async with asyncio.timeout(patience):
        return await face.ask(question, ignore)
