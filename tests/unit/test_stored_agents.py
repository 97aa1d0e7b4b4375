"""Agents that joined at run time: the mirror of the store, who may register what, leases, and the history of health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Health, Manifest, TrustTier
from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import (
    AgentNotFound,
    BadInput,
    Conflict,
    FabricError,
    Forbidden,
    RateLimited,
    StoreUnavailable,
)
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.core.registration import AgentChange, HealthCheck, IdReservation, Registration
from a2a_fabric.core.stores import HealthLog
from a2a_fabric.node.runtime_factory import resolve_runtime_kind
from a2a_fabric.outbound.guard import Guard, RegistrationGuards
from a2a_fabric.outbound.port import AddressRefused
from a2a_fabric.registry.health import HealthHistory, HealthPolicy, HealthTracker, Uptime, compute_uptime
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.registry.registration_policy import (
    TERMS_KEY,
    RegistrationPolicy,
    RegistrationSettings,
    RegistrationTerms,
    add_terms,
    read_terms,
)
from a2a_fabric.registry.registry import CatalogFilter, Registry
from a2a_fabric.registry.sources.store import LeaseExpirer, StoredAgents
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.sqlite.registrations import SqliteHealthLog, SqliteRegistrations
from a2a_fabric.testing import FakeClock
from tests.marks import requirement
from tests.unit.made import Listed, agent

ALICE = Principal(mode="psk", principal_id="alice", trust="local")
BOB = Principal(mode="psk", principal_id="bob", trust="local")
ORG = Principal(mode="psk", principal_id="carol", trust="org")
TOOL = agent("math.calculate", "eval", category="math")
WAIT_TIMEOUT = 20.0


def remote(agent_id: str, *capabilities: str | Capability, **about: Any) -> Manifest:
    about.setdefault("endpoint", {"uri": f"http://127.0.0.1:9/{agent_id}"})
    return agent(agent_id, *capabilities, **about)


class Unsteady(SqliteRegistrations):
    """A store that is away while the test says so."""

    is_away = False

    def _look(self) -> None:
        if self.is_away:
            raise StoreUnavailable("The store is away")

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: IdReservation | None = None
    ) -> Registration:
        self._look()
        return await super().register(manifest, owner, lease, reservation)

    async def get(self, agent_id: str) -> Registration | None:
        self._look()
        return await super().get(agent_id)

    async def read_changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        self._look()
        return await super().read_changes(after, limit)


class Place:
    """A store, and one or more nodes' worth of registry on it."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock(1000.0)
        store = MemoryStore(self.clock)
        self.board = store.notices
        self.store = Unsteady(store.writer, store.reader, self.clock)
        self.log = store.health
        self.settings = RegistrationSettings(**settings)

    def node(self, *files: Listed) -> View:
        return View(self, files)


class View:
    """What one node knows."""

    def __init__(self, place: Place, files: Sequence[Listed]) -> None:
        self.admission = RegistrationPolicy(place.settings, resolve_runtime_kind)
        self.stored = StoredAgents(place.store, place.board, self.admission.accepts)
        policy = HealthPolicy()
        self.registry = Registry([*files, self.stored], [TOOL], HealthTracker(policy, place.clock))
        self.history = HealthHistory(place.log, policy, "here", place.clock)
        reach = RegistrationGuards(place.settings.allow, private_for_local=place.settings.private)
        self.registrar = Registrar(place.store, self.stored, self.registry, self.admission, reach.check, self.history)
        self.leases = LeaseExpirer(place.store, self.stored, self.registry.health, place.clock)
        self.files = files

    async def load(self) -> View:
        sources: tuple[AgentSource, ...] = (*self.files, self.stored)
        for source in sources:
            await self.registry.load(source)
        return self

    @property
    def ids(self) -> list[str]:
        return [manifest.agent_id for manifest in self.registry.list_agents()]

    @asynccontextmanager
    async def watching(self) -> Any:
        changed = asyncio.Event()

        async def reload() -> None:
            await self.registry.load(self.stored)
            changed.set()

        task = asyncio.create_task(self.stored.watch(reload))
        try:
            yield changed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# the mirror


@requirement("001-37", "000-14")
async def test_a_registered_agent_is_found_at_once_by_id_and_capability() -> None:
    node = await Place().node().load()
    made = await node.registrar.register(remote("percy", "reason"), ALICE)
    assert (made.owner, made.manifest.agent_id) == ("psk:alice", "percy")
    assert node.registry.get_agent("percy").agent_id == "percy"
    assert [m.agent_id for m in node.registry.find_by_capability("reason")] == ["percy"]
    await node.registrar.remove("percy", ALICE)
    assert node.ids == []


