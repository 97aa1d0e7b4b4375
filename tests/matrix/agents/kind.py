"""What an entry of the matrix's runtimes says: how to start a real agent, what to ask it, what it should answer.

Every agent has the capabilities echo, count, refuse, sleep, fail and show, so an entry
says only how it is reached. Its double, `NAME-away`, is the same runtime leading
nowhere: whoever asks it for `echo` should get the answer of the agent itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import attachment_from_part
from a2a_fabric.core.result import Part
from tests.matrix.door_client import Question

TEXT = 'grüß "dich", 世界 \\ \n 🐝'
REST: dict[str, Any] = {
    "number": -7,
    "ratio": 0.5,
    "flag": True,
    "items": [1, "two", None, [], {"three": 3.25}],
    "nested": {"a": {"b": [False]}, "": "no name"},
}
ARGUMENTS = {"text": TEXT, **REST}
WORDS = ("one", "two", "three")
REASON = "reluctance"  # one word, so that it can stand in any protocol
BYTES = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
CONTENT = (
    Part(kind="text", text=TEXT),
    Part(kind="image", blob=BYTES, mime_type="image/png", name="dot.png"),
    Part(kind="audio", blob=BYTES, mime_type="audio/wav", name="click.wav"),
    Part(kind="video", blob=BYTES, mime_type="video/mp4", name="clip.mp4"),
    Part(kind="file", blob=BYTES, mime_type="application/pdf", name="paper.pdf"),
    Part(kind="json", data={"a": [1, None, {"b": TEXT}]}),
    Part(kind="function_call", data={"name": "add", "arguments": {"a": 1}}),
    Part(kind="function_result", data={"name": "add", "result": 2}),
)
STAND_IN = "stand-in"  # who does what the others fail at


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with the right answer."""

    question: Question
    answer: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Started:
    """What the node is told of: agents in its process, manifests of all others."""

    agents: Sequence[Agent] = ()
    manifests: Sequence[dict[str, Any]] = ()


class Kind(ABC):
    """One runtime with an agent behind it."""

    runtime: str  # its kind in a manifest
    refusal = "BAD_INPUT"  # the code of a typed refusal

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def started(self) -> AbstractAsyncContextManager[Started]: ...

    def _ask(self, capability: str, arguments: dict[str, Any], **more: Any) -> Question:
        return Question(agent=self.name, capability=capability, arguments=arguments, **more)

    def typed(self) -> Asked:
        """Typed arguments."""
        return Asked(question=self._ask("echo", ARGUMENTS), answer={"seen": ARGUMENTS})

    def in_words(self) -> Asked:
        """The same, one of them given as the task."""
        return Asked(question=self._ask("echo", REST, task=TEXT), answer={"seen": ARGUMENTS})

    def free(self) -> Asked:
        """Words and whatever belongs to them, for a capability that declares no schema."""
        return Asked(question=self._ask("free", REST, task=TEXT), answer={"seen": {"task": TEXT, "context": REST}})

    def counting(self, go_on: Path) -> Asked:
        question = self._ask("count", {"words": list(WORDS), "go_on": str(go_on)}, stream=True)
        return Asked(question=question, answer={"counted": len(WORDS)})

    def refusing(self) -> Question:
        return self._ask("refuse", {"reason": REASON})

    def sleeping(self, note: Path) -> Question:
        return self._ask("sleep", {"note": str(note)})

    def failing(self) -> Question:
        """The stand-in would not fail."""
        return self._ask("fail", {"reason": REASON})

    def showing(self) -> Question:
        """Content of every kind; the agent gives back what it was sent."""
        return self._ask("show", {}, attachments=tuple(map(attachment_from_part, CONTENT)))

    def stood_in_for(self) -> Asked:
        """Asks the double."""
        away = Question(agent=f"{self.name}-away", capability="echo", arguments=ARGUMENTS)
        return Asked(question=away, answer={"seen": ARGUMENTS})

    def has_stopped(self, note: Path) -> bool:
        """Whether the sleeper of this note has been woken and is done."""
        return note.read_text() == "cancelled"

    def manifest(self, endpoint: dict[str, Any], **more: Any) -> dict[str, Any]:
        entry = {"agent_id": self.name, "runtime": self.runtime, "endpoint": endpoint, "fallbacks": [STAND_IN]}
        return {**entry, **more}

    def away(self, endpoint: dict[str, Any]) -> dict[str, Any]:
        return {
            "agent_id": f"{self.name}-away",
            "runtime": self.runtime,
            "endpoint": endpoint,
            "capabilities": [{"name": "echo"}],
            "fallbacks": [self.name],
        }


def _schema(*required: str, **properties: str) -> dict[str, Any]:
    typed = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": typed, "required": list(required or properties)}


# What agents that cannot describe themselves offer, as an operator writes it down.
DECLARED: tuple[dict[str, Any], ...] = (
    {"name": "echo", "input_schema": _schema("text", text="string", number="integer", nested="object")},
    {"name": "free"},
    {"name": "count", "input_schema": _schema(words="array", go_on="string")},
    {"name": "refuse", "input_schema": _schema(reason="string"), "idempotent": False},
    {"name": "sleep", "input_schema": _schema(note="string"), "idempotent": False},
    {"name": "fail", "input_schema": _schema(reason="string")},
    {"name": "show"},
)
