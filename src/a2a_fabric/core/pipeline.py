"""The one shape of the gateway: a handler takes a call, emits events, returns the result.

A runtime is a handler. A step wraps a handler. A door calls a handler. So the
life of a call is the list handed to `compose`, read from top to bottom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.call import Call
from a2a_fabric.core.events import Event
from a2a_fabric.core.result import Result

Emit = Callable[[Event], Awaitable[None]]
Handler = Callable[[Call, Emit], Awaitable[Result]]
Step = Callable[[Handler], Handler]


def compose(steps: Sequence[Step], last: Handler) -> Handler:
    """Wrap `last` in `steps`, the first one outermost."""
    for step in reversed(steps):
        last = step(last)
    return last


async def ignore_event(event: Event) -> None:
    """The emitter for a caller that wants only the result."""


class CallerEmitter:
    """An emitter that remembers what the caller's own emitter raised, to tell it from failures of the agent."""

    def __init__(self, emit: Emit) -> None:
        self.failure: BaseException | None = None  # why the caller no longer receives events
        self._emit = emit

    @property
    def is_caller_gone(self) -> bool:
        return self.failure is not None

    async def __call__(self, event: Event) -> None:
        try:
            await self._emit(event)
        except BaseException as exc:
            self.failure = exc
            raise
