"""The directory itself: who is in it, for whom, in which order, and how an entry looks.

Clients take the first that they are given, so the order is part of the answer:
health, then trust, then time of registration. The dead come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TRUST_RANK, Manifest, Status, fold
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, CapabilityNotFound, Forbidden, error_by_code, nearest
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.policy import check_named
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.doors.context import DoorContext
from a2a_fabric.doors.directory.names import agent_id_of, directory_id_of
from a2a_fabric.doors.directory.visit import Visit

RUNTIME = "rpc"  # what agents that register here are reached by

_HEALTH_RANK: dict[Status, int] = {"online": 0, "unknown": 1, "degraded": 2, "offline": 3}
_SHOWN = 64  # characters of a caller's own words in an error

Limit = Annotated[int, Meta(ge=1)] | None


class DiscoverParams(msgspec.Struct, frozen=True, kw_only=True):
    """No capabilities named means all agents."""

    capabilities: tuple[str, ...] = ()
    limit: Limit = None


class AgentArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: str


class Entries:
    """`direct` are agents whose own address is given away; of all others ours is."""

    def __init__(self, context: DoorContext, direct: Iterable[str]) -> None:
        self._registry = context.gateway.registry
        self._started_at = context.gateway.started_at
        self._operations = context.operations
        self._direct = frozenset(direct)

    async def discover(self, params: DiscoverParams, visit: Visit) -> dict[str, Any]:
        seen = self._registry.seen_by(visit.principal)
        listed = self._in_order(_offering(seen, params.capabilities) if params.capabilities else seen.agents)
        return {"agents": [self.entry(manifest, visit.base) for manifest in listed[: params.limit]]}

    async def agent(self, params: AgentArgument, visit: Visit) -> dict[str, Any]:
        manifest = self.one(params.agent_id, visit.principal)
        if manifest.is_tool:
            raise AgentNotFound(params.agent_id)
        return self.entry(manifest, visit.base)

    def entry(self, manifest: Manifest, base: str) -> dict[str, Any]:
        """Exactly the keys of the document: strict clients refuse any other."""
        registered_at = datetime.fromtimestamp(self._registered_at(manifest), UTC)
        return {
            "agentId": directory_id_of(manifest),
            "name": manifest.display_name or manifest.agent_id,
            "capabilities": [capability.name for capability in manifest.capabilities],
            "endpoint": self._endpoint(manifest, base),
            "registeredAt": registered_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }

    def one(self, given: str, principal: Principal) -> Manifest:
        """By its id in the directory, or by the name that the house has for it. Raises AgentNotFound, Forbidden."""
        manifest = self._registry.get_for(principal, agent_id_of(given))
        if manifest is None:
            check_named(principal, agent_id_of(given))
            raise AgentNotFound(given, [directory_id_of(each) for each in self._registry.seen_by(principal).agents])
        return manifest

    def best(self, action: str, principal: Principal) -> Manifest:
        """Who does this, and may be asked by this caller. Raises CapabilityNotFound or Forbidden."""
        caller, seen = owner_of(principal), self._registry.seen_by(principal)
        allowed = self._in_order(each for each in _offering(seen, [action]) if may_answer_unnamed(each, caller))
        if not allowed and (principal.scp is not None or principal.cap is not None):
            words = f"Refused by policy: no agent that these credentials may call does '{action[:_SHOWN]}'"
            raise Forbidden(words, capability=action[:_SHOWN])
        if not allowed:
            raise self._nobody(action, principal)
        return allowed[0]

    def target(self, agent_id: str | None, action: str, principal: Principal) -> Manifest:
        """Whoever was named, else whoever does this best. Raises AgentNotFound, CapabilityNotFound or Forbidden."""
        return self.best(action, principal) if agent_id is None else self.one(agent_id, principal)

    def _in_order(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return sorted(manifests, key=self._rank)

    def _rank(self, manifest: Manifest) -> tuple[int, int, float, str]:
        health = self._registry.health.of(manifest.agent_id).status
        registered_at = self._registered_at(manifest)
        return _HEALTH_RANK[health], TRUST_RANK[manifest.trust_tier], registered_at, manifest.agent_id

    def _registered_at(self, manifest: Manifest) -> float:
        """What files declare is there since the node is."""
        registration = self._operations.registration_of(manifest.agent_id)
        return self._started_at if registration is None else registration.registered_at

    def _endpoint(self, manifest: Manifest, base: str) -> str:
        uri = manifest.endpoint.get("uri")
        is_direct = manifest.runtime == RUNTIME and not self._direct.isdisjoint((manifest.agent_id, "*"))
        if is_direct and isinstance(uri, str):
            return uri
        return f"{base}/a2a/agents/{manifest.agent_id}/rpc"

    def _nobody(self, action: str, principal: Principal) -> CapabilityNotFound:
        agents = self._registry.seen_by(principal).agents
        known = {capability.name for manifest in agents for capability in manifest.capabilities}
        message = f"No agent does '{action[:_SHOWN]}'{nearest(action, known)}"
        error = error_by_code(CapabilityNotFound.code, message, {"capability": action[:_SHOWN]})
        assert isinstance(error, CapabilityNotFound)  # noqa: S101  # its own code
        return error


def _offering(catalog: AgentIndex, capabilities: Iterable[str]) -> Iterator[Manifest]:
    """Any of them is enough."""
    seen: set[str] = set()
    for name in capabilities:
        for manifest in catalog.offering(fold(name)):
            if manifest.agent_id not in seen:
                seen.add(manifest.agent_id)
                yield manifest
