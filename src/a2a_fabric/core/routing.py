"""Which agents answer a call, in which order, and why: a pure function from the catalog and health to a plan.

The call itself and `fabric.route.preview` use the same plan. Tier a: the agent that was
named, the replicas of its pool, then its declared fallbacks; other agents with the same
capability only where the operator allows it (`peers: capability`), or where the call named
no agent. Tier b: the same agent without streaming. Tier c: what policy refuses, with the
reason. `docs/routing.md` explains it for people."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import HEALTH_RANK, TRUST_RANK, Capability, Health, Manifest, Status, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AgentNotFound,
    CallTimeout,
    CapabilityNotFound,
    FabricError,
    OperatorText,
    UpstreamInterrupted,
)
from a2a_fabric.core.policy import find_refusal, is_visible, list_callable_capabilities, refuse_call
from a2a_fabric.core.ports import AgentIndex, HealthView
from a2a_fabric.core.retry import RetryBudget

Tier = Literal["primary", "pool", "declared", "peer", "degraded"]

_PEERS_CONSIDERED = 16  # so that a plan costs the same with ten peers and with a hundred thousand
_REPLICAS_CONSIDERED = 256
_TIMEOUT_ERROR = CallTimeout(0.0)


class RoutingPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which agents may answer a call."""

    fallback: Annotated[
        bool,
        Meta(
            description="Ask the replicas and declared fallbacks of an agent when it fails. false: ask no other agent."
        ),
    ] = True
    peers: Annotated[
        Literal["declared", "capability"],
        Meta(
            description="Which other agents may answer for an agent. declared: only its `pool` and its `fallbacks`. "
            "capability: also other agents of the operator (or of the same owner) that declare the same "
            "capability, if it is idempotent or changes nothing. Use it if your agents' capability names "
            "are one vocabulary."
        ),
    ] = "declared"
    max_attempts: Annotated[int, Meta(ge=1, le=16, description="How many agents one call may try.")] = 4
    attempt_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Part of the remaining time that one attempt may use while other agents can still be asked.",
        ),
    ] = 0.6
    retries: RetryBudget = RetryBudget()
    max_delegations: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="How many entries the delegation chain of a call may have. A call that comes back to this "
            "node is refused.",
        ),
    ] = 8


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    manifest: Manifest
    capability: Capability | None  # None: the agent's capabilities are not known, so it is asked
    tier: Tier
    reason: str
    stream: bool


class RouteRefusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    agent_id: str
    reason: str


class RoutePlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    agent_id: str
    capability: str
    candidates: tuple[Candidate, ...]
    refused: tuple[RouteRefusal, ...] = ()
    primary: Candidate | None = None  # the named agent, also where others are asked before or instead of it
    skipped: str | None = None  # why the named agent is not asked at all
    replicas: int = 0  # how many of the first candidates are equal members of one pool: see `share_load`
    attempts: int = 1  # how many of the candidates may be asked
    last_usable: int = 0  # the index of the last candidate that is not known to be offline
    status: Status = "unknown"  # of the named agent
    only: Candidate | None = None  # the named agent, if it is asked and no other may be


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What routing needs to know of a call."""

    agent_id: str
    capability: str
    principal: Principal
    stream: bool = False
    any_agent: bool = False  # the caller named only a capability; `agent_id` is the best agent for it


class RoutePlanner(Protocol):
    """Makes plans for calls and previews."""

    def __call__(
        self, agent_id: str, capability: str, principal: Principal, stream: bool, any_agent: bool = False
    ) -> RoutePlan:
        """Raises AgentNotFound, CapabilityNotFound or Forbidden when there is no agent to ask."""
        ...


def plan_route(request: RouteRequest, agents: AgentIndex, health: HealthView, policy: RoutingPolicy) -> RoutePlan:
    """Raises AgentNotFound, CapabilityNotFound or Forbidden when there is no agent to ask."""
    target = agents.get(request.agent_id)
    if target is None:
        raise AgentNotFound(request.agent_id)
    reason = find_refusal(request.principal, target, request.capability)
    if reason is not None:
        raise refuse_call(request.principal, reason, request.agent_id, request.capability)
    if not is_visible(request.principal, target):
        raise AgentNotFound(request.agent_id)
    alternatives = _Alternatives(request, target, agents, health, policy)
    primary = _make_primary(target, request)
    candidates = alternatives.find_candidates()
    if primary is None and not candidates:
        offered = [capability.name for capability in list_callable_capabilities(request.principal, target)]
        raise CapabilityNotFound(request.agent_id, request.capability, offered)
    ordered = list(_order_candidates(primary, candidates, health))
    replicas = _count_replicas(ordered, health)
    del ordered[max(policy.max_attempts, replicas) :]
    return RoutePlan(
        agent_id=request.agent_id,
        capability=request.capability,
        candidates=tuple(ordered),
        refused=tuple(alternatives.refused),
        primary=primary,
        skipped=None if primary else f"capability '{request.capability}' is not offered by agent '{request.agent_id}'",
        replicas=replicas,
        attempts=policy.max_attempts,
        last_usable=max((i for i, each in enumerate(ordered) if not _is_offline(each, health)), default=0),
        status=health.get(target.agent_id).status,
        only=primary if len(ordered) == 1 and ordered[0] is primary else None,
    )


def share_load(plan: RoutePlan, count_calls: Callable[[str], int], conversation: str | None = None) -> RoutePlan:
    """The plan with its replicas in the order in which they are asked now.

    The least busy goes first; on a tie the named agent, then by id. A conversation stays with one
    replica, which may remember it; the conversation id alone decides which.
    """

    def by_load(each: Candidate) -> tuple[int, bool, str]:
        agent_id = each.manifest.agent_id
        return count_calls(agent_id), each.tier != "primary", agent_id

    def by_affinity(each: Candidate) -> bytes:
        return _affinity_hash(str(conversation), each.manifest.agent_id)

    pool = plan.candidates[: plan.replicas]
    first = nsmallest(plan.attempts, pool, key=by_load if conversation is None else by_affinity)
    candidates = (*first, *plan.candidates[plan.replicas :])[: plan.attempts]
    return msgspec.structs.replace(
        plan, candidates=candidates, replicas=len(first), last_usable=min(plan.last_usable, len(candidates) - 1)
    )


def _affinity_hash(conversation: str, agent_id: str) -> bytes:
    """Rendezvous hashing: when a replica is added or removed, only its own conversations move."""
    return hashlib.sha256(f"{conversation}\0{agent_id}".encode("utf-8", "surrogatepass")).digest()


def must_leave_time(plan: RoutePlan, number: int) -> bool:
    """Whether this attempt must leave time for a later candidate that is usable and may be asked after a timeout."""
    return number < plan.last_usable and may_try_next(
        _TIMEOUT_ERROR, plan.candidates[number].capability, has_streamed=False
    )


def may_answer_unnamed(manifest: Manifest, caller: str) -> bool:
    """Whether an agent is asked for a caller that did not name it: the operator's agents, and the caller's own."""
    return manifest.registered_by is None or manifest.registered_by == caller


def restrict_to_agent(plan: RoutePlan, agent_id: str) -> RoutePlan | None:
    """The plan with one agent alone, for an answer to that agent's question; None if it is not in the plan."""
    for candidate in plan.candidates:
        if candidate.manifest.agent_id == agent_id:
            return RoutePlan(agent_id=plan.agent_id, capability=plan.capability, candidates=(candidate,))
    return None


