"""What a run tells on its way: events of ours for those who listen, and the run itself once it is at rest."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.events import Event, status
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.runtimes.acp.content import events_of
from a2a_fabric.runtimes.acp.runs import failure
from a2a_fabric.runtimes.acp.wire import Error, MessagePart, Run, RunEvent

_ENDS = frozenset({"run.awaiting", "run.completed", "run.failed", "run.cancelled"})


class Hearing:
    """One run. `heard` counts its events from its beginning, or is None where that is not known."""

    def __init__(self, emit: Emit) -> None:
        self.run_id: str | None = None
        self.named = asyncio.Event()  # set as soon as there is a run_id
        self.heard: int | None = None
        self.moves = 0  # so that one can tell whether anything happened
        self._emit = emit
        self._parts = 0  # of the message that is under way

    def name(self, run_id: str) -> None:
        self.run_id = run_id
        self.named.set()

    def end(self) -> None:
        """Nobody listens any more."""
        self._emit = ignore

    async def hear(self, event: RunEvent) -> Run | None:
        """The run, if it has come to rest with this event. Raises FabricError if it could not go on."""
        self.moves += 1
        if self.heard is not None:
            self.heard += 1
        if event.run is not None:
            self.name(event.run.run_id)
            if event.type in _ENDS:
                return event.run
        if event.type == "error":
            raise failure(event.error or Error())
        if event.type == "generic":
            await self._emit(_remark(event))
        else:
            await self._hear_message(event)
        return None

    async def _hear_message(self, event: RunEvent) -> None:
        """A message comes in parts; from servers that send it only as a whole, as a whole."""
        if event.type == "message.created":
            self._parts = 0
        elif event.type == "message.part" and event.part is not None:
            await self._tell(event.part)
        elif event.type == "message.completed" and event.message is not None and not self._parts:
            for part in event.message.parts:
                await self._tell(part)

    async def _tell(self, part: MessagePart) -> None:
        self._parts += 1
        for each in events_of(part):
            await self._emit(each)


def _remark(event: RunEvent) -> Event:
    """What an agent says in its own way."""
    told = event.generic if isinstance(event.generic, dict) else {"value": event.generic}
    message = told.get("message")
    return status("running", message if isinstance(message, str) else None, generic=told)
