from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import AgentNotFound, ConfigError
from a2a_fabric.core.routing import RoutingPolicy
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.health import HealthPolicy, HealthTracker
from a2a_fabric.registry.planner import Planner
from a2a_fabric.registry.registry import CatalogFilter, Registry
from tests.marks import requirement
from tests.unit.made import LOCAL, Listed, agent, until

TOOL = agent("math.calculate", "eval", category="math", tags=("text",))


async def filled(*sources: Listed) -> Registry:
    registry = Registry(sources, [TOOL], HealthTracker(HealthPolicy()))
    for source in sources:
        await registry.load(source)
    return registry


async def sample() -> Registry:
    return await filled(
        Listed(
            "file",
            [
                agent("percy", "reason", "plan", tags=("text",), trust_tier="org"),
                agent("coder", "code", "plan", tags=("text", "code"), trust_tier="local"),
            ],
        )
    )


def ids(manifests: Iterable[Manifest]) -> list[str]:
    return [m.agent_id for m in manifests]


@requirement("001-37", "001-09")
async def test_agents_are_listed_by_capability_tag_status_and_trust() -> None:
    registry = await sample()
    registry.update_health("coder", "online")
    assert ids(registry.list_agents()) == ["percy", "coder"]
    for wanted, found in [
        (CatalogFilter(capability="PLAN"), ["percy", "coder"]),
        (CatalogFilter(capability="code"), ["coder"]),
        (CatalogFilter(capability="plan", tag="code"), ["coder"]),
        (CatalogFilter(tag="text"), ["percy", "coder"]),
        (CatalogFilter(tag="none"), []),
        (CatalogFilter(status="online"), ["coder"]),
        (CatalogFilter(status="unknown", trust_tier="org"), ["percy"]),
        (CatalogFilter(trust_tier="public"), []),
    ]:
        assert ids(registry.list_agents(wanted)) == found


@requirement("001-37")
async def test_one_agent_is_got_by_id_or_the_nearest_is_named() -> None:
    registry = await sample()
    assert registry.get_agent("percy").agent_id == "percy"
    with pytest.raises(AgentNotFound, match="nearest: percy"):
        registry.get_agent("percey")
    with pytest.raises(AgentNotFound):
        registry.get_agent("math.calculate")


@requirement("001-37")
async def test_an_agent_registered_at_run_time_is_found_at_once_and_wins_over_the_file() -> None:
    registry = await sample()
    swaps: list[Catalog] = []
    registry.add_listener(swaps.append)
    registry.register_agent(agent("vision", "draw"))
    registry.register_agent(agent("percy", "reason", description="the new one"))
    assert ids(registry.find_by_capability("draw")) == ["vision"]
    assert registry.get_agent("percy").description == "the new one"
    assert swaps[-1] is registry.catalog


@requirement("001-37", "001-47")
async def test_health_is_updated_for_known_agents_only() -> None:
    registry = await sample()
    registry.update_health("percy", "offline", "maintenance")
    assert registry.health.get("percy").error == "maintenance"
    with pytest.raises(AgentNotFound):
        registry.update_health("nobody", "online")


@requirement("001-37")
async def test_agents_are_found_by_capability_in_order_of_registration() -> None:
    registry = await sample()
    assert ids(registry.find_by_capability("Plan")) == ["percy", "coder"]
    assert ids(registry.find_by_capability("eval")) == []


@requirement("001-09")
async def test_a_broken_source_keeps_its_last_good_agents_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    source = Listed("agents.yaml", [agent("percy", "reason")])
    registry = await filled(source, Listed("other", [agent("coder", "code")]))
    before = registry.catalog
    source.held = ConfigError("agents.yaml:3: unknown key 'colour'")
    with caplog.at_level(logging.ERROR):
        await registry.load(source)
    assert registry.catalog is before
    assert registry.errors == {"agents.yaml": "agents.yaml:3: unknown key 'colour'"}
    assert "unknown key 'colour'" in caplog.text
    source.held = [agent("percy", "reason"), agent("new", "x")]
    await registry.load(source)
    assert registry.errors == {}
    assert ids(registry.catalog.agents) == ["percy", "new", "coder"]


async def test_a_source_that_says_the_same_again_changes_nothing() -> None:
    source = Listed("file", [agent("percy", "reason")])
    registry = await filled(source)
    swaps: list[Catalog] = []
    registry.add_listener(swaps.append)
    source.held = [agent("percy", "reason")]
    await registry.load(source)
    assert swaps == []


async def test_who_leaves_is_forgotten_with_its_health() -> None:
    source = Listed("file", [agent("percy", "reason")])
    registry = await filled(source)
    registry.update_health("percy", "offline")
    source.held = []
    await registry.load(source)
    assert ids(registry.catalog.agents) == []
    assert registry.health.get("percy").status == "unknown"


async def test_what_agents_publish_completes_what_is_declared_in_one_swap() -> None:
    first, second = agent("a"), agent("b")
    registry = await filled(Listed("file", [first, second]))
    swaps: list[Catalog] = []
    registry.add_listener(swaps.append)
    registry.apply_description(first, agent("a", "plan"))
    registry.apply_description(second, agent("b", "plan"))
    await until(lambda: swaps)
    assert len(swaps) == 1
    assert ids(registry.find_by_capability("plan")) == ["a", "b"]


