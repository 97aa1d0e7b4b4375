"""The health monitor: asks each new agent once for its capabilities, and probes all agents at an interval."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from operator import attrgetter
from typing import Protocol

import msgspec

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamFailed
from a2a_fabric.core.ports import ExplainsHealth, Runtime, StartsProgram
from a2a_fabric.core.tasks import Deadline, iterate_in_slices
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthPolicy
from a2a_fabric.registry.registry import Registry
from a2a_fabric.schemas.manifest_check import sanitize_discovered_manifest

_log = logging.getLogger(__name__)
_CONCURRENT_PROBES = 16
_PROBE_PAUSE = 0.02  # between the first probes of agents whose offer is known
_PROBE_SPREAD = 1.0  # of all these pauses in a round
_MIN_REFRESH, _MAX_REFRESH = 1.0, 30.0  # seconds between questions to an agent that changes all the time
_FIRST_RETRY, _MAX_RETRY = 1.0, 16.0  # seconds until a starting agent is probed again; doubled each time


class ProbeListener(Protocol):
    """Called after every probe with the agent's health and its latency."""

    def __call__(self, agent_id: str, health: Health, latency: float | None, /) -> None: ...


def _ignore_probe(agent_id: str, health: Health, latency: float | None, /) -> None:
    pass


class HealthMonitor:
    """Describes agents that declared no capabilities, and probes all of them every `interval`."""

    def __init__(
        self,
        registry: Registry,
        runtime_of: Callable[[Manifest], Awaitable[Runtime]],
        policy: HealthPolicy,
        on_probe: ProbeListener = _ignore_probe,
        on_answer: Callable[[str], None] = lambda agent_id: None,
        max_registered_bytes: int = 262_144,
    ) -> None:
        self._registry = registry
        self._runtime_of = runtime_of
        self._policy = policy
        self._on_probe = on_probe
        self._on_answer = on_answer  # called for every agent that answered its probe
        self._max_registered_bytes = max_registered_bytes  # of what an agent that registered says about itself
        self._catalog = Catalog()  # as it was in the last round
        self._due: dict[str, None] = {}  # the ids of agents to look at in the next round
        self._probed: dict[str, Manifest] = {}  # as declared, since the last round of all agents
        self._refreshes: dict[str, tuple[float, float]] = {}  # when each was asked again last, and the pause after it
        self._retry_pauses: dict[str, float] = {}  # the last pause of agents that could not be described yet
        self._retries: dict[int, set[str]] = {}  # the agents to describe again, by second of the loop's time
        self._wake = asyncio.Event()

    def on_catalog_changed(self, catalog: Catalog) -> None:
        """The catalog changed: look at the newcomers soon."""
        self._wake.set()

    def refresh(self, agent_id: str) -> None:
        """The agent says that it offers something else: ask it again, soon.

        An agent that says so all the time is asked less and less often, at most every `_MAX_REFRESH` seconds.
        """
        loop = asyncio.get_running_loop()
        refreshed_at, pause = self._refreshes.get(agent_id, (-math.inf, 0.0))
        now = loop.time()
        if refreshed_at > now:
            return  # it will be asked then
        if now - refreshed_at >= pause:
            pause = _MIN_REFRESH if now - refreshed_at > 2 * _MAX_REFRESH else min(2 * pause, _MAX_REFRESH)
            self._refreshes[agent_id] = now, pause
            self.probe_soon(agent_id)
            return
        due_at = refreshed_at + pause
        self._refreshes[agent_id] = due_at, min(2 * pause, _MAX_REFRESH)
        loop.call_at(due_at, self.probe_soon, agent_id)

    def probe_soon(self, agent_id: str) -> None:
        """Probe this agent soon, as if it were new."""
        self._probed.pop(agent_id, None)
        self._due[agent_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            await self.probe_due()
            try:
                pause = self._policy.interval * random.uniform(0.9, 1.1) if self._policy.interval else None
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                self._probed.clear()
                self._due = dict.fromkeys(map(attrgetter("agent_id"), self._registry.catalog.agents))

    async def probe_due(self) -> None:
        """One round: probe the agents that are new, changed or due, each once."""
        semaphore = asyncio.Semaphore(_CONCURRENT_PROBES)
        due, described = await self._take_due()
        # Starting a program blocks for milliseconds. Agents that are listed from memory can wait a little, so that
        # the first requests after a restart do not wait for the start of all programs.
        pause = min(_PROBE_PAUSE, _PROBE_SPREAD / max(len(due) + len(described), 1))
        async with asyncio.TaskGroup() as group:
            for manifest in chain(due, described):
                await semaphore.acquire()
                group.create_task(self._probe_and_report(manifest, semaphore))
                await asyncio.sleep(pause if self._is_described(manifest) else 0)

    async def _take_due(self) -> tuple[list[Manifest], list[Manifest]]:
        """The declarations of the agents to probe now; last those of which it is known what they offer."""
        due: list[Manifest] = []
        described: list[Manifest] = []
        catalog = self._registry.catalog
        agent_ids, self._due = self._due | dict.fromkeys(catalog.changes_since(self._catalog)), {}
        self._catalog = catalog
        async for part in iterate_in_slices(agent_ids):
            for agent_id in part:
                listed = self._registry.catalog.get(agent_id)
                if listed is None or listed.is_tool:
                    self._probed.pop(agent_id, None)
                    self._retry_pauses.pop(agent_id, None)
                    self._refreshes.pop(agent_id, None)
                    continue
                declared = self._registry.find_declaration(listed)
                if self._probed.get(agent_id) is not declared:
                    self._probed[agent_id] = declared
                    (described if self._is_described(declared) else due).append(declared)
        return due, described

    def _is_described(self, declared: Manifest) -> bool:
        """Whether it is known what the agent offers, though it is not declared."""
        listed = self._registry.catalog.get(declared.agent_id)
        return not declared.capabilities and listed is not None and bool(listed.capabilities)

    async def _probe_and_report(self, manifest: Manifest, semaphore: asyncio.Semaphore) -> None:
        try:
            latency = await self._probe(manifest)
        finally:
            semaphore.release()
            self._registry.record_probe(manifest)
        self._on_probe(manifest.agent_id, self._registry.health.get(manifest.agent_id), latency)

    async def _probe(self, manifest: Manifest) -> float | None:
        """How long the agent took to answer; None if it did not."""
        runtime = await self._find_runtime(manifest)
        if runtime is None:
            return None
        try:
            if not manifest.capabilities:
                await self._describe(manifest, runtime)
            started_at = time.perf_counter()
            with Deadline(self._policy.timeout):
                status = await runtime.health()
            latency = time.perf_counter() - started_at
        except FabricError as error:
            if isinstance(runtime, StartsProgram) and runtime.is_starting:
                if self._registry.health.get(manifest.agent_id).status == "unknown":
                    self._registry.health.set_status(manifest.agent_id, "unknown", "its program is starting")
                if manifest.capabilities:  # else it is to be asked again already
                    self._schedule_retry(manifest.agent_id)
            else:
                self._registry.health.record_probe_failure(manifest.agent_id, error)
        except Exception:
            _log.exception("probing agent %s failed", manifest.agent_id)
        else:
            reason = runtime.health_reason if isinstance(runtime, ExplainsHealth) else None
            self._record_status(manifest, status, reason)
            return latency
        return None

    async def _describe(self, manifest: Manifest, runtime: Runtime) -> None:
        """Agents often start together with the node, so an agent that cannot be described is soon asked again."""
        try:
            with Deadline(self._policy.timeout):
                described = await runtime.describe()
        except FabricError:
            self._schedule_retry(manifest.agent_id)
            raise
        described = await sanitize_discovered_manifest(described)
        if manifest.registered_by is not None and len(msgspec.json.encode(described)) > self._max_registered_bytes:
            raise UpstreamFailed(
                f"The agent describes itself in more than {self._max_registered_bytes} bytes, which is the limit for "
                "agents that register (`registration.max_bytes`)"
            )
        self._registry.apply_description(manifest, described)
        self._retry_pauses.pop(manifest.agent_id, None)

    def _schedule_retry(self, agent_id: str) -> None:
        """Together with all others that are due in the same second: a round looks at the whole catalog."""
        loop = asyncio.get_running_loop()
        pause = self._retry_pauses[agent_id] = 2 * self._retry_pauses.get(agent_id, _FIRST_RETRY / 2)
        if pause > _MAX_RETRY:
            return
        retry_at = math.ceil(loop.time() + pause)
        if retry_at not in self._retries:
            self._retries[retry_at] = set()
            loop.call_at(retry_at, self._run_retry, retry_at)
        self._retries[retry_at].add(agent_id)

    def _run_retry(self, retry_at: int) -> None:
        for agent_id in self._retries.pop(retry_at):
            self.probe_soon(agent_id)

    async def _find_runtime(self, manifest: Manifest) -> Runtime | None:
        """An agent whose runtime cannot be built is offline at once: asking again would not help."""
        try:
            return await self._runtime_of(manifest)
        except FabricError as error:
            self._registry.health.set_status(manifest.agent_id, "offline", error.full_message)
            return None

    def _record_status(self, manifest: Manifest, status: str, reason: str | None) -> None:
        health, reason = self._registry.health, reason or f"the agent says it is {status}"
        if status == "online":
            self._on_answer(manifest.agent_id)
            health.record_probe_success(manifest.agent_id)
        elif status == "degraded":
            health.set_status(manifest.agent_id, "degraded", reason)
        elif status == "offline":
            health.record_probe_failure(manifest.agent_id, AgentOffline(reason))
