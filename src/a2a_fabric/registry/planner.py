"""Cached routing plans: made once per route request, kept until the catalog or the health of any agent changes."""

from __future__ import annotations

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, Forbidden
from a2a_fabric.core.policy import find_refusal_of_unknown
from a2a_fabric.core.routing import RoutePlan, RouteRequest, RoutingPolicy, plan_route
from a2a_fabric.registry.registry import Registry

_MAX_PLANS = 20_000
_MAX_NAME = 256  # no capability has a longer name, so longer keys are not cached


class Planner:
    def __init__(self, registry: Registry, policy: RoutingPolicy) -> None:
        self._registry = registry
        self._policy = policy
        self._plans: dict[tuple[object, ...], RoutePlan] = {}
        self._valid_for: tuple[object, int] = (None, -1)

    def __call__(
        self, agent_id: str, capability: str, principal: Principal, stream: bool, any_agent: bool = False
    ) -> RoutePlan:
        """Raises AgentNotFound, CapabilityNotFound or Forbidden."""
        catalog, health = self._registry.catalog, self._registry.health
        if self._valid_for[0] is not catalog or self._valid_for[1] != health.epoch:
            self._plans.clear()
            self._valid_for = (catalog, health.epoch)
        key = (agent_id, capability, stream, any_agent, principal.trust, principal.scp, principal.cap)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._build_plan(
                RouteRequest(
                    agent_id=agent_id,
                    capability=capability,
                    principal=principal,
                    stream=stream,
                    any_agent=any_agent,
                )
            )
            if len(self._plans) > _MAX_PLANS:
                self._plans.clear()
            if len(capability) <= _MAX_NAME:
                self._plans[key] = plan
        return plan

    def _build_plan(self, route_request: RouteRequest) -> RoutePlan:
        catalog = self._registry.catalog
        try:
            return plan_route(route_request, catalog, self._registry.health, self._policy)
        except AgentNotFound:
            reason = find_refusal_of_unknown(route_request.principal, route_request.agent_id, route_request.capability)
            if reason is not None:
                raise Forbidden(
                    f"Refused by policy: {reason}",
                    agent_id=route_request.agent_id[:128],
                    capability=route_request.capability[:128],
                ) from None
            visible = self._registry.visible_to(route_request.principal)
            raise AgentNotFound(route_request.agent_id, [m.agent_id for m in visible.agents]) from None