@requirement("001-37")
async def test_what_registers_on_one_node_is_told_to_all_on_the_same_store() -> None:
    place = Place()
    here, there = await place.node().load(), await place.node().load()
    async with there.watching() as changed, asyncio.timeout(WAIT_TIMEOUT):
        for made, removed, expected in [
            (remote("percy", "reason"), None, ["percy"]),
            (remote("percy", "reason", description="new"), None, ["percy"]),
            (remote("abe"), None, ["percy", "abe"]),
            (None, "percy", ["abe"]),
        ]:
            place.clock.advance(1)
            changed.clear()
            if made is not None:
                await here.registrar.register(made, ALICE)
            else:
                await here.registrar.remove(str(removed), ALICE)
            await changed.wait()
            assert there.ids == here.ids == expected
    assert there.registry.catalog.get("abe") == here.registry.catalog.get("abe")


@requirement("001-11")
async def test_a_node_that_starts_later_knows_all_that_registered_before_in_that_order() -> None:
    place = Place()
    first = await place.node().load()
    for number in range(2500):
        place.clock.advance(1)
        await place.store.register(add_terms(remote(f"a{9999 - number}"), TERMS), "psk:alice", 60)
    await place.store.remove("a9998", "psk:alice")
    later = await place.node().load()
    await first.load()
    assert len(later.ids) == 2499
    assert later.ids[:3] == ["a9999", "a9997", "a9996"]
    assert first.ids == later.ids


TERMS = RegistrationTerms(trust="local", lease=60)


async def test_while_the_store_is_away_known_agents_stay_and_registering_says_so() -> None:
    place = Place()
    node = await place.node().load()
    await node.registrar.register(remote("percy", "reason"), ALICE)
    async with node.watching() as changed, asyncio.timeout(WAIT_TIMEOUT):
        place.store.is_away = True
        with pytest.raises(StoreUnavailable):
            await node.registrar.register(remote("abe"), ALICE)
        with pytest.raises(StoreUnavailable):
            await node.registrar.renew("percy", ALICE)
        changed.clear()
        place.board.post("agents")
        await changed.wait()
        assert node.ids == ["percy"]
        assert node.registry.errors == {"registered agents": "The store is away"}
        known = await node.registrar.find_registration("percy")
        assert known is not None
        assert known.owner == "psk:alice"
        changed.clear()
        place.store.is_away = False
        await changed.wait()
        assert node.registry.errors == {}


# files have the last word


@requirement("001-37")
async def test_no_caller_registers_under_an_id_that_a_file_or_a_tool_has() -> None:
    node = await Place().node(Listed("agents.yaml", [agent("percy", "reason")])).load()
    for taken in ("percy", "math.calculate"):
        with pytest.raises(Conflict, match="declared in this node's configuration"):
            await node.registrar.register(remote(taken), ALICE)
    for refused in (node.registrar.remove("percy", ALICE), node.registrar.renew("percy", ALICE)):
        with pytest.raises(Conflict):
            await refused


async def test_a_file_that_declares_a_registered_id_hides_the_registration_and_never_changes_it() -> None:
    place = Place()
    file = Listed("agents.yaml")
    node = await place.node(file).load()
    await node.registrar.register(remote("percy", "reason", description="registered"), ALICE)
    before = await place.store.get("percy")
    file.held = [agent("percy", "reason", description="declared")]
    await node.load()
    assert node.registry.get_agent("percy").description == "declared"
    assert await node.registrar.find_registration("percy") is None
    assert node.registrar.find_owner("percy") is None
    assert await place.store.get("percy") == before
    file.held = []
    await node.load()
    assert node.registry.get_agent("percy").description == "registered"


# whose it is


async def test_only_its_owner_changes_renews_or_removes_an_agent() -> None:
    node = await Place().node().load()
    await node.registrar.register(remote("percy", "reason"), ALICE)
    for refused in (
        node.registrar.register(remote("percy", "steal"), BOB),
        node.registrar.renew("percy", BOB),
        node.registrar.remove("percy", BOB),
    ):
        with pytest.raises(Forbidden, match="another owner"):
            await refused
    assert [c.name for c in node.registry.get_agent("percy").capabilities] == ["reason"]


