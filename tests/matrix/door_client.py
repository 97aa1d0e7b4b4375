"""What every door of the matrix is asked and what it answers, whatever the protocol calls these things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.call import Attachment
from a2a_fabric.core.result import Fallback, Part

WAIT_TIMEOUT = 30.0  # seconds until something that should happen counts as not happening

Hear = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    agent: str
    capability: str
    arguments: dict[str, Any]
    task: str = ""
    attachments: tuple[Attachment, ...] = ()
    stream: bool = False
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An answer, or a code and a sentence; and who answered, if not the agent that was asked."""

    answer: dict[str, Any] | None = None
    parts: tuple[Part, ...] = ()
    code: str | None = None
    message: str = ""
    fallback: Fallback | None = None


class DoorClient(Protocol):
    """A real client of one door's protocol."""

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        """`hear` gets each word as it arrives. Cancelling leaves in the middle, as this protocol's clients do."""
        ...

    async def aclose(self) -> None: ...


def ignore(word: str) -> None:
    """The listener of those who do not listen."""


def fallback_of(told: Any) -> Fallback | None:
    """As it stands on the wire, whichever."""
    return None if told is None else msgspec.convert(told, Fallback)


def parts_of(told: Any) -> tuple[Part, ...]:
    """As they stand on the wire, if they do."""
    return msgspec.convert(told or (), tuple[Part, ...])


def words_of(kind: str, data: dict[str, Any]) -> str:
    """What an agent said in one event: a token's text, a progress's message; of the gateway's own events nothing."""
    if kind == "token":
        return str(data.get("text", ""))
    return str(data.get("message") or "") if kind == "progress" else ""
