"""What a client gets back."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.events import EventKind
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Fallback
from a2a_fabric.core.trace import Trace


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's answer, the trace it is found under, and who gave it if not the agent that was asked."""

    data: dict[str, Any]
    trace: Trace
    fallback: Fallback | None = None
    job_id: str | None = None  # set if there is no answer yet: the work goes on as this job
    parts: tuple[Part, ...] = ()  # images, files, links
    notes: tuple[str, ...] = ()  # what was lost on the way

    @property
    def answer(self) -> str | None:
        """The words of the answer, if it has any."""
        answer = self.data.get("answer")
        return answer if isinstance(answer, str) else None


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened on the way; the last one is `final`, and its data is the result."""

    kind: EventKind | Literal["final"]
    data: dict[str, Any]
    trace: Trace
    fallback: Fallback | None = None  # in `final` only
    job_id: str | None = None  # in `final` only: the work goes on as this job
    parts: tuple[Part, ...] = ()  # in `final` only
    notes: tuple[str, ...] = ()  # in `final` only
    number: int = 0  # in a job's log; coming back with it, one misses nothing
    at: float = 0.0  # when it was written there, in seconds since 1970

    @property
    def text(self) -> str:
        """The words of a token; nothing for other kinds."""
        return str(self.data.get("text", "")) if self.kind == "token" else ""

    @property
    def result(self) -> CallResult:
        """Of the `final` event: what a plain call would have answered."""
        return CallResult(
            data=self.data,
            trace=self.trace,
            fallback=self.fallback,
            job_id=self.job_id,
            parts=self.parts,
            notes=self.notes,
        )
