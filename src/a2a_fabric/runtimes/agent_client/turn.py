"""One prompt turn: the agent's updates as events and answer, and its permission requests.

Updates are read from the raw JSON one by one: there may be thousands a second, and unknown ones are ignored."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from itertools import groupby
from typing import Any

import msgspec

from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.result import Answer, Event, Part, Question, artifact, progress, status, token
from a2a_fabric.runtimes.agent_client.content import part_from_block
from a2a_fabric.runtimes.agent_client.endpoint import (
    PermissionRequest,
    cancelled_outcome,
    outcome_from_answer,
    question_from_request,
)
from a2a_fabric.runtimes.agent_client.jsonrpc import SendReply

_MAX_TITLES = 1000  # tools of one turn whose titles are remembered
_MAX_EVENT_TEXT = 2000  # characters of one event's message worth passing on


class TurnTranscript:
    """The transcript of one turn: its output so far, and the event for each further update."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.cost: dict[str, Any] | None = None
        self._titles: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join(part.text for part in self._parts if part.kind == "text" and part.text)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All output, with consecutive texts joined; empty if the output is text only."""
        pieces: list[Part] = []
        for kind, parts in groupby(self._parts, key=lambda part: part.kind):
            group = list(parts)
            pieces += [Part(kind="text", text="".join(part.text or "" for part in group))] if kind == "text" else group
        return tuple(pieces) if any(part.kind != "text" for part in pieces) else ()

    def add(self, update: dict[str, Any]) -> Event | None:
        """The event for the caller, if this update makes one."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                return self._add_content(update.get("content"))
            case "agent_thought_chunk":
                return _thought_event(update.get("content"))
            case "tool_call" | "tool_call_update":
                return self._tool_event(update)
            case "plan":
                return _plan_event(update.get("entries"))
            case "usage_update":
                self.cost = update["cost"] if isinstance(update.get("cost"), dict) else self.cost
        return None

    def _add_content(self, content: Any) -> Event | None:
        part = part_from_block(content) if isinstance(content, dict) else None
        if part is None:
            return None
        self._parts.append(part)
        if part.kind == "text":
            return token(part.text or "")
        return artifact(msgspec.to_builtins(part))

    def _tool_event(self, update: dict[str, Any]) -> Event:
        id_ = str(update.get("toolCallId", ""))
        title = update.get("title")
        if isinstance(title, str) and len(self._titles) < _MAX_TITLES:
            self._titles[id_] = title
        raw_input, raw_output = update.get("rawInput"), update.get("rawOutput")
        fields = {
            "tool": self._titles.get(id_, id_)[:_MAX_EVENT_TEXT],
            "arguments": raw_input
            if isinstance(raw_input, dict)
            else {}
            if raw_input is None
            else {"input": raw_input},
            "id": id_,
            "kind": update.get("kind"),
            "status": update.get("status"),
            "output": raw_output if raw_output is not None else update.get("content"),
        }
        return Event("tool_call", {name: value for name, value in fields.items() if value is not None})


def _thought_event(content: Any) -> Event | None:
    text = content.get("text") if isinstance(content, dict) else None
    return status("running", text[:_MAX_EVENT_TEXT], thought=True) if isinstance(text, str) and text else None


def _plan_event(entries: Any) -> Event | None:
    """An event with the progress of the plan and its current step."""
    steps = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    if not steps:
        return None
    done = sum(entry.get("status") == "completed" for entry in steps)
    current = next((str(entry.get("content", "")) for entry in steps if entry.get("status") == "in_progress"), None)
    event = progress(100 * done / len(steps), current[:_MAX_EVENT_TEXT] if current else None)
    event.data["plan"] = [{"content": entry.get("content"), "status": entry.get("status")} for entry in steps]
    return event


MAX_BUFFERED_BYTES = 8 * 1024 * 1024  # bytes of events that wait for one slow reader
MAX_QUESTIONS = 32  # open at the same time in one turn


class PromptResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The reply to `session/prompt`."""

    stop_reason: str = "end_turn"
    usage: dict[str, Any] | None = None


class _PendingPermission(msgspec.Struct, frozen=True):
    request: PermissionRequest
    question: Question
    reply: SendReply


class PromptTurn:
    """One turn. All sessions share a pipe, so no method that adds to the turn waits for a slow reader.

    The prompt runs in a task of its own, because it continues while the caller looks for an answer.
    """

    def __init__(self, call: Call, reply_bytes: int) -> None:
        self.capability = call.target.capability
        self.transcript = TurnTranscript()
        self.notes: list[str] = []
        self.is_abandoned = False
        self._reply_bytes = reply_bytes
        self._answer_bytes = 0
        self._events: deque[tuple[Event, int]] = deque()
        self._buffered = 0
        self._is_listening = call.response.stream
        self._failure: FabricError | None = None
        self._pending: dict[str, _PendingPermission] = {}
        self._question_ids = itertools.count(1)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[PromptResponse]

    def start(self, prompt: Coroutine[Any, Any, PromptResponse], on_ended: Callable[[PromptTurn], None]) -> None:
        self._task = asyncio.ensure_future(prompt)
        self._task.add_done_callback(self._finish)
        self._task.add_done_callback(lambda _: on_ended(self))

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    @property
    def questions(self) -> dict[str, Question]:
        """The questions without an answer."""
        return {key: pending.question for key, pending in self._pending.items()}

    def add_update(self, update: dict[str, Any], size: int) -> None:
        """Add an update that came in a line of this length."""
        if self._failure is not None or self.is_abandoned:
            return
        event = self.transcript.add(update)
        if event is None:
            return
        if event.kind in ("token", "artifact"):
            self._answer_bytes += size
        if self._answer_bytes > self._reply_bytes:
            self._fail(UpstreamRefused(f"The agent's answer is longer than {self._reply_bytes} bytes"))
        elif self._is_listening and self._buffered and self._buffered + size > MAX_BUFFERED_BYTES:
            self._fail(
                UpstreamInterrupted(f"More than {MAX_BUFFERED_BYTES} bytes of events were waiting for a slow reader")
            )
        elif self._is_listening:
            self._buffered += size
            self._events.append((event, size))
            self._wake.set()

    async def emit_until_pause(self, emit: Emit) -> PromptResponse | None:
        """Emit updates in order, until the turn has ended or a question needs an answer (None)."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._events:
                event, size = self._events.popleft()
                self._buffered -= size
                await emit(event)
            if self._failure is not None:
                raise self._failure
            if self._task.done():
                return self._task.result()
            if self._pending:
                return None

    def add_permission_request(self, request: PermissionRequest, params: dict[str, Any], reply: SendReply) -> None:
        """Keep the request as a question for the current caller."""
        if self.is_abandoned or len(self._pending) >= MAX_QUESTIONS:
            reply(cancelled_outcome())
            return
        question = question_from_request(request, params)
        self._pending[f"q{next(self._question_ids)}"] = _PendingPermission(request, question, reply)
        self._wake.set()

    def apply_answers(self, answers: Mapping[str, Answer]) -> None:
        """Raises BadInput, before any answer is sent to the agent, if one of them is invalid."""
        matching = {key: self._pending[key] for key in answers if key in self._pending}
        outcomes = {key: outcome_from_answer(key, pending.request, answers[key]) for key, pending in matching.items()}
        for key, outcome in outcomes.items():
            self._pending.pop(key).reply(outcome)
        if self._pending:
            self._wake.set()

    def set_listening(self, *, is_listening: bool) -> None:
        """Set whether the current caller receives events."""
        self._is_listening = is_listening
        if not is_listening:
            self._events.clear()
            self._buffered = 0

    def abandon(self) -> None:
        """No caller waits for the turn any more."""
        self.is_abandoned = True
        self._cancel_pending()

    async def ends_within(self, timeout: float) -> bool:
        done, _ = await asyncio.wait([self._task], timeout=timeout)
        return bool(done)

    async def cancel(self) -> None:
        """Stop waiting for the agent's reply."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _cancel_pending(self) -> None:
        for key in list(self._pending):
            self._pending.pop(key).reply(cancelled_outcome())

    def _fail(self, error: FabricError) -> None:
        self._failure = error
        self._wake.set()

    def _finish(self, task: asyncio.Task[PromptResponse]) -> None:
        self._cancel_pending()
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: there may be no caller
        self._wake.set()
