from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_fabric.core.agent import TRUST_RANK, Capability, Health, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import (
    AgentNotFound,
    AgentOffline,
    AllAttemptsFailed,
    AuthInvalid,
    BadInput,
    CallTimeout,
    CapabilityNotFound,
    FabricError,
    Forbidden,
    InternalError,
    RateLimited,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
    error_from_agent,
)
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.core.routing import RoutePlan, RouteRequest, RoutingPolicy, may_try_next, plan_route, share_load
from a2a_fabric.registry.catalog import Catalog
from tests.marks import requirement
from tests.profiles import examples
from tests.unit.made import LOCAL, States, agent

POLICY = RoutingPolicy()
ONE_VOCABULARY = RoutingPolicy(peers="capability")
SAFE = Capability(name="plan", side_effects="reads")
NAMES = ["percy", "backup", "coder", "vision", "memory", "other"]
TIERS = st.sampled_from(["local", "org", "public"])
SCOPES = st.none() | st.lists(
    st.sampled_from(["*", "agent:*", "capability:plan", *(f"agent:{n}" for n in NAMES)]), max_size=3
).map(tuple)

CAPABILITIES = st.lists(
    st.builds(
        Capability,
        name=st.sampled_from(["plan", "Plan", "draw"]),
        streaming=st.booleans(),
        idempotent=st.none() | st.booleans(),
        side_effects=st.sampled_from([None, "none", "reads", "writes"]),
    ),
    max_size=2,
).map(tuple)

MANIFESTS = st.builds(
    Manifest,
    agent_id=st.sampled_from(NAMES),
    endpoint=st.just({}),
    capabilities=CAPABILITIES,
    trust_tier=TIERS,
    fallbacks=st.lists(st.sampled_from([*NAMES, "nobody"]), max_size=4).map(tuple),
    category=st.sampled_from([None, None, None, "math"]),
    pool=st.sampled_from([None, None, "p"]),
    metadata=st.sampled_from(
        [{}, {}, {"registered": {"owner": "psk:mallory"}}, {"registered": {"owner": "psk:psk", "by_operator": True}}]
    ),
)

HEALTHS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        Health,
        status=st.sampled_from(["online", "offline", "degraded", "unknown"]),
        latency=st.none() | st.floats(0, 5),
    ),
)

REQUESTS = st.builds(
    RouteRequest,
    agent_id=st.sampled_from([*NAMES, "nobody"]),
    capability=st.sampled_from(["plan", "PLAN", "draw", "fly", ""]),
    principal=st.builds(Principal, trust=TIERS, scp=SCOPES, cap=SCOPES),
    stream=st.booleans(),
)

WORLDS = st.tuples(
    REQUESTS,
    st.lists(MANIFESTS, max_size=8),
    HEALTHS,
    st.builds(
        RoutingPolicy,
        fallback=st.booleans(),
        max_attempts=st.integers(1, 6),
        peers=st.sampled_from(["declared", "capability"]),
    ),
)


def planned(
    request: RouteRequest, manifests: Sequence[Manifest], healths: dict[str, Health], policy: RoutingPolicy
) -> RoutePlan | None:
    """The plan, or None if it was refused with one of our errors; anything else fails the test."""
    try:
        return plan_route(request, Catalog(manifests), States(**healths), policy)
    except FabricError:
        return None


