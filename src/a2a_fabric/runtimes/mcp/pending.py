"""Requests over a session that are still running, and those among them that wait for an answer to a question.

A request buffers its events, so a slow reader never blocks the session that all calls share. It
runs in a task of its own, because it goes on while its caller looks for an answer. A request that
waits for an answer is found by its continuation until it is answered or expires."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

import msgspec
from mcp.shared.dispatcher import ProgressFnT

from a2a_fabric.core.call import Principal
from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answer, Answers, Question
from a2a_fabric.core.result import Result, make_input_required
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, make_progress_event
from a2a_fabric.runtimes.mcp.questions import QuestionResponse, response_from_answer, unknown_continuation

_MAX_BUFFERED_EVENTS = (
    256  # events for a slow reader; then the oldest are dropped, for progress is only worth its newest
)
_MAX_QUESTIONS = 32  # at a time; more are declined
_CANCEL_TIMEOUT = 6.0  # for telling the server
_GIVE_UP_GRACE = 5.0  # for a server whose question was cancelled to end its call by itself

Owner = tuple[str, str | None]
SessionReply = dict[str, Any] | UpstreamRpcError


def owner_from_principal(principal: Principal) -> Owner:
    """Who may answer what is asked on somebody's behalf."""
    return principal.mode, principal.principal_id


