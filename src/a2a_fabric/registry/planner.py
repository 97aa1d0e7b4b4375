"""Plans, made once per wish and kept until the catalog or somebody's health changes."""

from __future__ import annotations

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, Forbidden
from a2a_fabric.core.policy import refusal_of_unknown
from a2a_fabric.core.routing import Plan, RoutingPolicy, Wish, plan_route
from a2a_fabric.registry.registry import Registry

_PLANS_KEPT = 20_000
_LONGEST_NAME = 256  # a capability has no longer one, so nothing longer is worth remembering


class Planner:
    def __init__(self, registry: Registry, policy: RoutingPolicy) -> None:
        self._registry = registry
        self._policy = policy
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._made_for: tuple[object, int] = (None, -1)

    def __call__(
        self, agent_id: str, capability: str, principal: Principal, stream: bool, any_agent: bool = False
    ) -> Plan:
        """Raises AgentNotFound, CapabilityNotFound or Forbidden."""
        catalog, health = self._registry.catalog, self._registry.health
        if self._made_for[0] is not catalog or self._made_for[1] != health.epoch:
            self._plans.clear()
            self._made_for = (catalog, health.epoch)
        key = (agent_id, capability, stream, any_agent, principal.trust, principal.scp, principal.cap)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make(
                Wish(
                    agent_id=agent_id,
                    capability=capability,
                    principal=principal,
                    stream=stream,
                    any_agent=any_agent,
                )
            )
            if len(self._plans) > _PLANS_KEPT:
                self._plans.clear()
            if len(capability) <= _LONGEST_NAME:
                self._plans[key] = plan
        return plan

    def _make(self, wish: Wish) -> Plan:
        catalog = self._registry.catalog
        try:
            return plan_route(wish, catalog, self._registry.health, self._policy)
        except AgentNotFound:
            why = refusal_of_unknown(wish.principal, wish.agent_id, wish.capability)
            if why is not None:
                raise Forbidden(
                    f"Refused by policy: {why}", agent_id=wish.agent_id[:128], capability=wish.capability[:128]
                ) from None
            seen = self._registry.seen_by(wish.principal)
            raise AgentNotFound(wish.agent_id, [m.agent_id for m in seen.agents]) from None