async def test_unknown_agents_are_neither_renewed_nor_removed() -> None:
    node = await Place().node().load()
    await node.registrar.register(remote("percy"), ALICE)
    for refused in (node.registrar.renew("percey", ALICE), node.registrar.remove("percey", ALICE)):
        with pytest.raises(AgentNotFound, match="nearest: percy"):
            await refused


async def test_one_caller_registers_no_more_than_the_limit_but_may_replace_its_own() -> None:
    node = await Place(max_per_owner=2).node().load()
    for name in ("a", "b", "a"):
        await node.registrar.register(remote(name), ALICE)
    with pytest.raises(RateLimited):
        await node.registrar.register(remote("c"), ALICE)
    await node.registrar.register(remote("c"), BOB)


# who may register what


def caller(trust: TrustTier, *scopes: str, cap: tuple[str, ...] | None = None) -> Principal:
    return Principal(mode="psk", principal_id="x", trust=trust, scp=scopes or None, cap=cap)


@pytest.mark.parametrize(
    ("principal", "tier", "may"),
    [
        (caller("local"), "local", True),
        (caller("local"), "org", True),
        (caller("org"), "org", True),
        (caller("org"), "public", True),
        (caller("org"), "local", False),
        (caller("public"), "public", False),
        (caller("public", "register"), "public", True),
        (caller("public", "register"), "org", False),
        (caller("local", "*"), "org", True),
        (caller("local", "register:percy"), "org", True),
        (caller("local", "register:*"), "org", True),
        (caller("local", "register:other"), "org", False),
        (caller("local", "agent:*", "capability:reason"), "org", False),
        (caller("local", "*", cap=("capability:reason",)), "org", False),
        (Principal(mode="none", principal_id="anonymous", trust="public"), "public", False),
    ],
)
def test_trust_and_scopes_decide_who_registers(principal: Principal, tier: TrustTier, may: bool) -> None:
    admission = RegistrationPolicy(RegistrationSettings(), resolve_runtime_kind)
    manifest = remote("percy", "reason", trust_tier=tier)
    if may:
        admission.check(manifest, principal)
    else:
        with pytest.raises(Forbidden):
            admission.check(manifest, principal)


PROGRAMS = [
    {"endpoint": {"command": ["sh", "-c", "true"]}},
    {"endpoint": {"command": "true"}, "runtime": "mcp"},
    {"endpoint": {"command": ["true"], "uri": "http://127.0.0.1:9"}, "runtime": "mcp"},
    {"endpoint": {"command": ["true"], "uri": "http://127.0.0.1:9"}},
    {"endpoint": {"uri": "python:os:system"}},
    {"endpoint": {"uri": "http://127.0.0.1:9"}, "runtime": "python"},
    {"endpoint": {"uri": "http://127.0.0.1:9"}, "runtime": "process"},
    {"endpoint": {"uri": "http://127.0.0.1:9"}, "runtime": "subprocess"},
    {"endpoint": {"uri": "http://127.0.0.1:9"}, "runtime": "local"},
    {"endpoint": {"uri": "http://127.0.0.1:9", "headers": {"x": "env:FABRIC_PSK"}}},
    {"endpoint": {"uri": "http://127.0.0.1:9", "request": {"deep": ["env:HOME"]}}},
]


@pytest.mark.parametrize("about", PROGRAMS)
async def test_what_would_run_here_or_read_our_environment_is_not_registered(about: dict[str, Any]) -> None:
    node = await Place().node().load()
    with pytest.raises(Forbidden):
        await node.registrar.register(remote("percy", **about), ALICE)
    assert node.ids == []


@pytest.mark.parametrize("about", PROGRAMS[:5])
async def test_programs_need_both_a_trusted_caller_and_the_operators_word(about: dict[str, Any]) -> None:
    place = Place(programs=True)
    node = await place.node().load()
    with pytest.raises(Forbidden):
        await node.registrar.register(remote("percy", **about), ORG)
    await node.registrar.register(remote("percy", **about), ALICE)
    assert node.ids == ["percy"]
    place.settings = RegistrationSettings()
    assert (await place.node().load()).ids == []  # a node of the same store that runs no programs


