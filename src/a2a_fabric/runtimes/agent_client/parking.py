"""Where turns wait whose agent has asked for permission, until somebody decides or their time is over."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result, asking
from a2a_fabric.runtimes.agent_client.turn import Owner, Turn

_log = logging.getLogger(__name__)

MOST = 1000  # of one agent
_UNKNOWN = "Nobody waits for an answer with this continuation: it is unknown, was used already, or its time is over"


class _Spot(msgspec.Struct, frozen=True):
    turn: Turn
    timer: asyncio.TimerHandle


class Parking:
    """`give_up` ends a turn for which nobody came back."""

    def __init__(self, name: str, timeout: float, give_up: Callable[[Turn], None], most: int = MOST) -> None:
        self._name = name
        self._timeout = timeout
        self._give_up = give_up
        self._most = most
        self._spots: dict[str, _Spot] = {}

    @property
    def is_full(self) -> bool:
        return len(self._spots) >= self._most

    def park(self, turn: Turn) -> Result:
        """Its questions, with the continuation under which it waits."""
        continuation = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, continuation)
        self._spots[continuation] = _Spot(turn, timer)
        return asking(turn.questions, continuation)

    def resume(self, answers: Answers, owner: Owner, capability: str) -> Turn:
        """Give the answers to whom they are for. Raises BadInput; then the turn stays parked."""
        spot = self._spots.get(answers.continuation)
        if spot is None or spot.turn.owner != owner or spot.turn.capability != capability:
            raise BadInput(_UNKNOWN, field="continuation")
        spot.turn.answer(answers.answers)
        spot.timer.cancel()
        del self._spots[answers.continuation]
        return spot.turn

    def close(self) -> None:
        spots, self._spots = list(self._spots.values()), {}
        for spot in spots:
            spot.timer.cancel()
            self._give_up(spot.turn)

    def _expire(self, continuation: str) -> None:
        _log.warning("%s: nobody decided on its request within %g s", self._name, self._timeout)
        self._give_up(self._spots.pop(continuation).turn)
