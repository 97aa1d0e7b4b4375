"""Starting programs for an agent that may be closed meanwhile: then nothing is started, and nobody is left behind."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.runtimes.process_child import Child, Program


class Starts:
    def __init__(self) -> None:
        self._under_way: set[asyncio.Future[Child]] = set()
        self._is_closed = False

    async def child(self, program: Program) -> Child:
        """Raises AgentOffline, also if `aclose` comes before the program is handed over."""
        if self._is_closed:
            raise _shut_down(program)
        starting = asyncio.ensure_future(Child.start(program))
        self._under_way.add(starting)
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:
            await _undone(starting)
            raise
        finally:
            self._under_way.discard(starting)
        if self._is_closed:
            await _undone(starting)
            raise _shut_down(program)
        return starting.result()

    async def aclose(self) -> None:
        self._is_closed = True
        if ending := [asyncio.ensure_future(_undone(starting)) for starting in self._under_way]:
            await asyncio.wait(ending)


async def _undone(starting: asyncio.Future[Child]) -> None:
    """What is being started is ended; what was started just now, too."""
    starting.cancel()
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().destroy()


def _shut_down(program: Program) -> AgentOffline:
    return AgentOffline(program.tell("is shut down with the node"), agent_id=program.agent_id)
