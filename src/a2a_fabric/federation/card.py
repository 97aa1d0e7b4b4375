"""`agent.json`, the card of a federated agent, and how a card becomes a manifest and a manifest a card.

Both conversions are pure. A path in a card is relative to the agent's folder and stays inside it; `check_path` refuses
every other one. What the folder itself holds is the business of `folders.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from a2a_fabric.core.agent import Audience, Capability, Manifest, Modality, SideEffects, normalize_name
from a2a_fabric.core.federation import (
    AgentOrigin,
    Coordination,
    Dependencies,
    Observability,
    Phrase,
    Provider,
    RelativePath,
)
from a2a_fabric.federation.json_file import NAME_PATTERN, SKILL_PATTERN, VERSION_PATTERN

CLAUDE_TYPE: Final = "claude-subprocess"
InvocationType = Literal[
    "claude-subprocess", "http", "grpc", "mcp", "a2a", "acp", "rest", "rpc", "fabric", "agentzero", "process", "python",
    "agent-client",
]  # fmt: skip
# Types that start a program on this machine; a card that came from an address never does.
PROGRAM_TYPES: tuple[InvocationType, ...] = (CLAUDE_TYPE, "process", "python", "agent-client")


def runtime_of(invocation: Invocation | None) -> str:
    """The runtime that an invocation names; a card without one is of a folder for Claude Code."""
    return "claude" if invocation is None or invocation.type == CLAUDE_TYPE else invocation.type


class Skill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """One thing that the agent does."""

    id: Annotated[str, Meta(pattern=SKILL_PATTERN, max_length=128, description="In kebab case: parse-recipe.")]
    description: Annotated[str, Meta(min_length=1, max_length=4000, description="What the skill does.")]
    name: Annotated[str, Meta(max_length=256, description="A name for people.")] = ""
    triggers: Annotated[tuple[Phrase, ...], Meta(description="Phrases by which this skill is chosen.")] = ()
    input_schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema of the arguments.")] = None
    output_schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema of the result.")] = None
    streaming: Annotated[bool, Meta(description="Whether it sends events before the result.")] = False
    modalities: Annotated[tuple[Modality, ...], Meta(description="Kinds of content that it takes and returns.")] = (
        "text",
    )
    idempotent: Annotated[bool | None, Meta(description="Whether it may be repeated freely.")] = None
    deterministic: Annotated[bool | None, Meta(description="Same arguments, same result.")] = None
    side_effects: Annotated[SideEffects | None, Meta(description="none, reads or writes.")] = None
    max_timeout_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Longest timeout of a call to it.")
    ] = None
    default: Annotated[bool, Meta(description="It answers messages that name no skill.")] = False


class LegacyCapability(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """One thing that the agent does, as older cards say it."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="In snake case: parse_recipe.")]
    description: Annotated[str, Meta(max_length=4000, description="What it does.")] = ""
    input_schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema of the arguments.")] = None
    output_schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema of the result.")] = None


class Invocation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """How the agent is called."""

    type: Annotated[InvocationType, Meta(description="claude-subprocess, http, grpc, or a runtime of Fabric.")]
    system_prompt: Annotated[RelativePath | None, Meta(description="File of the instructions. CLAUDE.md if unset.")] = (
        None
    )
    mcp_config: Annotated[RelativePath | None, Meta(description="File of the MCP servers. .mcp.json if it exists.")] = (
        None
    )
    knowledge_path: Annotated[
        RelativePath | None, Meta(description="Folder of the knowledge. knowledge/ if it exists.")
    ] = None
    url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2048)] | None, Meta(description="Address, for agents with one.")
    ] = None
    command: Annotated[
        tuple[str, ...] | None, Meta(description="Program and arguments, started in the agent's folder.")
    ] = None
    options: Annotated[
        dict[str, Any], Meta(description="Further settings of the runtime's endpoint, as in agents.yaml.")
    ] = {}


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """agent.json."""

    name: Annotated[
        str, Meta(pattern=NAME_PATTERN, max_length=128, description="Id of the agent: lowercase, without spaces.")
    ]
    version: Annotated[str, Meta(pattern=VERSION_PATTERN, max_length=128, description="MAJOR.MINOR.PATCH.")]
    description: Annotated[str, Meta(min_length=1, max_length=4000, description="What the agent is for.")]
    schema: Annotated[str, Meta(description="Address of the JSON Schema, for editors.")] = msgspec.field(
        default="", name="$schema"
    )
    display_name: Annotated[str, Meta(max_length=256, description="Name for people.")] = ""
    role: Annotated[str, Meta(max_length=256, description="Its role in a few words.")] = ""
    personality: Annotated[str, Meta(max_length=4000, description="How it speaks; part of its prompt.")] = ""
    signals: Annotated[
        tuple[Phrase, ...], Meta(description="Words by which it is chosen, in lowercase, the most specific first.")
    ] = ()
    skills: Annotated[tuple[Skill, ...], Meta(description="What it does.")] = ()
    capabilities: Annotated[tuple[LegacyCapability, ...], Meta(description="What it does, in the older form.")] = ()
    context: Annotated[Audience | None, Meta(description="For whom it is. Unset: for everyone.")] = None
    invocation: Annotated[Invocation | None, Meta(description="How it is called. Needed outside this machine.")] = None
    provider: Annotated[Provider | None, Meta(description="Who maintains it.")] = None
    dependencies: Annotated[Dependencies | None, Meta(description="What it needs besides itself.")] = None
    observability: Annotated[Observability | None, Meta(description="How its calls appear in traces and logs.")] = None
    coordination: Annotated[Coordination | None, Meta(description="How it works with other agents.")] = None
    metadata: Annotated[
        dict[str, Any], Meta(description="author, created, updated, tags (a list of words), and anything else.")
    ] = {}