def may_try_next(error: FabricError, capability: Capability | None, *, has_streamed: bool) -> bool:
    """Whether the next candidate may be asked after this failure.

    An answer of the agent itself is final. A call that certainly never ran may be repeated. A call
    that may have run is repeated if the capability is `idempotent`; where that is unset, not if the
    capability writes, not after a lost answer, and not after text has reached the caller.
    """
    if error.is_answer or not error.falls_back:
        return False
    if error.never_ran:
        return True
    if capability is not None and capability.idempotent is not None:
        return capability.idempotent
    if capability is not None and capability.side_effects == "writes":
        return False
    return not has_streamed and not isinstance(error, UpstreamInterrupted)


def _make_primary(target: Manifest, request: RouteRequest) -> Candidate | None:
    capability = target.find_capability(request.capability)
    if capability is None and not target.is_open_ended:
        return None
    stream = request.stream and (capability is None or capability.streaming)
    return Candidate(manifest=target, capability=capability, tier="primary", reason="asked for", stream=stream)


class _Alternatives:
    """The other agents that may answer a call, with tier and reason, and those that may not, with the reason."""

    def __init__(
        self, request: RouteRequest, target: Manifest, agents: AgentIndex, health: HealthView, policy: RoutingPolicy
    ) -> None:
        self._request = request
        self._target = target
        self._agents = agents
        self._health = health
        self._policy = policy
        self.refused: list[RouteRefusal] = []

    def find_candidates(self) -> list[Candidate]:
        target = self._target
        if target.is_tool or not self._policy.fallback:
            return []
        selected = [*self._find_replicas(), *self._find_declared()]
        excluded = {target.agent_id, *(each.manifest.agent_id for each in selected), *target.fallbacks}
        if self._request.any_agent or self._policy.peers == "capability":
            selected += self._find_peers(excluded)
        return selected

    def _find_replicas(self) -> list[Candidate]:
        members = islice(self._agents.list_replicas(self._target), _REPLICAS_CONSIDERED)
        pool = [each for each in members if each.agent_id != self._target.agent_id]
        candidates = [self._consider(each, "pool", f"in pool {self._target.pool} too") for each in pool]
        return sorted(filter(None, candidates), key=lambda each: each.manifest.agent_id)

    def _find_declared(self) -> Iterator[Candidate]:
        target = self._target
        pool = {each.agent_id for each in self._agents.list_replicas(target)}
        for agent_id in dict.fromkeys(target.fallbacks):
            manifest = self._agents.get(agent_id)
            if manifest is None or agent_id == target.agent_id or agent_id in pool:
                continue
            if not _may_stand_in_for(manifest, target):
                self._record_refusal(manifest, f"registered by another owner than {target.agent_id}")
                continue
            candidate = self._consider(manifest, "declared", f"declared fallback of {target.agent_id}")
            if candidate is not None:
                yield candidate

    def _find_peers(self, excluded: set[str]) -> list[Candidate]:
        """Other agents with the capability, best first."""
        request = self._request
        own_capability = self._target.find_capability(request.capability)
        if not request.any_agent and (own_capability is None or not own_capability.may_repeat):
            return []  # also if the agent never said what it offers: it may have meant something else by that name
        if not request.any_agent and self._agents.is_discovered(self._target.agent_id):
            return []
        peers: list[Candidate] = []
        for manifest in islice(self._agents.find_by_capability(normalize_name(request.capability)), _PEERS_CONSIDERED):
            if manifest.agent_id in excluded:
                continue
            reason = self._find_peer_refusal(manifest)
            if reason is not None:
                self._record_refusal(manifest, reason)
                continue
            candidate = self._consider(manifest, "peer", f"offers '{request.capability}' too")
            if candidate is not None:
                peers.append(candidate)
        peers.sort(key=lambda peer: _rank_peer(peer, self._health.get(peer.manifest.agent_id)))
        return peers

    def _find_peer_refusal(self, manifest: Manifest) -> str | None:
        target = self._target
        if not _may_stand_in_for(manifest, target):
            return f"registered by another owner than {target.agent_id}"
        if TRUST_RANK[manifest.trust_tier] > TRUST_RANK[target.trust_tier]:
            return f"trust tier '{manifest.trust_tier}' is below '{target.trust_tier}' of {target.agent_id}"
        if self._request.any_agent:
            return None
        if self._agents.is_discovered(manifest.agent_id):
            return "its capabilities were learnt from the agent, not declared"
        capability = manifest.find_capability(self._request.capability)
        if capability is not None and not capability.may_repeat:
            return f"'{capability.name}' may change something there and is not declared idempotent"
        return None

    def _consider(self, manifest: Manifest, tier: Tier, reason: str) -> Candidate | None:
        request = self._request
        capability = manifest.find_capability(request.capability)
        if capability is None and not manifest.is_open_ended:
            refusal_reason: str | None = f"does not offer '{request.capability}'"
        else:
            refusal_reason = find_refusal(request.principal, manifest, request.capability)
        if refusal_reason is not None:
            self._record_refusal(manifest, refusal_reason)
            return None
        stream = request.stream and (capability is None or capability.streaming)
        return Candidate(manifest=manifest, capability=capability, tier=tier, reason=reason, stream=stream)

    def _record_refusal(self, manifest: Manifest, reason: str) -> None:
        if is_visible(self._request.principal, manifest):  # others must not be disclosed
            public_reason = reason.public if isinstance(reason, OperatorText) else reason
            self.refused.append(RouteRefusal(agent_id=manifest.agent_id, reason=public_reason))


