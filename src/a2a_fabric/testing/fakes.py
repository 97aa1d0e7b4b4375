"""Fakes: a runtime whose agent is a script, and a clock that moves on command.

    agent = ScriptedRuntime(manifest, [AgentOffline("no"), Result(data={"answer": "42"})])

answers its first call with an error and every later one with the result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.result import Event, Result

ScriptedAnswer = Result | BaseException | dict[str, Any]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One call as the agent plays it: wait, emit the events, wait again, then answer or raise."""

    answer: ScriptedAnswer
    events: tuple[Event, ...] = ()
    delay: float = 0.0  # before anything happens
    pause: float = 0.0  # between the last event and the answer


class ScriptedRuntime:
    """A runtime whose every call follows a script; the last turn is repeated.

    `calls` are the calls it received, `cancelled` those that were cancelled; `called` is set when the first
    one arrives; `closed` counts how often `aclose` was called.
    """

    def __init__(
        self,
        manifest: Manifest,
        script: Iterable[Turn | ScriptedAnswer] = ({},),
        *,
        health: Sequence[Status | FabricError] = ("online",),
        publishes: Manifest | FabricError | None = None,
    ) -> None:
        self.manifest = manifest
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []
        self.called = asyncio.Event()
        self.probes = 0
        self.closed = 0
        self._script = [turn if isinstance(turn, Turn) else Turn(answer=turn) for turn in script]
        self._health = list(health)
        self._publishes = publishes

    async def __call__(self, call: Call, emit: Emit) -> Result:
        turn = self._script[min(len(self.calls), len(self._script) - 1)]
        self.calls.append(call)
        self.called.set()
        try:
            return await _play_turn(turn, emit)
        except asyncio.CancelledError:
            self.cancelled.append(call)
            raise

    async def health(self) -> Status:
        answer = self._health[min(self.probes, len(self._health) - 1)]
        self.probes += 1
        if isinstance(answer, FabricError):
            raise answer
        return answer

    async def describe(self) -> Manifest:
        if isinstance(self._publishes, FabricError):
            raise self._publishes
        return self._publishes or self.manifest

    async def aclose(self) -> None:
        self.closed += 1


async def _play_turn(turn: Turn, emit: Emit) -> Result:
    if turn.delay:
        await asyncio.sleep(turn.delay)
    for event in turn.events:
        await emit(event)
    if turn.pause:
        await asyncio.sleep(turn.pause)
    if isinstance(turn.answer, BaseException):
        raise turn.answer
    return turn.answer if isinstance(turn.answer, Result) else Result(data=turn.answer)


class FakeClock:
    """A clock that moves only when told to: pass it wherever a `clock` is taken."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
