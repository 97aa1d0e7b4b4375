"""The caller's ear: an emitter that remembers whether it was the caller who broke off.

Then the agent did nothing wrong, but nobody waits for it any more: it is told, as if the call had been cancelled.
"""

from __future__ import annotations

from a2a_fabric.core.events import Event
from a2a_fabric.core.pipeline import Emit


class Listener:
    def __init__(self, emit: Emit) -> None:
        self.failure: BaseException | None = None  # why nobody listens any more
        self._emit = emit

    @property
    def has_left(self) -> bool:
        return self.failure is not None

    async def __call__(self, event: Event) -> None:
        try:
            await self._emit(event)
        except BaseException as exc:
            self.failure = exc
            raise
