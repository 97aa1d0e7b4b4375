"""The operation `fabric.health`: the state of the node, its registry and its agents."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import Any

from a2a_fabric.core.call import Principal
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.policy import is_limited
from a2a_fabric.core.redaction import acts_as_operator, redact_health_reason
from a2a_fabric.core.result import Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments
from a2a_fabric.version import PROTOCOL_VERSION, __version__

_HIDDEN_PROBLEM = "The operator sees why"


class NoArguments(TracedArguments, frozen=True, kw_only=True):
    pass


class HealthOperations:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def all(self) -> list[Operation[Any]]:
        text = "Show how the node, its registry and its agents are."
        return [Operation("fabric.health", text, NoArguments, self.health, output={"type": "object"}, scopes=())]

    async def health(self, arguments: NoArguments, request: OperationRequest, emit: Emit) -> Result:
        return Result(data=render_health(self._gateway, request.principal))


def render_health(gateway: Gateway, principal: Principal) -> dict[str, Any]:
    """Counts only the agents and tools that this caller may call. Only the operator reads problems in detail."""
    registry = gateway.registry
    catalog = registry.visible_to(principal)
    counts = {"online": 0, "offline": 0, "degraded": 0, "unknown": 0}
    offline: dict[str, str | None] = {}
    for manifest in catalog.agents:
        health = registry.health.get(manifest.agent_id)
        counts[health.status] += 1
        if health.error is not None:
            offline[manifest.agent_id] = redact_health_reason(health, principal)
    problems = registry.errors
    return {
        "ok": True,
        "registry": "degraded" if problems else "ok",
        "runtimes": counts,
        "tools": {
            "builtin_count": len(catalog.tools),
            "available": [m.agent_id for m in catalog.tools if m.metadata.get("enabled", True)],
        },
        "agents": {"count": len(catalog.agents), "errors": offline},
        "problems": _visible_problems(problems, principal),
        "version": PROTOCOL_VERSION,
        "software_version": __version__,
        "node_id": gateway.node_id,
        "uptime_seconds": round(time.time() - gateway.started_at, 3),
    }


def _visible_problems(problems: dict[str, str], principal: Principal) -> dict[str, str]:
    """The operator reads all problems, other callers only that there are some, and callers with scopes none."""
    if acts_as_operator(principal):
        return problems
    return {} if is_limited(principal) else {PurePath(name).name: _HIDDEN_PROBLEM for name in problems}