@pytest.mark.parametrize(
    "about",
    [
        {"endpoint": {}},
        {"endpoint": {"uri": ""}},
        {"endpoint": {"uri": "ftp://127.0.0.1/"}},
        {"endpoint": {"uri": "file:///etc/passwd"}, "runtime": "http"},
        {"endpoint": {"uri": "http://user:word@127.0.0.1/"}},
        {"category": "io"},
        {"runtime": "tool"},
        {"description": "x" * 300_000},
        {"capabilities": ("reason", "Reason")},
        {"capabilities": tuple(f"c{n}" for n in range(1001))},
    ],
)
async def test_manifests_that_make_no_sense_are_bad_input(about: dict[str, Any]) -> None:
    node = await Place(programs="category" in about or about.get("runtime") == "tool").node().load()
    with pytest.raises(BadInput):
        await node.registrar.register(remote("percy", *about.pop("capabilities", ()), **about), ALICE)


async def test_the_terms_are_ours_to_write() -> None:
    node = await Place().node().load()
    forged = {
        TERMS_KEY: {"trust": "local", "lease": 1e9, "checks_renew": True, "owner": "psk:psk", "by_operator": True}
    }
    await node.registrar.register(remote("percy", metadata=forged, endpoint={"uri": "http://1.1.1.1/"}), ORG, 60)
    assert read_terms(node.registry.get_agent("percy")) == RegistrationTerms(
        trust="org", lease=60, owner=owner_from_principal(ORG)
    )


def test_terms_that_cannot_be_read_are_a_strangers() -> None:
    assert read_terms(remote("percy")) is None
    assert read_terms(remote("percy", metadata={TERMS_KEY: "nonsense"})) == RegistrationTerms(trust="public", lease=0)


# where it may be


@pytest.mark.parametrize(
    ("host", "trust", "may"),
    [
        ("1.1.1.1", "org", True),
        ("127.0.0.1", "local", True),
        ("10.1.2.3", "local", True),
        ("[::1]", "local", True),
        ("localhost", "local", True),
        ("127.0.0.1", "org", False),
        ("2130706433", "org", False),
        ("localhost", "public", False),
        ("192.168.1.1", "org", False),
        ("169.254.169.254", "local", False),
        ("169.254.1.1", "local", False),
        ("10.9.9.9", "org", True),
    ],
)
async def test_how_far_an_agents_address_may_lie_depends_on_who_registers_it(
    host: str, trust: TrustTier, may: bool
) -> None:
    reach = RegistrationGuards(("10.9.9.0/24",), private_for_local=True)
    if may:
        await reach.check(f"http://{host}:8080/", trust)
        return
    with pytest.raises(Forbidden, match=r"registration\.allow"):
        await reach.check(f"http://{host}:8080/", trust)


async def test_private_addresses_can_be_closed_to_everybody() -> None:
    with pytest.raises(Forbidden):
        await RegistrationGuards((), private_for_local=False).check("http://127.0.0.1:9/", "local")


async def test_a_name_that_leads_elsewhere_later_is_refused_then() -> None:
    answers = [["1.1.1.1"], ["127.0.0.1"]]

    async def rebinding(host: str, port: int) -> list[str]:
        return answers.pop(0)

    guard = Guard(resolve=rebinding)
    assert await guard.resolve_addresses("evil.example", 80) == ["1.1.1.1"]
    with pytest.raises(AddressRefused):
        await guard.resolve_addresses("evil.example", 80)


# leases


@requirement("001-37")
async def test_a_named_lease_that_is_not_renewed_runs_out_though_the_agent_passes_its_checks() -> None:
    place = Place()
    node = await place.node().load()
    await node.registrar.register(remote("percy"), ALICE, lease=10)
    place.clock.advance(6)
    node.registry.health.record_success("percy")
    await node.registrar.renew("percy", ALICE)
    place.clock.advance(9)
    node.registry.health.record_success("percy")
    await node.leases.renew_and_expire()
    await node.load()
    assert node.ids == ["percy"]
    place.clock.advance(2)
    await node.leases.renew_and_expire()
    await node.load()
    assert node.ids == []


async def test_an_agent_that_named_no_lease_stays_while_it_is_seen_and_goes_a_lease_after_it_was_last() -> None:
    place = Place(lease_seconds=100)
    node, other = await place.node().load(), await place.node().load()
    await node.registrar.register(remote("percy"), ALICE)
    await other.load()
    for _ in range(10):
        place.clock.advance(60)
        node.registry.health.record_success("percy")
        await node.leases.renew_and_expire()
        await other.leases.renew_and_expire()  # it saw nothing, and takes nothing away
    assert await place.store.get("percy") is not None
    node.registry.health.set_status("percy", "offline", "gone")
    place.clock.advance(101)
    await node.leases.renew_and_expire()
    assert await place.store.get("percy") is None


