"""Where calls wait whose server has asked something, until somebody brings the answer or their time is over."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

import msgspec

from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers, Question
from a2a_fabric.core.result import Result, asking
from a2a_fabric.runtimes.mcp_asked import Asked, Owner, Reply
from a2a_fabric.runtimes.mcp_questions import unknown_continuation

_log = logging.getLogger(__name__)

CanAnswer = Callable[[Mapping[str, Question]], bool]

PREFIX = "p."
MOST = 1000  # of one agent
_CLOSE_TIMEOUT = 2.0


class _Spot(msgspec.Struct, frozen=True):
    asked: Asked
    timer: asyncio.TimerHandle


class Parking:
    def __init__(self, name: str, timeout: float, most: int = MOST) -> None:
        self._name = name
        self._timeout = timeout
        self._most = most
        self._spots: dict[str, _Spot] = {}

    def __len__(self) -> int:
        return len(self._spots)

    async def outcome(self, asked: Asked, emit: Emit, can_answer: CanAnswer = lambda questions: True) -> Reply | Result:
        """The server's reply, or its question with a continuation under which the call is parked.

        What nobody `can_answer` is declined.
        """
        while (reply := await asked.heard_out(emit)) is None:
            if not can_answer(asked.questions):
                asked.settle("decline")
                continue
            if len(self._spots) < self._most:
                return asking(asked.questions, self._park(asked))
            _log.warning("%s: %d calls wait for answers; a question was declined", self._name, self._most)
            asked.settle("decline")
        return reply

    def resume(self, answers: Answers, owner: Owner, tool: str) -> Asked:
        """Give the answers to whom they are for. Raises BadInput; then the call stays parked."""
        spot = self._spots.get(answers.continuation)
        if spot is None or spot.asked.owner != owner or spot.asked.tool != tool:
            raise unknown_continuation()
        spot.asked.answer(answers.answers)
        spot.timer.cancel()
        del self._spots[answers.continuation]
        return spot.asked

    async def aclose(self) -> None:
        spots, self._spots = list(self._spots.values()), {}
        for spot in spots:
            spot.timer.cancel()
            spot.asked.give_up()
        await asyncio.gather(*(spot.asked.abandon(_CLOSE_TIMEOUT) for spot in spots))

    def _park(self, asked: Asked) -> str:
        continuation = PREFIX + secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, continuation)
        self._spots[continuation] = _Spot(asked, timer)
        return continuation

    def _expire(self, continuation: str) -> None:
        _log.warning("%s: nobody answered its question within %g s", self._name, self._timeout)
        self._spots.pop(continuation).asked.give_up()
