"""One call under way: what was heard of it and not yet passed on, and what its server wants to know first."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from mcp.shared.dispatcher import ProgressFnT

from a2a_fabric.core.call import Principal
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answer, Question
from a2a_fabric.runtimes.mcp_content import RPCError, progress_event
from a2a_fabric.runtimes.mcp_questions import Response, response_of

_KEPT = 256  # events for a slow reader; then the oldest are dropped, for progress is only worth its newest
_QUESTIONS = 32  # at a time; more are declined
_CANCEL_TIMEOUT = 6.0  # for telling the server
_LAST_GRACE = 5.0  # for a server whose question was cancelled to end its call by itself

Owner = tuple[str, str | None]
Reply = dict[str, Any] | RPCError


def owner_of(principal: Principal) -> Owner:
    """Who may answer what is asked on somebody's behalf."""
    return principal.mode, principal.principal_id


class Asked:
    """Many calls share one session, so a slow reader must not hold it up: `hear` never waits.

    The request runs in a task of its own, for it goes on while its caller is away to find an answer.
    """

    __slots__ = ("_events", "_is_given_up", "_last_grace", "_numbers", "_waiting", "_wake", "_work", "owner", "tool")

    def __init__(self, owner: Owner, tool: str) -> None:
        self.owner = owner
        self.tool = tool
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._wake = asyncio.Event()
        self._waiting: dict[str, tuple[Question, asyncio.Future[Response | None]]] = {}
        self._numbers = itertools.count(1)
        self._work: asyncio.Task[Reply]
        self._is_given_up = False
        self._last_grace: asyncio.TimerHandle | None = None

    @property
    def questions(self) -> dict[str, Question]:
        """Those without an answer."""
        return {key: question for key, (question, _) in self._waiting.items()}

    def start(self, request: Coroutine[Any, Any, Reply], ended: Callable[[Asked], None]) -> None:
        """In the current context, which is how the session knows whose call it is."""
        self._work = asyncio.ensure_future(request)
        self._work.add_done_callback(self._finish)
        self._work.add_done_callback(lambda _: ended(self))

    def hear(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def heard_out(self, emit: Emit) -> Reply | None:
        """Emit what is heard, in order, until there is a reply, or a question (None). Cancelling ends the call."""
        is_well = False
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._events:
                    await emit(self._events.popleft())
                if self._work.done() or self._waiting:
                    is_well = True
                    return self._work.result() if self._work.done() else None
        finally:
            if not is_well:
                await self.abandon(_CANCEL_TIMEOUT)

    async def ask(self, question: Question) -> Response | None:
        """The caller's answer, whoever that is by then; called on behalf of the server."""
        if self._is_given_up or self._work.done() or len(self._waiting) >= _QUESTIONS:
            return response_of("", question.kind, Answer(action="cancel"))
        key = f"q{next(self._numbers)}"
        answered: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self._waiting[key] = question, answered
        self._wake.set()
        try:
            return await answered
        finally:  # also when the server takes its question back
            self._waiting.pop(key, None)

    def answer(self, answers: Mapping[str, Answer]) -> None:
        """Raises BadInput before anything is told to the server, if one of them does not fit."""
        fitting = [key for key in answers if key in self._waiting]
        responses = {key: response_of(key, self._waiting[key][0].kind, answers[key]) for key in fitting}
        for key, response in responses.items():
            self._tell(key, response)
        if self._waiting:
            self._wake.set()

    def settle(self, action: Literal["decline", "cancel"]) -> None:
        """Answer all that is asked without asking anybody."""
        for key, (question, _) in list(self._waiting.items()):
            self._tell(key, response_of(key, question.kind, Answer(action=action)))

    def give_up(self) -> None:
        """Nobody will answer any more: the server may end by itself, but not for long."""
        self._is_given_up = True
        self.settle("cancel")
        if not self._work.done():
            self._last_grace = asyncio.get_running_loop().call_later(_LAST_GRACE, self._work.cancel)

    async def abandon(self, patience: float) -> None:
        """End the call now and tell the server."""
        if not self._work.done():
            self._work.cancel()
            await asyncio.wait([self._work], timeout=patience)

    def _tell(self, key: str, response: Response | None) -> None:
        _, answered = self._waiting.pop(key)
        if not answered.done():
            answered.set_result(response)

    def _finish(self, work: asyncio.Task[Reply]) -> None:
        self.settle("cancel")
        if self._last_grace is not None:
            self._last_grace.cancel()
        if not work.cancelled():
            work.exception()  # there may be nobody left who wants to know
        self._wake.set()


def reporting(asked: Asked) -> ProgressFnT:
    """What the session calls with a server's word of progress."""

    async def report(progress: float, total: float | None, message: str | None) -> None:
        asked.hear(progress_event(progress, total, message))

    return report
