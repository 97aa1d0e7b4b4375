"""`a2a/events`: what happens in the directory, and to the caller's own tasks, as it happens.

Agents' news are kept in one bounded ring for all subscribers; each reads it at its own
pace, one after the other, and is told when it was too slow. A caller sees news of agents that it may see,
and of tasks that are its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from a2a_fabric.core.agent import Health, Manifest, Status, fold
from a2a_fabric.core.policy import narrowed
from a2a_fabric.core.shares import Shares
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.entries import Entries
from a2a_fabric.doors.directory.names import agent_id_of
from a2a_fabric.doors.directory.own_tasks import Looks, OwnTasks
from a2a_fabric.doors.directory.visit import Stream, Told, Visit

_KEPT = 1000
_KEPT_BYTES = 8 << 20
_LOOK_EVERY = 0.5  # seconds, at tasks: any door and any node may look after them


class Catalog(Protocol):
    @property
    def agents(self) -> Sequence[Manifest]: ...
    def get(self, agent_id: str, /) -> Manifest | None: ...


Kind = Literal["agent.registered", "agent.updated", "agent.unregistered", "agent.health"]


class EventsParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`types` are names of events or their beginnings: `agent`, `agent.health`. What is left out narrows nothing."""

    types: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    agent_id: str | None = None
    task_id: str | None = None
    after: int | None = None

    def wants(self, name: str) -> bool:
        return not self.types or any(name == each or name.startswith(f"{each}.") for each in self.types)

    @property
    def wants_tasks(self) -> bool:
        return not self.types or any(each.partition(".")[0] == "task" for each in self.types)

    def concerns(self, manifest: Manifest) -> bool:
        if self.task_id is not None or (self.agent_id and agent_id_of(self.agent_id) != manifest.agent_id):
            return False
        offered = {fold(capability.name) for capability in manifest.capabilities}
        return not self.capabilities or not offered.isdisjoint(map(fold, self.capabilities))


class Item(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    kind: Kind
    manifest: Manifest
    status: Status
    size: int


class News:
    """Of one node. Numbers go on growing over restarts, so a subscriber that comes back can tell what it missed."""

    def __init__(self, context: DoorContext, entries: Entries, most: int) -> None:
        self._desk = context.jobs
        self._looks = Looks(context.jobs, _LOOK_EVERY / 2)
        self._entries = entries
        self._registry = context.gateway.registry
        self._known = self._registry.catalog
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._last = int(time.time() * 1000)
        self._bell = asyncio.Event()
        self._subscribers = Shares("subscribers to a2a/events", most, context.share, retry_after=10.0)
        self._is_over = False
        self._registry.listen(self._catalog_changed)
        self._registry.health.listen(self._health_changed)

    def stop(self) -> None:
        """The node takes no new requests: streams that only wait for news end."""
        self._is_over = True
        self._ring()

    async def subscribe(self, params: EventsParams, visit: Visit) -> Stream:
        self._subscribers.check(visit.principal.principal_id)
        return Stream(self._told(params, visit), ends=False)

    async def _told(self, params: EventsParams, visit: Visit) -> AsyncGenerator[Told]:
        given = params.after if visit.after is None else visit.after
        at = self._last if given is None else min(given, self._last)
        tasks = self._tasks_of(params, visit)
        self._subscribers.take(visit.principal.principal_id)
        try:
            under_way = await tasks.news() if tasks is not None else []  # what ends from now on is news
            yield Told(event="subscribed", body={"status": "subscribed"}, number=at, is_answer=True)
            while not self._is_over:
                bell = self._bell
                while at < self._last:
                    if at < self._first - 1:
                        at = self._first - 1
                        yield Told(event="missed", body={"type": "missed"})
                        continue
                    item = self._items[at + 1 - self._first]
                    at = item.number
                    seen = narrowed(visit.principal, item.manifest) if params.wants(item.kind) else None
                    if seen is not None and params.concerns(seen):
                        yield Told(event=item.kind, body=self._body(item, seen, visit), number=item.number)
                for body in (*under_way, *(await tasks.news() if tasks is not None else ())):
                    if params.wants(body["type"]):
                        yield Told(event=body["type"], body=body)
                under_way = []
                await _rung(bell, _LOOK_EVERY if tasks is not None else None)
        finally:
            self._subscribers.give_back(visit.principal.principal_id)

    def _tasks_of(self, params: EventsParams, visit: Visit) -> OwnTasks | None:
        return OwnTasks(self._desk, self._looks, visit.principal, params.task_id) if params.wants_tasks else None

    @property
    def _first(self) -> int:
        return self._items[0].number if self._items else self._last + 1

    def _body(self, item: Item, seen: Manifest, visit: Visit) -> dict[str, Any]:
        return {"type": item.kind, "agent": self._entries.entry(seen, visit.base), "health": item.status}

    def _catalog_changed(self, catalog: object) -> None:
        before, self._known = self._known, self._registry.catalog
        changes = list(_changes(before, self._known))
        self._last += max(0, len(changes) - _KEPT)  # that many would be forgotten at once
        for kind, manifest in changes[-_KEPT:]:
            self._add(kind, manifest)
        self._ring()

    def _health_changed(self, agent_id: str, health: Health) -> None:
        manifest = self._registry.catalog.get(agent_id)
        if manifest is not None and not manifest.is_tool:
            self._add("agent.health", manifest)
            self._ring()

    def _ring(self) -> None:
        """Each bell rings once; whoever waits next gets a new one."""
        self._bell.set()
        self._bell = asyncio.Event()

    def _add(self, kind: Kind, manifest: Manifest) -> None:
        self._last += 1
        status = self._registry.health.of(manifest.agent_id).status
        size = len(msgspec.json.encode(manifest))
        if self._items and self._items[-1].number != self._last - 1:
            self._items.clear()  # there is a gap
            self._bytes = 0
        self._items.append(Item(number=self._last, kind=kind, manifest=manifest, status=status, size=size))
        self._bytes += size
        while len(self._items) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._items) > 1):
            self._bytes -= self._items.popleft().size


def _changes(before: Catalog, now: Catalog) -> Iterator[tuple[Kind, Manifest]]:
    for manifest in now.agents:
        known = before.get(manifest.agent_id)
        if known is None:
            yield "agent.registered", manifest
        elif known is not manifest and known != manifest:
            yield "agent.updated", manifest
    for manifest in before.agents:
        if now.get(manifest.agent_id) is None:
            yield "agent.unregistered", manifest


async def _rung(bell: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        pass
