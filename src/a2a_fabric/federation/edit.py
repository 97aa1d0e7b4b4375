"""Edits of a `registry.json` as text: entries, the skill index and the version change; the rest stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import normalize_name
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.federation.json_file import MAX_REGISTRY_BYTES, JSONFile
from a2a_fabric.federation.registry_file import CURRENT_VERSION, RegistryDocument, build_skill_index, migrate
from a2a_fabric.importing import jsonc

EMPTY_REGISTRY = (
    json.dumps({"version": CURRENT_VERSION, "agents": {}, "skillIndex": {}, "routing": {}}, indent=2) + "\n"
)


def parse_registry(name: str, text: str) -> RegistryDocument:
    """Raises ConfigError."""
    file = JSONFile.parse(name, text.encode(), MAX_REGISTRY_BYTES)
    return file.decode(RegistryDocument, migrate(file.value))


def add_entry(name: str, text: str, agent: str, entry: Mapping[str, Any]) -> str:
    """The text with a new agent. Raises ConfigError if there is one of this name already."""
    text = upgrade(name, text)
    if agent in parse_registry(name, text).agents:
        raise ConfigError(f"{name}: there is an agent '{agent}' already. Remove it first, or choose another name")
    changed = jsonc.set_member(text, ("agents", agent), dict(entry))
    parse_registry(name, changed)
    return changed


def rebuild_index(name: str, text: str, skills: Mapping[str, list[str]]) -> tuple[str, dict[str, str]]:
    """The text with an index of these skills by agent.

    An entry that still holds keeps its agent; so does one of an agent whose skills are not known here.
    """
    document = parse_registry(name, text)
    index = build_skill_index(skills)
    for skill, agent in document.skill_index.items():
        known = skills.get(agent)
        if agent in document.agents and (not known or normalize_name(skill) in map(normalize_name, known)):
            index[skill] = agent
    index = dict(sorted(index.items()))
    return (text if index == document.skill_index else jsonc.set_member(text, ("skillIndex",), index)), index


def upgrade(name: str, text: str) -> str:
    """The text of any version as the current one; a current one stays as it is."""
    file = JSONFile.parse(name, text.encode(), MAX_REGISTRY_BYTES)
    migrated = migrate(file.value)
    document = file.decode(RegistryDocument, migrated)
    if migrated is file.value:
        return text
    skills = {agent: [each.id for each in entry.skills] for agent, entry in document.agents.items()}
    index = {**build_skill_index(skills), **document.skill_index}
    value = {**migrated, "skillIndex": index, "routing": msgspec.to_builtins(document.routing)}
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
