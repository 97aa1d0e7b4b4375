"""`registry.json`: which agents there are, where each is, which agent answers a skill, and how words choose agents.

Version 3.0 is the current form. `migrate` turns 1.0 (a list of agents) and 2.0 (with signals and personality) into it;
it is a pure function from JSON to JSON. Edits work on the text of the file: entries, the skill index and the version
change, and the rest stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from a2a_fabric.core.agent import Audience, Manifest, normalize_name
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.federation import Dependencies, McpDependency, Phrase, RelativePath, WordRouting
from a2a_fabric.federation.card import Skill, build_capabilities
from a2a_fabric.federation.json_file import (
    COMMIT_PATTERN,
    MAX_REGISTRY_BYTES,
    NAME_PATTERN,
    REF_PATTERN,
    SKILL_PATTERN,
    URL_PATTERN,
    JSONFile,
)
from a2a_fabric.federation.settings import PullPolicy
from a2a_fabric.importing import jsonc

REFERENCE_FILE = "reference/agent-registry.json"  # where many repositories have it
CURRENT_VERSION = "3.0"
DEFAULT_AGENTS_FOLDER = "./agents"

AgentName = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=128)]
RefName = Annotated[str, Meta(pattern=REF_PATTERN, max_length=255)]
EMPTY_REGISTRY = (
    json.dumps({"version": CURRENT_VERSION, "agents": {}, "skillIndex": {}, "routing": {}}, indent=2) + "\n"
)


class LocalLocation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="local"
):
    """A folder of this machine."""

    path: Annotated[RelativePath, Meta(description="The agent's folder, relative to the registry.")]


class GitLocation(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="git",
    rename="camel",
    omit_defaults=True,
):
    """A git repository, which is cloned when the agent is first used."""

    repo: Annotated[str, Meta(min_length=1, max_length=2048, description="github.com/user/agent, or a URL.")]
    local_path: Annotated[
        RelativePath | None, Meta(description="Where the clone is. Unset: ./agents/external/NAME.")
    ] = None
    branch: Annotated[RefName | None, Meta(description="Branch. Unset: the default one.")] = None
    tag: Annotated[RefName | None, Meta(description="Tag, instead of a branch.")] = None
    commit: Annotated[
        Annotated[str, Meta(pattern=COMMIT_PATTERN)] | None,
        Meta(description="Commit, in full; then the code never changes."),
    ] = None
    path: Annotated[RelativePath | None, Meta(description="The agent's folder in the repository. Unset: its top.")] = (
        None
    )
    pull: Annotated[PullPolicy | None, Meta(description="When the clone is updated. Unset: as the node says.")] = None
    trust: Annotated[
        bool, Meta(description="Run code that is not pinned to a commit, whatever the repository holds tomorrow.")
    ] = False
    env: Annotated[
        tuple[str, ...], Meta(description="Environment variables that the agent may be given, such as its tokens.")
    ] = ()


class RemoteLocation(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="remote",
    omit_defaults=True,
):
    """An agent elsewhere, reached by address."""

    url: Annotated[str, Meta(pattern=URL_PATTERN, max_length=2048, description="Address of the card or the agent.")]
    kind: Annotated[
        Literal["card", "agent", "node"],
        Meta(
            description="card: the URL is an agent.json. agent: the URL is the agent, whose protocol the node finds "
            "out. node: another Fabric node, all of whose agents are taken."
        ),
    ] = "card"
    headers: Annotated[
        dict[str, str],
        Meta(description="Headers of requests to the agent; secrets as env:NAME, in the operator's files only."),
    ] = {}


Location = LocalLocation | GitLocation | RemoteLocation


class RegistryEntry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """An agent of a registry. What is said here wins over the agent's own card."""

    location: Annotated[Location, Meta(description="Where the agent is.")]
    context: Annotated[Audience | None, Meta(description="For whom it is.")] = None
    display_name: Annotated[str, Meta(max_length=256, description="Name for people.")] = ""
    role: Annotated[str, Meta(max_length=256, description="Its role in a few words.")] = ""
    description: Annotated[str, Meta(max_length=4000, description="What it is for.")] = ""
    personality: Annotated[str, Meta(max_length=4000, description="How it speaks.")] = ""
    version: Annotated[str, Meta(max_length=128, description="The agent's version.")] = ""
    signals: Annotated[tuple[Phrase, ...], Meta(description="Words by which it is chosen.")] = ()
    skills: Annotated[tuple[Skill, ...], Meta(description="What it does.")] = ()
    mcps: Annotated[tuple[str | McpDependency, ...], Meta(description="MCP servers that it uses.")] = ()


class RoutingBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How words choose an agent."""

    default_agent: Annotated[AgentName | None, Meta(description="Answers if no other agent fits.")] = None
    switch_commands: Annotated[
        tuple[Phrase, ...], Meta(description="Phrases before an agent's name that switch a conversation to it.")
    ] = ()
    multi_agent_triggers: Annotated[
        tuple[Phrase, ...], Meta(description="Phrases that separate the parts of a request for several agents.")
    ] = ()


class RegistryDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """registry.json."""

    version: Annotated[Literal["3.0"], Meta(description="Version of this format.")]
    schema: Annotated[str, Meta(description="Address of the JSON Schema, for editors.")] = msgspec.field(
        default="", name="$schema"
    )
    orchestrator: Annotated[str, Meta(max_length=128, description="Name of what routes by this registry.")] = ""
    include: Annotated[
        tuple[str, ...],
        Meta(
            description="Further registries: files relative to this one, or URLs. The first that names an agent wins."
        ),
    ] = ()
    agents: Annotated[dict[AgentName, RegistryEntry], Meta(description="The agents by name.")] = {}
    skill_index: Annotated[
        dict[str, AgentName], Meta(description="Which agent answers a skill, by the skill's id.")
    ] = {}
    routing: Annotated[RoutingBlock, Meta(description="How words choose an agent.")] = RoutingBlock()


def apply_entry(manifest: Manifest, entry: RegistryEntry) -> Manifest:
    """The manifest of a card with what the registry says of the agent, which wins."""
    named = {
        "display_name": entry.display_name,
        "role": entry.role,
        "description": entry.description,
        "personality": entry.personality,
        "version": entry.version,
        "signals": entry.signals,
        "audience": entry.context,
    }
    return replace(
        manifest,
        **{name: value for name, value in named.items() if value},
        capabilities=_merge_skills(manifest, entry.skills),
        dependencies=_merge_dependencies(manifest.dependencies, entry.mcps),
    )


def _merge_skills(manifest: Manifest, skills: Iterable[Skill]) -> Any:
    """The card's capabilities and those that only the registry names; triggers and texts of the registry win."""
    merged = {normalize_name(each.name): each for each in manifest.capabilities}
    for each in build_capabilities(skills, ()):
        name = normalize_name(each.name)
        own = merged.get(name)
        if own is not None:
            each = replace(
                own,
                title=each.title or own.title,
                description=each.description,
                triggers=each.triggers or own.triggers,
                input_schema=each.input_schema if each.input_schema is not None else own.input_schema,
                output_schema=each.output_schema if each.output_schema is not None else own.output_schema,
            )
        merged[name] = each
    return tuple(merged.values())


def _merge_dependencies(own: Dependencies | None, mcps: Iterable[str | McpDependency]) -> Dependencies | None:
    """A name alone says that the agent uses the server; the card may say more about it."""
    by_name = {each.name: each for each in (own.mcps if own is not None else ())}
    for each in mcps:
        if isinstance(each, McpDependency):
            by_name[each.name] = each
        else:
            by_name.setdefault(each, McpDependency(name=each))
    if not by_name:
        return own
    return replace(own or Dependencies(), mcps=tuple(by_name.values()))


def build_skill_index(agents: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Each skill with the first agent that has it, sorted by the skill's id. Names of legacy capabilities are none."""
    index: dict[str, str] = {}
    for agent, names in agents.items():
        for name in names:
            if re.fullmatch(SKILL_PATTERN, name):
                index.setdefault(name, agent)
    return dict(sorted(index.items()))


def word_routing_from(document: RegistryDocument) -> WordRouting:
    derived = build_skill_index({name: [each.id for each in entry.skills] for name, entry in document.agents.items()})
    routing = document.routing
    return WordRouting(
        orchestrator=document.orchestrator,
        default_agent=routing.default_agent,
        switch_commands=routing.switch_commands,
        multi_agent_triggers=routing.multi_agent_triggers,
        skill_index={**derived, **document.skill_index},
    )


def migrate(value: Any) -> Any:
    """A registry of version 1.0 or 2.0 as 3.0; anything else as it is.

    In 1.0 `agents` is a list of agents with their names, or an object by name; a text is the agent's path. An agent
    without a path is in `agents/NAME`. 2.0 adds signals and personality.
    """
    if not isinstance(value, dict) or str(value.get("version")) not in ("1", "1.0", "2", "2.0"):
        return value
    agents = value.get("agents", {})
    if isinstance(agents, list):
        if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in agents):
            return value
        agents = {each["name"]: {key: inner for key, inner in each.items() if key != "name"} for each in agents}
    if not isinstance(agents, dict):
        return value
    entries = {name: _migrate_entry(name, entry) for name, entry in agents.items()}
    return {**value, "version": CURRENT_VERSION, "agents": entries}


def _migrate_entry(name: str, entry: Any) -> Any:
    if isinstance(entry, str):
        entry = {"path": entry}
    if not isinstance(entry, dict) or "location" in entry:
        return entry
    rest = {key: value for key, value in entry.items() if key != "path"}
    return {"location": {"type": "local", "path": entry.get("path", f"{DEFAULT_AGENTS_FOLDER}/{name}")}, **rest}


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
