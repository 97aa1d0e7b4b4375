"""Plans the route of a call, and keeps the plans until the catalog or the health of an agent changes."""

from __future__ import annotations

from a2a_fabric.core.agent import MAX_CAPABILITY_NAME
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound
from a2a_fabric.core.policy import find_refusal_of_unknown, refuse_call
from a2a_fabric.core.routing import RoutePlan, RouteRequest, RoutingPolicy, plan_route
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.registry import Registry

_MAX_PLANS = 20_000


class Planner:
    def __init__(self, registry: Registry, policy: RoutingPolicy) -> None:
        self._registry = registry
        self._policy = policy
        self._plans: dict[tuple[object, ...], RoutePlan] = {}
        # The same by the identity of the principal, which is cheaper to compare; an entry keeps its principal alive.
        self._plans_by_identity: dict[tuple[object, ...], tuple[Principal, Catalog, RoutePlan]] = {}
        self._valid_for: tuple[object, int] = (None, -1)

    def __call__(
        self, agent_id: str, capability: str, principal: Principal, stream: bool, any_agent: bool = False
    ) -> RoutePlan:
        """Raises AgentNotFound, CapabilityNotFound or Forbidden."""
        catalog, health = self._registry.catalog, self._registry.health
        own_catalog = self._registry.catalog_for(principal) if self._registry.has_logins else catalog
        if self._valid_for[0] is not catalog or self._valid_for[1] != health.epoch:
            self._plans.clear()
            self._plans_by_identity.clear()
            self._valid_for = (catalog, health.epoch)
        identity = (id(principal), agent_id, capability, stream, any_agent)
        kept = self._plans_by_identity.get(identity)
        if kept is not None and kept[0] is principal and kept[1] is own_catalog:
            return kept[2]
        rules = principal.entry.rules if principal.entry else None
        who = (principal.trust, principal.scp, principal.cap, principal.narrowed_by, principal.views, rules)
        key = (agent_id, capability, stream, any_agent, *who, None if own_catalog is catalog else own_catalog)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._build_plan(
                RouteRequest(
                    agent_id=agent_id,
                    capability=capability,
                    principal=principal,
                    stream=stream,
                    any_agent=any_agent,
                ),
                own_catalog,
            )
            if len(self._plans) > _MAX_PLANS:
                self._plans.clear()
            if len(capability) <= MAX_CAPABILITY_NAME:
                self._plans[key] = plan
        elif len(self._plans_by_identity) < _MAX_PLANS:  # asked for the second time, so it is worth it
            self._plans_by_identity[identity] = principal, own_catalog, plan
        return plan

    def _build_plan(self, route_request: RouteRequest, catalog: Catalog) -> RoutePlan:
        try:
            return plan_route(route_request, catalog, self._registry.health, self._policy)
        except AgentNotFound:
            reason = find_refusal_of_unknown(route_request.principal, route_request.agent_id, route_request.capability)
            if reason is not None:
                raise refuse_call(
                    route_request.principal, reason, route_request.agent_id, route_request.capability
                ) from None
            hints = self._registry.list_hints(route_request.principal, route_request.agent_id)
            raise AgentNotFound(route_request.agent_id, hints) from None
