"""Looks after the agents: asks each once what it offers, and now and then how it is."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.ports import Runtime
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthPolicy
from a2a_fabric.registry.registry import Registry
from a2a_fabric.schemas.joining import admit_learnt

_log = logging.getLogger(__name__)
_AT_A_TIME = 16
_SOON, _LATEST = 1.0, 16.0  # seconds until one that may still be starting is asked again: twice as long each time


class Noted(Protocol):
    """Told of every look at an agent: how it is now, and how long it took to say so."""

    def __call__(self, agent_id: str, health: Health, latency: float | None, /) -> None: ...


def _unnoted(agent_id: str, health: Health, latency: float | None, /) -> None:
    pass


class Watch:
    """Describes agents that declared no capabilities, and probes all of them every `interval`."""

    def __init__(
        self,
        registry: Registry,
        runtime_of: Callable[[Manifest], Awaitable[Runtime]],
        policy: HealthPolicy,
        noted: Noted = _unnoted,
        answered: Callable[[str], None] = lambda agent_id: None,
    ) -> None:
        self._registry = registry
        self._runtime_of = runtime_of
        self._policy = policy
        self._noted = noted
        self._answered = answered  # hears of every agent that answered its probe
        self._asked: dict[str, Manifest] = {}
        self._late: dict[str, float] = {}  # who could not yet say what it offers, and how long it was left alone then
        self._soon: dict[int, set[str]] = {}  # who is asked again, by the second of the loop's time
        self._due = asyncio.Event()

    def follow(self, catalog: Catalog) -> None:
        """The catalog changed: look at the newcomers soon."""
        self._due.set()

    def again(self, agent_id: str) -> None:
        """Look at this agent soon, as if it were new."""
        self._asked.pop(agent_id, None)
        self._due.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._due.clear()
            await self.look()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._due.wait()
            except TimeoutError:
                self._asked.clear()

    def _pause(self) -> float | None:
        return self._policy.interval * random.uniform(0.9, 1.1) if self._policy.interval else None

    async def look(self) -> None:
        """One round: everybody not yet asked since the last round."""
        turn = asyncio.Semaphore(_AT_A_TIME)
        agents = [self._registry.declaration_of(manifest) for manifest in self._registry.catalog.agents]
        newcomers = [m for m in agents if self._asked.get(m.agent_id) is not m]
        for gone in self._asked.keys() - {m.agent_id for m in agents}:
            del self._asked[gone]
            self._late.pop(gone, None)
        for manifest in newcomers:
            self._asked[manifest.agent_id] = manifest
        async with asyncio.TaskGroup() as group:
            for manifest in newcomers:
                group.create_task(self._visit(manifest, turn))

    async def _visit(self, manifest: Manifest, turn: asyncio.Semaphore) -> None:
        async with turn:
            latency = await self._asked_how_it_is(manifest)
            self._noted(manifest.agent_id, self._registry.health.of(manifest.agent_id), latency)

    async def _asked_how_it_is(self, manifest: Manifest) -> float | None:
        """How long the agent took to answer; None if it did not."""
        runtime = await self._runtime(manifest)
        if runtime is None:
            return None
        try:
            if not manifest.capabilities:
                await self._describe(manifest, runtime)
            began_at = time.perf_counter()
            with Deadline(self._policy.timeout):
                status = await runtime.health()
            latency = time.perf_counter() - began_at
        except FabricError as error:
            self._registry.health.failed_probe(manifest.agent_id, error)
        except Exception:
            _log.exception("looking after agent %s failed", manifest.agent_id)
        else:
            self._note(manifest, status)
            return latency
        return None

    async def _describe(self, manifest: Manifest, runtime: Runtime) -> None:
        """Agents often start together with the node: who cannot say yet what it offers is soon asked again."""
        try:
            with Deadline(self._policy.timeout):
                described = await runtime.describe()
        except FabricError:
            self._ask_again_soon(manifest.agent_id)
            raise
        self._registry.described(manifest, await admit_learnt(described))
        self._late.pop(manifest.agent_id, None)

    def _ask_again_soon(self, agent_id: str) -> None:
        """Together with all others that are due in the same second: a round looks at the whole catalog."""
        loop = asyncio.get_running_loop()
        pause = self._late[agent_id] = 2 * self._late.get(agent_id, _SOON / 2)
        if pause > _LATEST:
            return
        due = math.ceil(loop.time() + pause)
        if due not in self._soon:
            self._soon[due] = set()
            loop.call_at(due, self._ask, due)
        self._soon[due].add(agent_id)

    def _ask(self, due: int) -> None:
        for agent_id in self._soon.pop(due):
            self.again(agent_id)

    async def _runtime(self, manifest: Manifest) -> Runtime | None:
        """An agent whose runtime cannot be built is offline at once: asking again would not help."""
        try:
            return await self._runtime_of(manifest)
        except FabricError as error:
            self._registry.health.set_status(manifest.agent_id, "offline", error.sentence)
            return None

    def _note(self, manifest: Manifest, status: str) -> None:
        health, said = self._registry.health, f"the agent says it is {status}"
        if status == "online":
            self._answered(manifest.agent_id)
            health.answered_probe(manifest.agent_id)
        elif status == "degraded":
            health.set_status(manifest.agent_id, "degraded", said)
        elif status == "offline":
            health.failed_probe(manifest.agent_id, AgentOffline(said))
