"""A route over scripted agents, each behind its deadline, as in a node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.call import Call, Emit, ignore_event
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryBudget
from a2a_fabric.core.routing import RouteRequest, RoutingPolicy, plan_route
from a2a_fabric.core.tasks import enforce_deadline
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.steps.route import RoutingHandler
from a2a_fabric.testing import ScriptedRuntime
from tests.unit.made import States, call


class ScriptedRoute:
    def __init__(
        self,
        *agents: tuple[Manifest, Any],
        policy: RoutingPolicy | None = None,
        budget: RetryBudget | None = None,
        **known: Health,
    ) -> None:
        self.health = States(**known)
        self.busy: dict[str, int] = {}
        self.fell_back: list[tuple[str, str, str]] = []
        self.runtimes = {m.agent_id: _runtime(m, script) for m, script in agents}
        catalog, rules = Catalog(m for m, _ in agents), policy or RoutingPolicy(retries=budget or RetryBudget())
        self._route = RoutingHandler(
            lambda agent_id, capability, principal, stream, any_agent=False: plan_route(
                RouteRequest(
                    agent_id=agent_id, capability=capability, principal=principal, stream=stream, any_agent=any_agent
                ),
                catalog,
                self.health,
                rules,
            ),
            lambda manifest: enforce_deadline(self.runtimes[manifest.agent_id]),
            self.health,
            rules,
            count_calls=lambda agent_id: self.busy.get(agent_id, 0),
            on_fallback=lambda *told: self.fell_back.append(told),
        )

    async def __call__(self, wanted: Call | None = None, emit: Emit = ignore_event) -> Result:
        async with asyncio.timeout(30):
            return await self._route(wanted or call(), emit)

    async def fails(self, wanted: Call | None = None, emit: Emit = ignore_event) -> FabricError:
        with pytest.raises(FabricError) as caught:
            await self(wanted, emit)
        return caught.value

    @property
    def asked(self) -> Mapping[str, int]:
        return {name: len(runtime.calls) for name, runtime in self.runtimes.items() if runtime.calls}


def _runtime(manifest: Manifest, script: Any) -> ScriptedRuntime:
    return ScriptedRuntime(manifest, script if isinstance(script, list) else [script])
