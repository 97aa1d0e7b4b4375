"""One prompt under way: what was heard of it and not yet passed on, and what its agent wants to be allowed first."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.errors import FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answer, Question
from a2a_fabric.runtimes.agent_client import permissions
from a2a_fabric.runtimes.agent_client.updates import Report
from a2a_fabric.runtimes.agent_client.wire import Reply

BUFFERED = 8 * 1024 * 1024  # bytes of events that one slow reader may leave lying
QUESTIONS = 32  # at a time; nobody chooses for more

Owner = tuple[str, str | None]


class Ended(msgspec.Struct, frozen=True, rename="camel"):
    """The reply to `session/prompt`."""

    stop_reason: str = "end_turn"
    usage: dict[str, Any] | None = None


def owner_of(principal: Principal) -> Owner:
    """Whose conversations these are, and who may answer what is asked in them."""
    return principal.mode, principal.principal_id


class _Waiting(msgspec.Struct, frozen=True):
    request: permissions.Request
    question: Question
    reply: Reply


class Turn:
    """All sessions share one pipe, so a slow reader must not hold it up: `hear` and `ask` never wait.

    The prompt runs in a task of its own, for it goes on while its caller is away to find an answer.
    """

    def __init__(self, call: Call, reply_bytes: int) -> None:
        self.owner = owner_of(call.auth)
        self.capability = call.target.capability
        self.report = Report()
        self.notes: list[str] = []
        self.is_given_up = False
        self._reply_bytes = reply_bytes
        self._said_bytes = 0
        self._events: deque[tuple[Event, int]] = deque()
        self._buffered = 0
        self._is_listening = call.response.stream
        self._failure: FabricError | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._numbers = itertools.count(1)
        self._wake = asyncio.Event()
        self._work: asyncio.Task[Ended]

    def start(self, prompt: Coroutine[Any, Any, Ended], ended: Callable[[Turn], None]) -> None:
        self._work = asyncio.ensure_future(prompt)
        self._work.add_done_callback(self._finish)
        self._work.add_done_callback(lambda _: ended(self))

    @property
    def is_over(self) -> bool:
        return self._work.done()

    @property
    def questions(self) -> dict[str, Question]:
        """Those without an answer."""
        return {key: waiting.question for key, waiting in self._waiting.items()}

    def hear(self, update: dict[str, Any], size: int) -> None:
        """One more report, from a line of this length."""
        if self._failure is not None or self.is_given_up:
            return
        event = self.report.take(update)
        if event is None:
            return
        if event.kind in ("token", "artifact"):
            self._said_bytes += size
        if self._said_bytes > self._reply_bytes:
            self._fail(UpstreamRefused(f"The agent said more than {self._reply_bytes} bytes"))
        elif self._is_listening and self._buffered and self._buffered + size > BUFFERED:
            self._fail(UpstreamInterrupted(f"More than {BUFFERED} bytes of events were waiting for a slow reader"))
        elif self._is_listening:
            self._buffered += size
            self._events.append((event, size))
            self._wake.set()

    async def heard_out(self, emit: Emit) -> Ended | None:
        """Emit what is heard, in order, until the turn has ended, or a question needs an answer (None)."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._events:
                event, size = self._events.popleft()
                self._buffered -= size
                await emit(event)
            if self._failure is not None:
                raise self._failure
            if self._work.done():
                return self._work.result()
            if self._waiting:
                return None

    def ask(self, request: permissions.Request, params: dict[str, Any], reply: Reply) -> None:
        """On behalf of the agent, which gets the caller's decision, whoever that is by then."""
        if self.is_given_up or len(self._waiting) >= QUESTIONS:
            reply(permissions.nobody_chose())
            return
        question = permissions.question_of(request, params)
        self._waiting[f"q{next(self._numbers)}"] = _Waiting(request, question, reply)
        self._wake.set()

    def answer(self, answers: Mapping[str, Answer]) -> None:
        """Raises BadInput before anything is told to the agent, if one of them does not fit."""
        fitting = {key: self._waiting[key] for key in answers if key in self._waiting}
        outcomes = {key: permissions.outcome_of(key, asked.request, answers[key]) for key, asked in fitting.items()}
        for key, outcome in outcomes.items():
            self._waiting.pop(key).reply(outcome)
        if self._waiting:
            self._wake.set()

    def listen(self, *, is_listening: bool) -> None:
        """Whether whoever is there now wants to hear events."""
        self._is_listening = is_listening
        if not is_listening:
            self._events.clear()
            self._buffered = 0

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        self.is_given_up = True
        self._settle()

    async def ends_within(self, patience: float) -> bool:
        done, _ = await asyncio.wait([self._work], timeout=patience)
        return bool(done)

    async def drop(self) -> None:
        """Stop waiting for the agent's reply."""
        self._work.cancel()
        await asyncio.wait([self._work])

    def _settle(self) -> None:
        for key in list(self._waiting):
            self._waiting.pop(key).reply(permissions.nobody_chose())

    def _fail(self, error: FabricError) -> None:
        self._failure = error
        self._wake.set()

    def _finish(self, work: asyncio.Task[Ended]) -> None:
        self._settle()
        if not work.cancelled():
            work.exception()  # there may be nobody left who wants to know
        self._wake.set()
