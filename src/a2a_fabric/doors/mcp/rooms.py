"""The rooms of the door: one for the whole gateway, one for each agent that somebody visits alone.

Rooms are opened when first entered; an agent's room closes when the agent leaves the
catalog. How a room is furnished is decided by `furnish`, so an agent that is itself
an MCP server may get a more transparent one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.modules import load
from a2a_fabric.gateway import Gateway

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.room import Room

_log = logging.getLogger(__name__)
_TOLD_AFTER = 0.2  # changes within this time are told at once
GATEWAY = ""  # the room that is no agent's

Furnish = Callable[[type["Room"], Manifest | None], "Room"]


class Rooms:
    def __init__(self, gateway: Gateway, furnish: Furnish) -> None:
        self._gateway = gateway
        self._furnish = furnish
        self._rooms: dict[str, Room] = {}
        self._opening = asyncio.Lock()
        self._room_type: type[Room] | None = None
        self._catalog = gateway.registry.catalog
        self._changed: set[str] = set()  # rooms that show something else, or did for a moment: it may have been read
        self._due: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        gateway.registry.listen(self._follow)

    async def __aenter__(self) -> None:
        """Nothing is opened before somebody comes."""

    async def __aexit__(self, *exc: object) -> None:
        if self._due is not None:
            self._due.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        rooms, self._rooms = list(self._rooms.values()), {}
        await asyncio.gather(*(room.aclose() for room in rooms))

    async def of_gateway(self) -> Room:
        return self._rooms.get(GATEWAY) or await self._open(None)

    def agent(self, agent_id: str, principal: Principal) -> Manifest:
        """Raises AgentNotFound or Forbidden, also for agents that this principal must not know of."""
        registry = self._gateway.registry
        registry.agent_for(principal, agent_id)
        return registry.get_agent(agent_id)  # whole: others share what is made of it

    async def of_agent(self, agent_id: str, principal: Principal) -> Room:
        """Raises AgentNotFound."""
        manifest = self.agent(agent_id, principal)
        return self._rooms.get(agent_id) or await self._open(manifest)

    def stop(self) -> None:
        for room in self._rooms.values():
            room.changes.close()

    async def _open(self, manifest: Manifest | None) -> Room:
        name = GATEWAY if manifest is None else manifest.agent_id
        async with self._opening:
            room = self._rooms.get(name)
            if room is None:
                room = self._furnish(await self._sdk(), manifest)
                await room.open()
                self._rooms[name] = room
            return room

    async def _sdk(self) -> type[Room]:
        """It takes most of a second to import and a third of a node's memory: only for who needs it, in a thread."""
        if self._room_type is None:
            module = await asyncio.to_thread(load, "a2a_fabric.doors.mcp.room")
            self._room_type = module.Room
        return self._room_type

    def _follow(self, catalog: object) -> None:
        before, now = self._catalog, self._gateway.registry.catalog
        self._catalog = now
        self._changed |= {name for name in self._rooms if before.get(name) != now.get(name)}
        if GATEWAY in self._rooms and tuple(before) != tuple(now):
            self._changed.add(GATEWAY)
        self.look()

    def look(self) -> None:
        """Something may be else now: tell of it in a moment."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_TOLD_AFTER, self._tell)

    def _tell(self) -> None:
        self._due = None
        changed, self._changed = self._changed, set()
        for name, room in list(self._rooms.items()):
            if name != GATEWAY and self._catalog.get(name) is None:
                del self._rooms[name]
                self._spawn(room.aclose)
                continue
            room.changes.tell({*room.news(), *(("tools", "resources") if name in changed else ())})

    def _spawn(self, work: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the MCP door failed: %s", task.exception())
