"""Requests over a session that are still running, and those among them that wait for an answer to a question.

A request buffers its events, so a slow reader never blocks the session that all calls share. It
runs in a task of its own, because it goes on while its caller looks for an answer. A request that
waits for an answer is found by its continuation until it is answered or expires."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from mcp.shared.dispatcher import ProgressFnT

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.events import Event
from a2a_fabric.core.pending_questions import MAX_PENDING, PendingQuestions, unknown_continuation
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answer, Answers, Question
from a2a_fabric.core.result import Result, make_input_required
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, make_progress_event
from a2a_fabric.runtimes.mcp.questions import QuestionResponse, response_from_answer

_log = logging.getLogger(__name__)

_MAX_BUFFERED_EVENTS = 256  # for a slow reader; then the oldest are dropped, because only the newest progress matters
_MAX_QUESTIONS = 32  # at a time; more are declined
_CANCEL_TIMEOUT = 6.0  # for notifying the server
_GIVE_UP_GRACE = 5.0  # for a server whose question was cancelled to end its call by itself

SessionReply = dict[str, Any] | UpstreamRpcError


class PendingMcpRequest:
    """One request over the shared session. `add_event` never waits, so a slow reader does not hold up the session.

    The request runs in a task of its own, because it goes on while its caller looks for an answer.
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

    def __init__(self, principal: Principal, tool: str) -> None:
        self.owner = owner_from_principal(principal)
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
        """The questions without an answer."""
        return {key: question for key, (question, _) in self._open_questions.items()}

    def start(self, request: Coroutine[Any, Any, SessionReply], on_end: Callable[[PendingMcpRequest], None]) -> None:
        """Start the request in the current context, from which the session knows whose call it is."""
        self._task = asyncio.ensure_future(request)
        self._task.add_done_callback(self._on_done)
        self._task.add_done_callback(lambda _: on_end(self))

    def add_event(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def relay_until_reply(self, emit: Emit) -> SessionReply | None:
        """Emit events until there is a reply, or a question (None). Cancelling ends the call."""
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
        """Put the server's question to the caller, and return the response."""
        if self._is_given_up or self._task.done() or len(self._open_questions) >= _MAX_QUESTIONS:
            return response_from_answer("", question.kind, Answer(action="cancel"))
        key = f"q{next(self._numbers)}"
        response_future: asyncio.Future[QuestionResponse | None] = asyncio.get_running_loop().create_future()
        self._open_questions[key] = question, response_future
        self._wake.set()
        try:
            return await response_future
        finally:  # also when the server withdraws its question
            self._open_questions.pop(key, None)

    def answer(self, answers: Mapping[str, Answer]) -> None:
        """Raises BadInput if an answer does not fit its question; then the server gets none of them."""
        matching_keys = [key for key in answers if key in self._open_questions]
        responses = {
            key: response_from_answer(key, self._open_questions[key][0].kind, answers[key]) for key in matching_keys
        }
        for key, response in responses.items():
            self._resolve(key, response)
        if self._open_questions:
            self._wake.set()

    def resolve_all(self, action: Literal["decline", "cancel"]) -> None:
        """Answer all open questions with this action."""
        for key, (question, _) in list(self._open_questions.items()):
            self._resolve(key, response_from_answer(key, question.kind, Answer(action=action)))

    def give_up(self) -> None:
        """No answer will come: cancel the questions, and leave the server a moment to end the call by itself."""
        self._is_given_up = True
        self.resolve_all("cancel")
        if not self._task.done():
            self._give_up_timer = asyncio.get_running_loop().call_later(_GIVE_UP_GRACE, self._task.cancel)

    async def cancel(self, timeout: float) -> None:
        """Cancel the call; the session notifies the server."""
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
            task.exception()  # so that it is not reported as never retrieved
        self._wake.set()


def make_progress_callback(pending: PendingMcpRequest) -> ProgressFnT:
    """The callback with which the session reports the server's progress."""

    async def report(progress: float, total: float | None, message: str | None) -> None:
        pending.add_event(make_progress_event(progress, total, message))

    return report


CanAnswer = Callable[[Mapping[str, Question]], bool]

CONTINUATION_PREFIX = "p."
_CLOSE_TIMEOUT = 2.0


class McpPendingQuestions:
    """The requests to one server that wait for answers to the server's questions."""

    def __init__(self, name: str, timeout: float, limit: int = MAX_PENDING) -> None:
        self._name = name
        self._limit = limit
        self._pending = PendingQuestions[PendingMcpRequest](
            name, timeout, PendingMcpRequest.give_up, limit=limit, prefix=CONTINUATION_PREFIX
        )

    def __len__(self) -> int:
        return len(self._pending)

    async def wait_for_outcome(
        self, request: PendingMcpRequest, emit: Emit, can_answer: CanAnswer = lambda questions: True
    ) -> SessionReply | Result:
        """The server's reply, or its questions with the continuation under which the request waits.

        Questions that the client cannot answer are declined.
        """
        while (reply := await request.relay_until_reply(emit)) is None:
            if not can_answer(request.questions):
                request.resolve_all("decline")
            elif self._pending.is_full:
                _log.warning("%s: %d calls wait for answers already; a question was declined", self._name, self._limit)
                request.resolve_all("decline")
            else:
                return make_input_required(request.questions, self._pending.add(request, (request.owner, request.tool)))
        return reply

    def resume(self, answers: Answers, principal: Principal, tool: str) -> PendingMcpRequest:
        """Pass the answers to the request that waits for them. Raises BadInput; then the request goes on waiting."""
        request = self._pending.find(answers.continuation, (owner_from_principal(principal), tool))
        if request is None:
            raise unknown_continuation()
        request.answer(answers.answers)
        self._pending.remove(answers.continuation)
        return request

    async def aclose(self) -> None:
        await asyncio.gather(*(request.cancel(_CLOSE_TIMEOUT) for request in self._pending.close()))
