"""Cards and manifests describe the same agent, and the published schemas accept what the node reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from a2a_fabric.core.federation import AgentOrigin, WordRouting, merge_word_routing
from a2a_fabric.federation.card import (
    Card,
    build_capabilities,
    card_from_manifest,
    find_path_problem,
    manifest_from_card,
)
from a2a_fabric.federation.registry_file import (
    RegistryDocument,
    RegistryEntry,
    apply_entry,
    migrate,
    word_routing_from,
)
from tests.marks import requirement

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
LOCAL = AgentOrigin(location="local")

FULL_CARD: dict[str, Any] = {
    "name": "basil",
    "version": "1.2.3",
    "description": "Cooks.",
    "displayName": "Basil",
    "role": "Sous Chef",
    "personality": "Warm and brief.",
    "signals": ["pinterest.com", "recipe"],
    "skills": [
        {"id": "parse-recipe", "name": "Parse", "description": "Reads a recipe.", "triggers": ["this recipe"]},
        {"id": "suggest-meal", "description": "Suggests a meal."},
    ],
    "capabilities": [
        {"name": "parse_recipe", "description": "Reads.", "inputSchema": {"type": "object", "required": ["url"]}},
        {"name": "count_calories", "description": "Counts."},
    ],
    "context": "personal",
    "invocation": {"type": "claude-subprocess", "systemPrompt": "./CLAUDE.md", "knowledgePath": "./knowledge"},
    "provider": {"name": "Kitchen", "contact": "kitchen@example.com"},
    "dependencies": {
        "mcps": [{"name": "notion", "required": True, "capabilities": ["parse-recipe"]}],
        "agents": ["calendar"],
        "knowledge": ["knowledge/taste.md"],
    },
    "observability": {"traceEnabled": True, "spanName": "{agent}.{operation}", "attributes": {"team": "kitchen"}},
    "coordination": {
        "canDelegate": False,
        "acceptsSubtasks": True,
        "rules": [{"condition": "a party", "action": "ask calendar", "scope": "global"}],
    },
    "metadata": {"author": "Ada", "created": "2026-01-01", "tags": ["food"]},
}


def read(value: Any) -> Card:
    return msgspec.convert(value, Card)


def load_schema(name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


def test_every_field_of_a_card_reaches_the_manifest() -> None:
    manifest = manifest_from_card(read(FULL_CARD), "agents/basil", LOCAL)
    assert (manifest.agent_id, manifest.version, manifest.role) == ("basil", "1.2.3", "Sous Chef")
    assert (manifest.display_name, manifest.personality, manifest.audience) == ("Basil", "Warm and brief.", "personal")
    assert manifest.signals == ("pinterest.com", "recipe")
    assert manifest.runtime == "claude"
    assert manifest.endpoint == {"path": "agents/basil", "instructions": "./CLAUDE.md", "knowledge": "./knowledge"}
    assert manifest.tags == ("food",)
    assert manifest.metadata == {"author": "Ada", "created": "2026-01-01"}
    assert manifest.provider is not None
    assert manifest.provider.contact == "kitchen@example.com"
    assert manifest.dependencies is not None
    assert manifest.dependencies.mcps[0].required
    assert manifest.observability is not None
    assert manifest.observability.attributes == {"team": "kitchen"}
    assert manifest.coordination is not None
    assert (manifest.coordination.can_delegate, manifest.coordination.rules[0].scope) == (False, "global")


def test_a_skill_and_a_legacy_capability_of_one_name_are_one_capability() -> None:
    card = read(FULL_CARD)
    capabilities = build_capabilities(card.skills, card.capabilities)
    assert [each.name for each in capabilities] == ["parse-recipe", "suggest-meal", "count_calories"]
    assert capabilities[0].triggers == ("this recipe",)
    assert capabilities[0].input_schema == {"type": "object", "required": ["url"]}


def test_a_card_made_from_a_manifest_makes_the_same_manifest() -> None:
    manifest = manifest_from_card(read(FULL_CARD), "x", LOCAL)
    again = card_from_manifest(manifest)
    assert manifest_from_card(
        msgspec.structs.replace(again, invocation=read(FULL_CARD).invocation), "x", LOCAL
    ).capabilities == tuple(
        msgspec.structs.replace(each, name=each.name.replace("_", "-"), description=each.description)
        for each in manifest.capabilities
    )
    assert (again.name, again.signals, again.coordination) == ("basil", manifest.signals, manifest.coordination)


@requirement("003-09")
def test_the_published_schema_of_cards_accepts_what_the_node_reads_and_nothing_else() -> None:
    schema = load_schema("agent")
    assert schema.is_valid(FULL_CARD)
    assert schema.is_valid({"name": "a", "version": "0.1.0", "description": "x"})
    mistakes: list[dict[str, Any]] = [
        {"name": "Has Spaces"},
        {"version": "1"},
        {"description": ""},
        {"context": "everyone"},
        {"signal": []},
        {"skills": [{"id": "Not Kebab", "description": "x"}]},
        {"skills": [{"id": "a"}]},
        {"invocation": {"type": "telepathy"}},
    ]
    for wrong in mistakes:
        assert not schema.is_valid({**FULL_CARD, **wrong}), wrong
        with pytest.raises(msgspec.ValidationError):
            read({**FULL_CARD, **wrong})


@pytest.mark.parametrize(
    ("path", "is_fine"),
    [
        ("./CLAUDE.md", True),
        ("knowledge/a..b.md", True),
        ("/etc/passwd", False),
        ("~/x", False),
        ("../x", False),
        ("a/../../x", False),
        ("C:\\x", False),
        ("a\\..\\..\\x", False),
        ("a\nb", False),
    ],
)
def test_a_path_stays_inside_the_agents_folder(path: str, is_fine: bool) -> None:
    assert (find_path_problem(path) is None) is is_fine


REGISTRY: dict[str, Any] = {
    "version": "3.0",
    "orchestrator": "ada",
    "agents": {
        "basil": {
            "location": {"type": "local", "path": "./agents/basil"},
            "context": "personal",
            "displayName": "Basil",
            "role": "Chef",
            "description": "Cooks.",
            "signals": ["recipe"],
            "skills": [{"id": "parse-recipe", "description": "Reads."}],
            "mcps": ["notion", {"name": "calendar", "required": True}],
        },
        "wise": {
            "location": {
                "type": "git",
                "repo": "github.com/user/wise",
                "branch": "main",
                "localPath": "./agents/external/wise",
            },
            "skills": [{"id": "advise", "description": "Advises."}],
        },
        "far": {"location": {"type": "remote", "url": "https://far.example/agent.json"}},
    },
    "skillIndex": {"parse-recipe": "basil"},
    "routing": {"defaultAgent": None, "switchCommands": ["talk to"], "multiAgentTriggers": ["and also"]},
}


@requirement("003-37")
def test_the_published_schema_of_registries_accepts_what_the_node_reads_and_nothing_else() -> None:
    schema = load_schema("registry")
    assert schema.is_valid(REGISTRY)
    mistakes: list[dict[str, Any]] = [
        {"version": "4.0"},
        {"agents": {"a": {"location": {"type": "moon"}}}},
        {"agents": {"a": {}}},
        {"agents": {"a": {"location": {"type": "git", "repo": "x", "branch": "--upload-pack=x"}}}},
        {"routing": {"defaultAgents": None}},
    ]
    for wrong in mistakes:
        assert not schema.is_valid({**REGISTRY, **wrong}), wrong
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**REGISTRY, **wrong}, RegistryDocument)


def test_words_choose_by_the_skill_index_and_by_the_skills_that_it_does_not_name() -> None:
    words = word_routing_from(msgspec.convert(REGISTRY, RegistryDocument))
    assert words.skill_index == {"parse-recipe": "basil", "advise": "wise"}
    assert (words.orchestrator, words.switch_commands) == ("ada", ("talk to",))
    other = WordRouting(
        default_agent="x", switch_commands=("talk to", "ask"), skill_index={"advise": "other", "b": "c"}
    )
    merged = merge_word_routing([words, other])
    assert merged.skill_index == {"parse-recipe": "basil", "advise": "wise", "b": "c"}
    assert (merged.default_agent, merged.switch_commands) == ("x", ("talk to", "ask"))


def test_what_a_registry_says_of_an_agent_wins_over_its_card() -> None:
    manifest = manifest_from_card(read(FULL_CARD), "x", LOCAL)
    entry = msgspec.convert(
        {
            "location": {"type": "local", "path": "x"},
            "role": "Head Chef",
            "context": "shared",
            "skills": [{"id": "parse-recipe", "description": "Reads recipes.", "triggers": ["cook this"]}],
            "mcps": ["notion", "mail"],
        },
        RegistryEntry,
    )
    changed = apply_entry(manifest, entry)
    assert (changed.role, changed.audience, changed.display_name) == ("Head Chef", "shared", "Basil")
    assert changed.capabilities[0].triggers == ("cook this",)
    assert changed.capabilities[0].input_schema == manifest.capabilities[0].input_schema
    assert len(changed.capabilities) == 3
    assert changed.dependencies is not None
    assert [(each.name, each.required) for each in changed.dependencies.mcps] == [("notion", True), ("mail", False)]


@pytest.mark.parametrize(
    "agents",
    [
        [{"name": "basil", "path": "./agents/basil", "description": "Cooks."}, {"name": "wise"}],
        {"basil": "./agents/basil", "wise": {"signals": ["advice"], "personality": "Calm."}},
    ],
)
@pytest.mark.parametrize("version", ["1.0", "2.0", 1, 2.0])
def test_older_registries_become_current_ones(agents: Any, version: Any) -> None:
    document = msgspec.convert(migrate({"version": version, "agents": agents}), RegistryDocument)
    assert document.version == "3.0"
    assert [each.location.path for each in document.agents.values()] == [  # type: ignore[union-attr]
        "./agents/basil",
        "./agents/wise",
    ]