def _may_stand_in_for(manifest: Manifest, target: Manifest) -> bool:
    """The operator's agents may answer for every agent; a registered agent only for agents of its own owner."""
    return manifest.registered_by is None or manifest.registered_by == target.registered_by


def _rank_peer(peer: Candidate, health: Health) -> tuple[int, bool, int, float]:
    latency = health.latency if health.latency is not None else 1.0
    return (HEALTH_RANK[health.status], not peer.stream, TRUST_RANK[peer.manifest.trust_tier], latency)


def _order_candidates(
    primary: Candidate | None, alternatives: Iterable[Candidate], health: HealthView
) -> Iterator[Candidate]:
    """Agents that are known to be offline come last; they are not left out, because they may be back.

    Within a pool healthy agents go before degraded ones, and the named agent first.
    """
    offline: list[Candidate] = []
    rest: list[Candidate] = []
    pool = [primary] if primary else []
    for each in alternatives:
        (pool if each.tier == "pool" else rest).append(each)
    pool.sort(key=lambda each: _is_degraded(each, health))
    for candidate in (*pool, *rest):
        if _is_offline(candidate, health):
            offline.append(candidate)
        else:
            yield candidate
    yield from offline
    if primary and primary.stream and primary.capability and primary.capability.idempotent:
        yield Candidate(
            manifest=primary.manifest,
            capability=primary.capability,
            tier="degraded",
            reason="the same without streaming",
            stream=False,
        )


def _count_replicas(ordered: Sequence[Candidate], health: HealthView) -> int:
    """How many of the first candidates belong to one pool and are in the same state; 0 if there is only one."""
    count = 0
    for candidate in ordered:
        is_member = candidate.tier == "pool" or (candidate.tier == "primary" and candidate.manifest.pool is not None)
        if not is_member or _is_offline(candidate, health):
            break
        if _is_degraded(candidate, health) != _is_degraded(ordered[0], health):
            break
        count += 1
    return count if count > 1 else 0


def _is_offline(candidate: Candidate, health: HealthView) -> bool:
    return health.get(candidate.manifest.agent_id).status == "offline"


def _is_degraded(candidate: Candidate, health: HealthView) -> bool:
    return health.get(candidate.manifest.agent_id).status == "degraded"