def find_path_problem(path: str) -> str | None:
    """Why a path in a card is refused: it has to be relative and to stay in the agent's folder."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if path.startswith(("/", "~", "\\")) or PureWindowsPath(path).drive:
        return f"'{path}' is not relative to the agent's folder"
    if ".." in parts:
        return f"'{path}' leads out of the agent's folder"
    return "a path has no control characters" if re.search(r"[\x00-\x1f]", path) else None


def manifest_from_card(card: Card, folder: str, origin: AgentOrigin) -> Manifest:
    """`folder` is where the agent's files are, as the runtimes are told; it is not used for agents with an address."""
    tags = card.metadata.get("tags")
    return Manifest(
        agent_id=card.name,
        endpoint=_build_endpoint(card, folder),
        runtime=runtime_of(card.invocation),
        capabilities=build_capabilities(card.skills, card.capabilities),
        display_name=card.display_name,
        description=card.description,
        version=card.version,
        role=card.role,
        personality=card.personality,
        signals=card.signals,
        provider=card.provider,
        dependencies=card.dependencies,
        observability=card.observability,
        coordination=card.coordination,
        origin=replace(origin, folder=folder),
        audience=card.context,
        tags=tuple(each for each in tags if isinstance(each, str)) if isinstance(tags, list) else (),
        metadata={key: value for key, value in card.metadata.items() if key != "tags"},
    )


def build_capabilities(skills: Iterable[Skill], legacy: Iterable[LegacyCapability]) -> tuple[Capability, ...]:
    """Skills first. A legacy capability of the same name completes the skill with its schemas."""
    by_name = {normalize_name(each.id): _capability_from_skill(each) for each in skills}
    for each in legacy:
        name = normalize_name(each.name)
        capability = by_name.get(name)
        if capability is None:
            by_name[name] = Capability(
                name=each.name,
                description=each.description,
                input_schema=each.input_schema,
                output_schema=each.output_schema,
            )
        else:
            by_name[name] = replace(
                capability,
                input_schema=capability.input_schema if capability.input_schema is not None else each.input_schema,
                output_schema=capability.output_schema if capability.output_schema is not None else each.output_schema,
            )
    return tuple(by_name.values())


def _capability_from_skill(skill: Skill) -> Capability:
    return Capability(
        name=skill.id,
        title=skill.name,
        description=skill.description,
        triggers=skill.triggers,
        input_schema=skill.input_schema,
        output_schema=skill.output_schema,
        streaming=skill.streaming,
        modalities=skill.modalities,
        idempotent=skill.idempotent,
        deterministic=skill.deterministic,
        side_effects=skill.side_effects,
        max_timeout_ms=skill.max_timeout_ms,
        default=skill.default,
    )


def _build_endpoint(card: Card, folder: str) -> dict[str, Any]:
    """The endpoint of the runtime that the invocation names."""
    invocation = card.invocation or Invocation(type=CLAUDE_TYPE)
    if invocation.type == CLAUDE_TYPE:
        files = {
            "instructions": invocation.system_prompt,
            "mcp_config": invocation.mcp_config,
            "knowledge": invocation.knowledge_path,
        }
        named = {key: value for key, value in files.items() if value is not None}
        return {**invocation.options, "path": folder, **named}
    endpoint = dict(invocation.options)
    if invocation.url is not None:
        endpoint["uri"] = invocation.url
    if invocation.command is not None:
        endpoint["command"] = list(invocation.command)
        endpoint["cwd"] = folder
    if invocation.type == "python":
        endpoint["folder"] = folder
    return endpoint


def card_from_manifest(manifest: Manifest) -> Card:
    """The card of any registered agent. Raises ValueError if its id cannot be the name of a card."""
    if not re.fullmatch(NAME_PATTERN, manifest.agent_id):
        raise ValueError(
            f"'{manifest.agent_id}' cannot be the name of a card: use lowercase letters, digits, . _ and -"
        )
    skills, legacy = [], []
    for capability in manifest.capabilities:
        skill_id = re.sub(r"[-_\s]+", "-", capability.name)
        if re.fullmatch(SKILL_PATTERN, skill_id):
            skills.append(_skill_from_capability(skill_id, capability))
        else:
            legacy.append(
                LegacyCapability(
                    name=capability.name,
                    description=capability.description,
                    input_schema=capability.input_schema,
                    output_schema=capability.output_schema,
                )
            )
    return Card(
        name=manifest.agent_id,
        version=manifest.version if re.fullmatch(VERSION_PATTERN, manifest.version) else "0.0.0",
        description=manifest.description or manifest.display_name or manifest.agent_id,
        display_name=manifest.display_name,
        role=manifest.role,
        personality=manifest.personality,
        signals=manifest.signals,
        skills=tuple(skills),
        capabilities=tuple(legacy),
        context=manifest.audience,
        provider=manifest.provider,
        dependencies=manifest.dependencies,
        observability=manifest.observability,
        coordination=manifest.coordination,
        metadata={**manifest.metadata, **({"tags": list(manifest.tags)} if manifest.tags else {})},
    )


def _skill_from_capability(skill_id: str, capability: Capability) -> Skill:
    return Skill(
        id=skill_id,
        description=capability.description or capability.title or capability.name,
        name=capability.title,
        triggers=capability.triggers,
        input_schema=capability.input_schema,
        output_schema=capability.output_schema,
        streaming=capability.streaming,
        modalities=capability.modalities,
        idempotent=capability.idempotent,
        deterministic=capability.deterministic,
        side_effects=capability.side_effects,
        max_timeout_ms=capability.max_timeout_ms,
        default=capability.default,
    )
