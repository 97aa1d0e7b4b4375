"""How a node observes itself: the checks of its own health, and the metrics of its own parts.

`app.py` builds one `NodeStatus`, lets it wrap the store, and connects it once the parts exist."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.keys import UsedTokenStore
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.node_health import OK, NodeCheck, NodeHealth, StoreCheck
from a2a_fabric.core.stores import Store
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.runtime_pool import RuntimePool
from a2a_fabric.telemetry.log import LogWriter
from a2a_fabric.telemetry.metrics import Metrics
from a2a_fabric.telemetry.node_metrics import EventLoopLag, ProcessMetrics, StoreMetrics, UsageGauges

_MAX_NAMED = 20  # agents in the reason of a check
_WRITTEN_SECONDS = 1.0  # for which the store keeps what a check writes; the next one removes it
_AVAILABLE = frozenset({"online", "degraded"})


class NodeStatus:
    def __init__(self) -> None:
        self.lag = EventLoopLag()
        self._store_check = StoreCheck(None)
        self._store_metrics = StoreMetrics(self._note_failure, self._is_store_usable)

    def wrap_store(self, store: Store) -> Store:
        used_tokens: UsedTokenStore | None = getattr(store, "used_tokens", None)  # a plug-in's store may have none
        write = None if used_tokens is None else lambda: used_tokens.add(secrets.token_bytes(32), _WRITTEN_SECONDS)
        self._store_check = StoreCheck(lambda: store.jobs.get("none"), write)  # the smallest question
        return self._store_metrics.wrap(store)

    def _note_failure(self, error: StoreError) -> None:
        self._store_check.note_failure(error)

    async def _is_store_usable(self) -> bool:
        return (await self._store_check()).status == "ok"

    def build_health(self) -> NodeHealth:
        return NodeHealth(self._store_check)

    def add_checks(self, health: NodeHealth, registry: Registry, required: Sequence[str], log: LogWriter) -> None:
        health.add_check("agents", lambda: check_required(registry, required), decides_readiness=bool(required))
        health.add_check("registry", lambda: _check_registry(registry))
        health.add_check("log", lambda: _check_log(log))
        health.add_check("event_loop", self.lag.check)

    def add_metrics(
        self,
        metrics: Metrics,
        runtime_pool: RuntimePool,
        limits: Mapping[str, FairLimit],
        clients: Sequence[OutboundClient],
        sessions: Mapping[str, Callable[[], int]],
    ) -> None:
        """`limits` and `sessions` by the value of their label."""
        usage = UsageGauges(limits, lambda: _add_up_connections(clients), sessions, runtime_pool.count_breakers)
        for render in (self.lag.render, usage.render, ProcessMetrics().render):
            metrics.add_source(render)
        metrics.add_source(self._store_metrics.render)
        metrics.add_refresh(self._store_metrics.refresh)


def check_required(registry: Registry, required: Sequence[str]) -> NodeCheck:
    """Agents that are not known yet count as missing: a node that has just started is not ready before them."""
    problems: dict[str, str] = {}
    for agent_id in required:
        is_known = registry.catalog.get(agent_id) is not None
        status = registry.health.get(agent_id).status if is_known else "not in the catalog"
        if status not in _AVAILABLE:
            problems[agent_id] = status
    if not problems:
        return OK
    named = ", ".join(f"{agent_id} ({status})" for agent_id, status in list(problems.items())[:_MAX_NAMED])
    reason = f"{len(problems)} of {len(required)} required agents cannot be called"
    return NodeCheck(status="down", reason=reason, detail=f"{reason}: {named}")


def _check_registry(registry: Registry) -> NodeCheck:
    problems = {**registry.errors, **registry.left_out}
    if not problems:
        return OK
    first = next(iter(problems.items()))
    reason = f"{len(problems)} sources or agents could not be read"
    return NodeCheck(status="degraded", reason=reason, detail=f"{reason}; the first: {first[0]}: {first[1]}")


def _check_log(log: LogWriter) -> NodeCheck:
    if log.failure is None:
        return OK
    reason = "The log cannot be written"
    return NodeCheck(status="degraded", reason=reason, detail=f"{reason}: {log.failure}")


def _add_up_connections(clients: Sequence[OutboundClient]) -> dict[str, int]:
    used, idle, waiting = (sum(column) for column in zip(*(each.count_connections() for each in clients), strict=True))
    return {"used": used, "idle": idle, "waiting": waiting}