class PendingMcpRequest:
    """Many calls share one session, so a slow reader must not hold it up: `hear` never waits.

    The request runs in a task of its own, for it goes on while its caller is away to find an answer.
    """

    __slots__ = (
        "_events",
        "_give_up_timer",
        "_is_given_up",
        "_numbers",
        "_open_questions",
        "_task",
        "_wake",
        "owner",
        "tool",
    )

    def __init__(self, owner: Owner, tool: str) -> None:
        self.owner = owner
        self.tool = tool
        self._events: deque[Event] = deque(maxlen=_MAX_BUFFERED_EVENTS)
        self._wake = asyncio.Event()
        self._open_questions: dict[str, tuple[Question, asyncio.Future[QuestionResponse | None]]] = {}
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[SessionReply]
        self._is_given_up = False
        self._give_up_timer: asyncio.TimerHandle | None = None

    @property
    def questions(self) -> dict[str, Question]:
        """Those without an answer."""
        return {key: question for key, (question, _) in self._open_questions.items()}

    def start(self, request: Coroutine[Any, Any, SessionReply], on_end: Callable[[PendingMcpRequest], None]) -> None:
        """In the current context, which is how the session knows whose call it is."""
        self._task = asyncio.ensure_future(request)
        self._task.add_done_callback(self._on_done)
        self._task.add_done_callback(lambda _: on_end(self))

    def add_event(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def relay_until_reply(self, emit: Emit) -> SessionReply | None:
        """Emit what is heard, in order, until there is a reply, or a question (None). Cancelling ends the call."""
        is_complete = False
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._events:
                    await emit(self._events.popleft())
                if self._task.done() or self._open_questions:
                    is_complete = True
                    return self._task.result() if self._task.done() else None
        finally:
            if not is_complete:
                await self.cancel(_CANCEL_TIMEOUT)

    async def ask(self, question: Question) -> QuestionResponse | None:
        """The caller's answer, whoever that is by then; called on behalf of the server."""
        if self._is_given_up or self._task.done() or len(self._open_questions) >= _MAX_QUESTIONS:
            return response_from_answer("", question.kind, Answer(action="cancel"))
        key = f"q{next(self._numbers)}"
        response_future: asyncio.Future[QuestionResponse | None] = asyncio.get_running_loop().create_future()
        self._open_questions[key] = question, response_future
        self._wake.set()
        try:
            return await response_future
        finally:  # also when the server takes its question back
            self._open_questions.pop(key, None)

    def answer(self, answers: Mapping[str, Answer]) -> None:
        """Raises BadInput before anything is told to the server, if one of them does not fit."""
        matching_keys = [key for key in answers if key in self._open_questions]
        responses = {
            key: response_from_answer(key, self._open_questions[key][0].kind, answers[key]) for key in matching_keys
        }
        for key, response in responses.items():
            self._resolve(key, response)
        if self._open_questions:
            self._wake.set()

    def resolve_all(self, action: Literal["decline", "cancel"]) -> None:
        """Answer all that is asked without asking anybody."""
        for key, (question, _) in list(self._open_questions.items()):
            self._resolve(key, response_from_answer(key, question.kind, Answer(action=action)))

    def give_up(self) -> None:
        """Nobody will answer any more: the server may end by itself, but not for long."""
        self._is_given_up = True
        self.resolve_all("cancel")
        if not self._task.done():
            self._give_up_timer = asyncio.get_running_loop().call_later(_GIVE_UP_GRACE, self._task.cancel)

    async def cancel(self, timeout: float) -> None:
        """End the call now and tell the server."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout)

    def _resolve(self, key: str, response: QuestionResponse | None) -> None:
        _, response_future = self._open_questions.pop(key)
        if not response_future.done():
            response_future.set_result(response)

    def _on_done(self, task: asyncio.Task[SessionReply]) -> None:
        self.resolve_all("cancel")
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
        if not task.cancelled():
            task.exception()  # there may be nobody left who wants to know
        self._wake.set()


def make_progress_callback(pending: PendingMcpRequest) -> ProgressFnT:
    """What the session calls with a server's word of progress."""

    async def report(progress: float, total: float | None, message: str | None) -> None:
        pending.add_event(make_progress_event(progress, total, message))

    return report


_log = logging.getLogger(__name__)

CanAnswer = Callable[[Mapping[str, Question]], bool]

CONTINUATION_PREFIX = "p."
MAX_WAITING = 1000  # of one agent
_CLOSE_TIMEOUT = 2.0


class _WaitingRequest(msgspec.Struct, frozen=True):
    request: PendingMcpRequest
    timer: asyncio.TimerHandle


class McpPendingQuestions:
    def __init__(self, name: str, timeout: float, limit: int = MAX_WAITING) -> None:
        self._name = name
        self._timeout = timeout
        self._limit = limit
        self._waiting: dict[str, _WaitingRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait_for_outcome(
        self, pending: PendingMcpRequest, emit: Emit, can_answer: CanAnswer = lambda questions: True
    ) -> SessionReply | Result:
        """The server's reply, or its question with a continuation under which the call is parked.

        What nobody `can_answer` is declined.
        """
        while (reply := await pending.relay_until_reply(emit)) is None:
            if not can_answer(pending.questions):
                pending.resolve_all("decline")
                continue
            if len(self._waiting) < self._limit:
                return make_input_required(pending.questions, self._add(pending))
            _log.warning("%s: %d calls wait for answers; a question was declined", self._name, self._limit)
            pending.resolve_all("decline")
        return reply

    def resume(self, answers: Answers, owner: Owner, tool: str) -> PendingMcpRequest:
        """Give the answers to whom they are for. Raises BadInput; then the call stays parked."""
        entry = self._waiting.get(answers.continuation)
        if entry is None or entry.request.owner != owner or entry.request.tool != tool:
            raise unknown_continuation()
        entry.request.answer(answers.answers)
        entry.timer.cancel()
        del self._waiting[answers.continuation]
        return entry.request

    async def aclose(self) -> None:
        entries, self._waiting = list(self._waiting.values()), {}
        for entry in entries:
            entry.timer.cancel()
            entry.request.give_up()
        await asyncio.gather(*(entry.request.cancel(_CLOSE_TIMEOUT) for entry in entries))

    def _add(self, pending: PendingMcpRequest) -> str:
        continuation = CONTINUATION_PREFIX + secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, continuation)
        self._waiting[continuation] = _WaitingRequest(pending, timer)
        return continuation

    def _expire(self, continuation: str) -> None:
        _log.warning("%s: nobody answered its question within %g s", self._name, self._timeout)
        self._waiting.pop(continuation).request.give_up()