@requirement("001-11")
async def test_an_agent_whose_time_ran_out_while_no_node_was_there_may_show_itself_before_it_is_taken_out() -> None:
    place = Place(lease_seconds=100)
    before = await place.node().load()
    for agent_id in ("late", "dead"):
        await before.registrar.register(remote(agent_id), ALICE)
    place.clock.advance(100_000)  # all was off over the week-end
    node = await place.node().load()
    assert node.ids == ["dead", "late"]
    for agent_id in node.ids:
        node.registry.health.set_status(agent_id, "offline", "not started yet")
    await node.leases.renew_and_expire()
    place.clock.advance(300)
    node.registry.health.record_success("late")
    await node.leases.renew_and_expire()
    assert (await node.load()).ids == ["dead", "late"]
    place.clock.advance(301)
    node.registry.health.record_success("late")
    await node.leases.renew_and_expire()
    assert (await node.load()).ids == ["late"]


async def test_what_runs_out_while_the_node_is_there_gets_no_second_chance() -> None:
    place = Place(lease_seconds=100)
    node = await place.node().load()
    await node.registrar.register(remote("percy"), ALICE)
    place.clock.advance(101)
    await node.leases.renew_and_expire()
    assert (await node.load()).ids == []


async def test_renewing_with_another_lease_counts_from_now_on() -> None:
    place = Place()
    node = await place.node().load()
    await node.registrar.register(remote("percy"), ALICE, lease=10)
    renewed = await node.registrar.renew("percy", ALICE, 500)
    assert renewed.lease_until == place.clock() + 500
    for bad in (0.5, -1, float("nan"), 1e12):
        with pytest.raises(BadInput, match="lease_seconds"):
            await node.registrar.renew("percy", ALICE, bad)
        with pytest.raises(BadInput, match="lease_seconds"):
            await node.registrar.register(remote("other"), ALICE, bad)


# the history of health


async def states(log: HealthLog, agent_id: str = "percy") -> list[tuple[float, str]]:
    return sorted((check.checked_at, check.status) for check in await log.read(agent_id, limit=1_000_000))


@requirement("001-11")
async def test_changes_of_health_are_kept_at_once_and_sameness_now_and_then() -> None:
    clock, log = FakeClock(1000.0), MemoryStore().health
    history = HealthHistory(log, HealthPolicy(history_interval=60), "here", clock)
    for seconds, status in [(0, "online"), (30, "online"), (31, "degraded"), (32, "online"), (91, "online"),
                            (93, "online"), (94, "offline")]:  # fmt: skip
        clock.advance(1000.0 + seconds - clock())
        history.record("percy", Health(status=status), 0.01)  # type: ignore[arg-type]  # one of them
    await history.write()
    assert await states(log) == [
        (1000, "online"),
        (1031, "degraded"),
        (1032, "online"),
        (1093, "online"),
        (1094, "offline"),
    ]


async def test_a_look_told_twice_is_one_check_with_its_latency() -> None:
    clock, log = FakeClock(1000.0), MemoryStore().health
    history = HealthHistory(log, HealthPolicy(), "here", clock)
    book = HealthTracker(HealthPolicy(), clock)
    book.add_listener(history.record)
    book.record_success("percy")
    history.record("percy", book.get("percy"), 0.25)
    _, checks = await history.read("percy", 60, 10)
    assert [(check.status, check.latency, check.node_id) for check in checks] == [("online", 0.25, "here")]


class Slow(SqliteHealthLog):
    """Refuses until told otherwise; remembers how much came at once."""

    is_away = True

    def __init__(self) -> None:
        store = MemoryStore()
        super().__init__(store.writer, store.reader)
        self.batches: list[int] = []

    async def append(self, checks: Sequence[HealthCheck]) -> None:
        if self.is_away:
            raise StoreUnavailable("The store is away")
        self.batches.append(len(checks))
        await super().append(checks)


