"""The gateway as doors and operations see it: one node's registry, route planner and call pipeline."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import DEFAULT_TIMEOUT_MS, Handler, Principal
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.node_health import NodeHealth
from a2a_fabric.core.ports import NodeDirectory, Runtime
from a2a_fabric.core.routing import RoutePlanner
from a2a_fabric.registry.registry import Registry


class Gateway:
    """One node's registry and its composed call pipeline."""

    def __init__(
        self,
        registry: Registry,
        plan: RoutePlanner,
        handler: Handler,
        *,
        count_calls: Callable[[str], int] = lambda agent_id: 0,
        load_runtime: Callable[[Manifest], Awaitable[Runtime]] | None = None,
        node_id: str = "local",
        node_health: NodeHealth | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_timeout_ms: int = 300_000,
    ) -> None:
        self.registry = registry
        self.plan = plan
        self.count_calls = count_calls  # how many calls an agent is working on
        self.load_runtime = load_runtime  # of an agent, to ask its node about a trace; raises FabricError
        self.node_id = node_id
        self.node_health = node_health or NodeHealth()
        self.started_at = time.time()
        self.notice_sources: list[Callable[[Principal], Iterable[str]]] = []  # what callers should know
        self.nodes: NodeDirectory | None = None  # of the mesh, if the node is in one
        self.call = handler  # asks an agent; raises FabricError; cancelling it cancels the agent's work
        self.set_timeouts(timeout_ms, max_timeout_ms)

    def list_notices(self, principal: Principal) -> list[str]:
        """What this caller should know about the node, one sentence each."""
        return [notice for source in self.notice_sources for notice in source(principal)]

    def set_timeouts(self, timeout_ms: int, max_timeout_ms: int) -> None:
        self.default_timeout_ms = min(timeout_ms, max_timeout_ms)
        self._max_timeout_ms = max_timeout_ms

    @property
    def longest_timeout(self) -> float:
        """Seconds: no call may take longer, whatever its caller asks for."""
        return self._max_timeout_ms / 1000

    def clamp_timeout(self, timeout_ms: int | None) -> int:
        """The caller's timeout within the node's limits; routing applies that of the capability. Raises BadInput."""
        if timeout_ms is None:
            return self.default_timeout_ms
        if timeout_ms < 1:
            raise BadInput("timeout_ms must be at least 1", field="timeout_ms")
        return min(timeout_ms, self._max_timeout_ms)
