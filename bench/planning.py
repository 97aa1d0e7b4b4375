"""The time to find an agent and plan a route, by the number of agents."""

from __future__ import annotations

import gc
import statistics
import time

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.routing import RouteRequest, RoutingPolicy, plan_route
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthPolicy, HealthTracker

COUNTS = (10, 1_000, 100_000)
TIMES = 2000


def run() -> None:
    print("\n| agents | lookup + plan, uncached µs |")
    print("|---|---|")
    for count in COUNTS:
        print(f"| {count:,} | {_plan(count) * 1e6:.1f} |")


def _plan(count: int) -> float:
    request = RouteRequest(agent_id="agent-5", capability="echo", principal=Principal(trust="local"))
    health = HealthTracker(HealthPolicy())
    offers = (Capability(name="echo"),)
    catalog = Catalog(Manifest(agent_id=f"agent-{n}", endpoint={}, capabilities=offers) for n in range(count))
    gc.collect()
    times = []
    for _ in range(TIMES):
        started = time.perf_counter()
        plan_route(request, catalog, health, RoutingPolicy())
        times.append(time.perf_counter() - started)
    return statistics.median(times)