async def test_an_agent_cannot_publish_itself_into_another_place_or_trust() -> None:
    declared = agent("a", endpoint={"uri": "http://a", "token": "env:T"}, trust_tier="public", node_id="n1")
    registry = await filled(Listed("file", [declared]))
    registry.apply_description(
        declared,
        agent("percy", "plan", endpoint={"uri": "http://a", "token": "secret"}, trust_tier="local", description="me"),
    )
    await until(lambda: registry.find_by_capability("plan"))
    (found,) = registry.catalog.agents
    assert (found.agent_id, found.endpoint, found.trust_tier, found.node_id) == (
        "a", declared.endpoint, "public", "n1"
    )  # fmt: skip
    assert found.description == "me"


async def test_what_was_published_is_dropped_when_the_declaration_changes() -> None:
    declared = agent("a")
    source = Listed("file", [declared])
    registry = await filled(source)
    registry.apply_description(declared, agent("a", "plan"))
    await until(lambda: registry.find_by_capability("plan"))
    source.held = [agent("a", endpoint={"uri": "elsewhere"})]
    await registry.load(source)
    assert registry.find_by_capability("plan") == ()


@requirement("001-37")
async def test_a_runtime_that_turned_out_holds_while_the_agent_stays_where_it_is() -> None:
    where = {"uri": "http://127.0.0.1:9001"}
    source = Listed("file", [agent("a", endpoint=where), agent("b", endpoint={"command": ["b"]})])
    registry = await filled(source)
    assert [registry.find_runtime_kind(each) for each in registry.list_agents()] == [None, "process"]
    registry.set_detected_runtime("a", "mcp")
    registry.set_detected_runtime("gone", "mcp")
    assert ids(registry.list_agents(CatalogFilter(runtime="mcp"))) == ["a"]
    source.held = [agent("a", endpoint=where, description="new words")]
    await registry.load(source)
    assert registry.find_runtime_kind(registry.get_agent("a")) == "mcp"
    source.held = [agent("a", endpoint={"uri": "http://127.0.0.1:9002"})]
    await registry.load(source)
    assert registry.find_runtime_kind(registry.get_agent("a")) is None
    source.held = [agent("a", endpoint=where, runtime="http")]
    await registry.load(source)
    assert registry.find_runtime_kind(registry.get_agent("a")) == "http"


@requirement("001-09", "001-47")
async def test_plans_follow_the_catalog_and_the_health_of_agents() -> None:
    source = Listed("file", [agent("percy", "reason")])
    registry = await filled(source)
    planner = Planner(registry, RoutingPolicy())
    request = ("percy", "reason", LOCAL, False)
    assert planner(*request) is planner(*request)
    assert ids(c.manifest for c in planner(*request).candidates) == ["percy"]
    source.held = [agent("percy", "reason", fallbacks=("backup",)), agent("backup", "reason")]
    await registry.load(source)
    assert ids(c.manifest for c in planner(*request).candidates) == ["percy", "backup"]
    registry.update_health("percy", "offline")
    assert ids(c.manifest for c in planner(*request).candidates) == ["backup", "percy"]


async def test_plans_of_one_principal_are_not_shown_to_another() -> None:
    percy = agent("percy", "reason", fallbacks=("backup",))
    registry = await filled(Listed("file", [percy, agent("backup", "reason")]))
    planner = Planner(registry, RoutingPolicy())
    wide = ("percy", "reason", LOCAL, False)
    narrow = ("percy", "reason", replace(LOCAL, scp=("agent:percy",)), False)
    assert ids(c.manifest for c in planner(*wide).candidates) == ["percy", "backup"]
    assert ids(c.manifest for c in planner(*narrow).candidates) == ["percy"]


async def test_names_too_long_for_any_capability_are_not_remembered() -> None:
    """An agent that has not said what it offers is asked for anything; the caller must not fill our memory with it."""
    registry = await filled(Listed("file", [agent("percy")]))
    planner = Planner(registry, RoutingPolicy())
    request = ("percy", "x" * 257, LOCAL, False)
    assert planner(*request) is not planner(*request)
    assert planner(*request) == planner(*request)


async def test_a_misspelt_agent_is_answered_with_the_nearest() -> None:
    planner = Planner(await sample(), RoutingPolicy())
    with pytest.raises(AgentNotFound, match="nearest: percy"):
        planner("percey", "reason", LOCAL, False)


async def test_what_an_agent_offers_is_asked_again_and_a_change_reaches_the_catalog() -> None:
    declared = agent("percy")
    source = Listed("file", [declared])
    registry = Registry([source], (), HealthTracker(HealthPolicy()))
    await registry.load(source)
    registry.apply_description(declared, replace(declared, capabilities=(Capability(name="reason"),)))
    await until(lambda: registry.catalog.get("percy") is not declared)
    completed = registry.get_agent("percy")
    assert registry.find_declaration(completed) is declared
    registry.apply_description(declared, replace(declared, capabilities=(Capability(name="plan"),)))
    await until(lambda: registry.find_by_capability("plan"))
    assert not registry.find_by_capability("reason")
