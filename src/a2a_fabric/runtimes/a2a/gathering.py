"""All that one call has heard so far: the task as we know it, and what is worth telling the caller on the way."""

from __future__ import annotations

from typing import Any, assert_never

from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.core.events import Event, status, tool_call
from a2a_fabric.core.part import Part
from a2a_fabric.runtimes.a2a.growing import Growing, is_text, shown
from a2a_fabric.runtimes.a2a.result import text_of
from a2a_fabric.runtimes.a2a.said import (
    ASKING,
    ENDED,
    ArtifactSaid,
    MessageSaid,
    Parts,
    Said,
    State,
    StatusSaid,
    TaskSaid,
)

_ARTIFACTS = 10_000


class Gathering:
    def __init__(self, limit: int, task_id: str = "", context_id: str = "", *, is_told: bool = True) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.state: State = "unknown"
        self.words: Parts = ()  # what the agent said with its state
        self.last_words: Parts = ()  # of its history
        self.message: Parts | None = None  # the answer, if it is one without a task
        self.is_over = False  # nothing more will be said in this call
        self._artifacts: dict[str, Growing] = {}
        self._size = 0
        self._limit = limit
        self._is_told = is_told  # whether anybody listens on the way

    @property
    def is_asking(self) -> bool:
        return self.state in ASKING and self.message is None

    @property
    def has_answer(self) -> bool:
        return bool(self.message is not None or self._artifacts or self.words or self.last_words)

    @property
    def parts(self) -> Parts:
        """The answer: the message, or the artifacts; the last words are for agents that make none of either."""
        if self.message is not None:
            return self.message
        made = tuple(part for each in self._artifacts.values() for part in each.parts)
        if any(part.kind == "text" for part in made):
            return made
        return made + (self.words or (() if made else self.last_words))

    def take(self, said: Said) -> list[Event]:
        """Remember it; returns what the caller should hear. Raises UpstreamRefused if it is too much."""
        self.context_id = said.context_id or self.context_id
        match said:
            case MessageSaid():
                self.message, self.is_over = said.parts, True
                return []
            case TaskSaid():
                return self._whole(said)
            case StatusSaid():
                self.task_id = said.task_id or self.task_id
                events = self._stands(said.state, said.words)
                self.is_over = self.is_over or (said.is_last and said.state == "unknown")
                return events
            case ArtifactSaid():
                self.task_id = said.task_id or self.task_id
                return self._piece(said)
        assert_never(said)

    def _whole(self, task: TaskSaid) -> list[Event]:
        self.task_id = task.task_id or self.task_id
        self.last_words = task.last_words or self.last_words
        events = []
        for each in task.artifacts:
            whole = ArtifactSaid(task_id=task.task_id, artifact=each, is_complete=True)
            events += self._piece(whole)
        return events + self._stands(task.state, task.words)

    def _piece(self, said: ArtifactSaid) -> list[Event]:
        growing = self._artifacts.get(said.artifact.id)
        if growing is None:
            if len(self._artifacts) >= _ARTIFACTS:
                raise _too_much()
            growing = self._artifacts[said.artifact.id] = Growing(said.artifact, is_told=self._is_told)
        before = growing.size
        if said.is_continued:
            events = growing.add(said.artifact)
        else:
            events = growing.replace(said.artifact, is_complete=said.is_complete)
        self._size += growing.size - before
        if self._size > self._limit:
            raise _too_much()
        return events

    def _stands(self, state: State, words: Parts) -> list[Event]:
        has_news = state != self.state or (bool(words) and words != self.words)
        self.state, self.words = state, words
        self.is_over = state in ENDED or state in ASKING
        if not has_news or self.is_over or state == "unknown" or not self._is_told:
            return []
        others = {} if is_text(words) else {"parts": shown(words)}
        told = status("queued" if state == "submitted" else "running", text_of(words) or None, **others)
        return [told, *(_tool_call(part) for part in words if part.kind == "function_call")]


def _tool_call(part: Part) -> Event:
    """Agents name the arguments of what they call in several ways."""
    told = part.data if isinstance(part.data, dict) else {}
    named = (told.get(name) for name in ("arguments", "args", "input"))
    arguments: dict[str, Any] = next((found for found in named if isinstance(found, dict)), {})
    return tool_call(str(told.get("name") or told.get("tool") or part.name or ""), arguments)


def _too_much() -> UpstreamRefused:
    return UpstreamRefused("The agent says more than this node takes")