async def test_while_the_store_is_away_the_newest_checks_wait_in_bounded_memory_and_are_written_in_batches() -> None:
    clock, log = FakeClock(0.0), Slow()
    history = HealthHistory(log, HealthPolicy(history_interval=0), "here", clock)
    for _ in range(25_000):
        clock.advance(1)
        history.record("percy", Health(status="online"))
    with pytest.raises(StoreUnavailable):
        await history.write()
    log.is_away = False
    await history.aclose()
    assert log.batches == [500] * 40
    written = await states(log)
    assert (written[0][0], written[-1][0]) == (5001, 25_000)


async def test_old_checks_are_forgotten() -> None:
    clock, store = FakeClock(1e6), MemoryStore()
    history = HealthHistory(store.health, HealthPolicy(history_days=1, history_interval=0), "here", clock)
    history.record("percy", Health(status="online"))
    clock.advance(86_000)
    history.record("percy", Health(status="online"))
    writing = asyncio.create_task(history.run())
    clock.advance(1000)
    async with asyncio.timeout(WAIT_TIMEOUT):
        while len(await states(store.health)) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert await states(store.health) == [(1e6 + 86_000, "online")]


def check(at: float, status: Any, node: str = "a") -> HealthCheck:
    return HealthCheck(agent_id="percy", status=status, checked_at=at, node_id=node)


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([], Uptime()),
        ([check(0, "online")], Uptime(observed=100, up=100)),
        ([check(0, "online"), check(25, "offline"), check(75, "degraded")], Uptime(observed=100, up=50)),
        ([check(0, "unknown"), check(50, "offline")], Uptime(observed=50, up=0)),
        ([check(0, "online", "a"), check(0, "offline", "b")], Uptime(observed=200, up=100)),
        ([check(-900, "online"), check(0, "offline")], Uptime(observed=250, up=150)),
    ],
)
def test_uptime_is_counted_over_the_time_that_was_checked(checks: list[HealthCheck], expected: Uptime) -> None:
    assert compute_uptime(checks, now=100, max_gap=150) == expected
    assert compute_uptime(checks[::-1], now=100, max_gap=150) == expected


statuses = st.sampled_from(["online", "offline", "degraded", "unknown"])
looks = st.lists(st.builds(check, st.floats(0, 1000), statuses, st.sampled_from("ab")), max_size=30)


@given(looks, st.floats(1, 500))
def test_uptime_is_never_more_than_what_was_observed(checks: list[HealthCheck], longest: float) -> None:
    found = compute_uptime(checks, now=1000, max_gap=longest)
    assert 0 <= found.up <= found.observed + 1e-6
    assert found.observed <= 2 * 1000 + 1e-6
    assert found.ratio is None or 0 <= found.ratio <= 1 + 1e-9


# every field can be asked for


@requirement("001-45")
async def test_agents_are_listed_by_every_field_of_their_manifest() -> None:
    node = await Place().node(Listed("agents.yaml", [agent("other", "rest")])).load()
    full = remote(
        "percy", Capability(name="reason", modalities=("text", "image"), streaming=True, max_timeout_ms=5000),
        node_id="node-1", delegate_id="delegate-1", cog_id="cog-1", realm="master", display_name="Percy the Thinker",
        version="1.2.3", description="thinks", runtime="http", trust_tier="public", tags=("slow",), audience="work",
        endpoint={"transport": "https", "uri": "http://127.0.0.1:9/"},
    )  # fmt: skip
    await node.registrar.register(full, ALICE)
    every: dict[str, Any] = {
        "capability": "Reason", "tag": "slow", "status": "unknown", "trust_tier": "public", "audience": "work",
        "runtime": "http", "transport": "https", "node_id": "node-1", "version": "1.2.3", "realm": "master",
        "cog_id": "cog-1", "delegate_id": "delegate-1", "query": "THINKER percy",
    }  # fmt: skip
    for name, value in every.items():
        found = [m.agent_id for m in node.registry.list_agents(CatalogFilter(**{name: value}))]
        assert "percy" in found, name
        assert name == "status" or found == ["percy"], name
        assert node.registry.list_agents(replace(CatalogFilter(**{name: value}), query="nobody")) == []


def test_whatever_kind_of_manifest_comes_the_mirror_never_breaks() -> None:
    admission = RegistrationPolicy(RegistrationSettings(), resolve_runtime_kind)
    for endpoint in ({}, {"uri": 5}, {"uri": None}, {"command": None}, {"uri": ["x"]}):
        manifest = add_terms(Manifest(agent_id="odd", endpoint=endpoint), TERMS)
        assert not admission.accepts(manifest)
        with pytest.raises(FabricError):
            admission.check(manifest, ALICE)