@requirement("001-09", "001-41")
@settings(max_examples=examples(250))
@given(WORLDS)
def test_whatever_the_world_the_plan_keeps_its_promises(world: Any) -> None:
    request, manifests, healths, policy = world
    plan = planned(request, manifests, healths, policy)
    if plan is None:
        return
    catalog = Catalog(manifests)
    asked = catalog.get(request.agent_id)
    assert asked is not None
    assert 1 <= len(plan.candidates) <= max(policy.max_attempts, plan.replicas)
    shared = share_load(plan, lambda agent_id: len(agent_id))
    assert 1 <= len(shared.candidates) <= policy.max_attempts
    ways = [(c.manifest.agent_id, c.stream) for c in plan.candidates]
    assert len(set(ways)) == len(ways), "nobody is asked twice in the same way"
    for candidate in plan.candidates:
        manifest = candidate.manifest
        assert find_refusal(request.principal, manifest, request.capability) is None
        assert candidate.capability is not None or not manifest.capabilities
        assert request.stream or not candidate.stream
        if candidate.tier == "pool":
            assert (manifest.pool, manifest.registered_by) == (asked.pool, asked.registered_by)
        if candidate.tier in ("declared", "peer"):
            assert manifest.registered_by in (None, asked.registered_by), "never a stranger's"
        if candidate.tier == "peer":
            assert policy.peers == "capability"
            for offered in (asked.find_capability(request.capability), candidate.capability):
                assert offered is None or offered.idempotent is True or offered.side_effects in ("none", "reads")
            assert TRUST_RANK[manifest.trust_tier] <= TRUST_RANK[asked.trust_tier]
            assert manifest.agent_id not in asked.fallbacks
        if candidate.tier == "declared":
            assert manifest.agent_id in asked.fallbacks
        if candidate.tier in ("primary", "degraded"):
            assert manifest is asked
        else:
            assert policy.fallback


@requirement("001-47")
@settings(max_examples=examples(250))
@given(WORLDS)
def test_who_was_asked_for_comes_first_unless_offline_or_unable(world: Any) -> None:
    request, manifests, healths, policy = world
    plan = planned(request, manifests, healths, policy)
    if plan is None:
        return
    asked = Catalog(manifests).get(request.agent_id)
    assert asked is not None
    is_able = not asked.capabilities or asked.find_capability(request.capability) is not None
    status = healths.get(request.agent_id, Health()).status
    is_well = status != "offline" and not (status == "degraded" and asked.pool is not None)
    assert (plan.skipped is None) is is_able
    if is_able and is_well:
        assert plan.candidates[0].tier == "primary"
    statuses = [healths.get(c.manifest.agent_id, Health()).status for c in plan.candidates if c.tier != "degraded"]
    assert statuses == sorted(statuses, key=lambda status: status == "offline"), "the offline come last"


@given(WORLDS)
def test_the_same_world_gives_the_same_plan(world: Any) -> None:
    assert planned(*world) == planned(*world)


class CountingIndex:
    """A catalog that counts how often and how far it is read."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.reads = 0

    def get(self, agent_id: str) -> Manifest | None:
        self.reads += 1
        return self._catalog.get(agent_id)

    def find_by_capability(self, capability: str) -> Sequence[Manifest]:
        self.reads += 1
        return _Counted(self._catalog.find_by_capability(capability), self)

    def list_replicas(self, manifest: Manifest) -> Sequence[Manifest]:
        return _Counted(self._catalog.list_replicas(manifest), self)

    def is_discovered(self, agent_id: str) -> bool:
        return self._catalog.is_discovered(agent_id)


class _Counted(Sequence[Manifest]):
    def __init__(self, inner: Sequence[Manifest], index: CountingIndex) -> None:
        self._inner, self._index = inner, index

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, at: Any) -> Any:
        self._index.reads += 1
        return self._inner[at]


@requirement("001-09")
def test_the_cost_of_a_plan_does_not_grow_with_the_number_of_agents() -> None:
    reads = {}
    for count in (100, 1000, 20_000):
        index = CountingIndex(Catalog(agent(f"a{number}", SAFE) for number in range(count)))
        plan_route(request("a50", "plan"), index, States(), ONE_VOCABULARY)
        reads[count] = index.reads
    assert len(set(reads.values())) == 1
    assert reads[20_000] < 100


def request(agent_id: str = "percy", capability: str = "plan", *, stream: bool = False, **who: Any) -> RouteRequest:
    principal = Principal(**who) if who else LOCAL
    return RouteRequest(agent_id=agent_id, capability=capability, principal=principal, stream=stream)


def names(plan: RoutePlan) -> list[str]:
    return [candidate.manifest.agent_id for candidate in plan.candidates]


def plan_for(
    wanted: RouteRequest, *manifests: Manifest, policy: RoutingPolicy = POLICY, **healths: Health
) -> RoutePlan:
    return plan_route(wanted, Catalog(manifests), States(**healths), policy)


@requirement("001-41")
def test_declared_fallbacks_come_before_other_agents_with_the_capability() -> None:
    plan = plan_for(
        request(), agent("percy", SAFE, fallbacks=("second", "first")), agent("peer", SAFE),
        agent("first", "plan"), agent("second", "plan"), policy=ONE_VOCABULARY,
    )  # fmt: skip
    assert names(plan) == ["percy", "second", "first", "peer"]
    assert [c.tier for c in plan.candidates] == ["primary", "declared", "declared", "peer"]
    assert plan.candidates[1].reason == "declared fallback of percy"


def test_a_fallback_named_twice_or_naming_itself_is_asked_once() -> None:
    plan = plan_for(request(), agent("percy", "plan", fallbacks=("b", "percy", "b")), agent("b", "plan"))
    assert names(plan) == ["percy", "b"]


@requirement("001-47")
def test_peers_come_by_health_then_trust_then_latency() -> None:
    plan = plan_for(
        request(),
        agent("percy", SAFE, trust_tier="public"), agent("slow", SAFE, trust_tier="org"),
        agent("sick", SAFE, trust_tier="local"), agent("quick", SAFE, trust_tier="org"),
        agent("near", SAFE, trust_tier="local"),
        policy=RoutingPolicy(max_attempts=16, peers="capability"),
        slow=Health(status="online", latency=2.0), quick=Health(status="online", latency=0.1),
        sick=Health(status="degraded"), near=Health(status="online", latency=9.0),
    )  # fmt: skip
    assert names(plan) == ["percy", "near", "quick", "slow", "sick"]


@requirement("001-41")
def test_untrusted_peers_are_refused_with_the_reason_unless_declared() -> None:
    stranger = agent("stranger", "plan", trust_tier="public")
    plan = plan_for(request(), agent("percy", SAFE, trust_tier="org"), stranger, policy=ONE_VOCABULARY)
    assert names(plan) == ["percy"]
    assert plan.refused[0].agent_id == "stranger"
    assert plan.refused[0].reason == "trust tier 'public' is below 'org' of percy"
    assert names(plan_for(request(), agent("percy", "plan", fallbacks=("stranger",)), stranger)) == [
        "percy",
        "stranger",
    ]


@requirement("001-41")
def test_a_caller_from_outside_is_refused_an_inner_agent() -> None:
    with pytest.raises(Forbidden, match="no agent 'percy' for callers of trust tier 'public'"):
        plan_for(request(trust="public"), agent("percy", "plan", trust_tier="local"))


def test_scopes_bind_peers_as_well_as_the_agent_asked_for() -> None:
    limited = request(trust="local", scp=("agent:percy",))
    plan = plan_for(limited, agent("percy", SAFE), agent("peer", SAFE), policy=ONE_VOCABULARY)
    assert names(plan) == ["percy"]
    assert plan.refused == ()  # the caller is not told of a peer that it may not call
    with pytest.raises(Forbidden):
        plan_for(request(trust="local", scp=()), agent("percy", "plan"))


@pytest.mark.parametrize("scope", ["*", "agent:*", "agent:percy", "capability:PLAN-A", "capability:plan_a"])
def test_a_scope_lets_through_what_it_names(scope: str) -> None:
    wanted = request(capability="plan-a", trust="local", scp=(scope,))
    assert names(plan_for(wanted, agent("percy", "plan_a"))) == ["percy"]


@pytest.mark.parametrize(
    "scope", ["", "agent:", "agent:perc", "tool:percy", "tool:*", "capability:plan", "percy", "agent"]
)
def test_a_scope_lets_through_nothing_else(scope: str) -> None:
    with pytest.raises(Forbidden):
        plan_for(request(capability="plan-a", trust="local", scp=(scope,)), agent("percy", "plan_a"))


@requirement("001-41")
def test_a_stream_may_degrade_to_a_plain_reply_of_the_same_agent() -> None:
    able = Capability(name="plan", streaming=True, idempotent=True)
    plan = plan_for(request(stream=True), agent("percy", able))
    assert [(c.tier, c.stream) for c in plan.candidates] == [("primary", True), ("degraded", False)]
    once = Capability(name="plan", streaming=True)
    assert len(plan_for(request(stream=True), agent("percy", once)).candidates) == 1


def test_an_agent_without_the_capability_is_not_asked_for_it() -> None:
    with pytest.raises(CapabilityNotFound, match=r"it offers: draw"):
        plan_for(request(), agent("percy", "draw"))
    with pytest.raises(CapabilityNotFound):
        plan_for(request(), agent("percy", "draw"), agent("peer", "plan"))
    plan = plan_for(request(), agent("percy", "draw", fallbacks=("peer",)), agent("peer", "plan"))
    assert names(plan) == ["peer"]
    assert plan.skipped == "capability 'plan' is not offered by agent 'percy'"


def test_an_agent_that_has_not_said_what_it_offers_is_asked() -> None:
    plan = plan_for(request(), agent("percy"))
    assert plan.candidates[0].capability is None


def test_an_unknown_agent_is_not_found() -> None:
    with pytest.raises(AgentNotFound):
        plan_for(request("nobody"))


def test_without_fallback_only_the_agent_itself_is_asked() -> None:
    plan = plan_for(request(), agent("percy", "plan", fallbacks=("b",)), agent("b", "plan"),
                    policy=RoutingPolicy(fallback=False))  # fmt: skip
    assert names(plan) == ["percy"]


def test_tools_have_no_stand_ins() -> None:
    tool = agent("math.calculate", "plan", category="math", trust_tier="public")
    assert names(plan_for(request("math.calculate"), tool, agent("b", "plan"))) == ["math.calculate"]


YES, NO, UNSAID = True, False, None


@requirement("001-38")
@pytest.mark.parametrize(
    ("error", "unsaid", "idempotent", "not_idempotent", "unsaid_after_words"),
    [
        (AgentOffline("x"), True, True, True, True),
        (CapabilityNotFound("a", "b"), True, True, True, True),
        (CallTimeout(1), True, True, False, False),
        (UpstreamRefused("x"), False, False, False, False),
        (UpstreamFailed("x"), True, True, False, False),
        (error_from_agent("TIMEOUT", "x"), False, False, False, False),
        (error_from_agent("AGENT_OFFLINE", "x"), True, True, True, True),
        (error_from_agent("CAPABILITY_NOT_FOUND", "x"), True, True, True, True),
        (UpstreamInterrupted("x"), False, True, False, False),
        (AllAttemptsFailed("a", ["x"]), False, False, False, False),
        (BadInput("x"), False, False, False, False),
        (Forbidden("x"), False, False, False, False),
        (AuthInvalid(), False, False, False, False),
        (RateLimited("x", 1), False, False, False, False),
        (InternalError(), False, False, False, False),
        (AgentNotFound("x"), False, False, False, False),
    ],
)
def test_when_the_next_candidate_may_be_asked(
    error: FabricError, unsaid: bool, idempotent: bool, not_idempotent: bool, unsaid_after_words: bool
) -> None:
    def moves_on(declared: bool | None, *, has_streamed: bool = False) -> bool:
        return may_try_next(error, Capability(name="c", idempotent=declared), has_streamed=has_streamed)

    assert moves_on(UNSAID) is may_try_next(error, None, has_streamed=False) is unsaid
    assert moves_on(YES) is moves_on(YES, has_streamed=True) is idempotent
    assert moves_on(NO) is not_idempotent
    assert moves_on(UNSAID, has_streamed=True) is unsaid_after_words
