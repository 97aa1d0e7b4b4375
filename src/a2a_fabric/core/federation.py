"""What the card of a federated agent adds to its manifest, and how a registry chooses agents by words.

A card (`agent.json`) and a manifest (`agents.yaml`) describe the same agent: these structs are fields of both, and are
written in both as cards write them, in camel case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

Phrase = Annotated[str, Meta(min_length=1, max_length=200)]
RelativePath = Annotated[str, Meta(min_length=1, max_length=1024)]
RuleScope = Literal["domain", "global"]
_MAX_SPAN_NAME = 256  # characters


class Provider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who maintains an agent."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="A person or an organization.")]
    contact: Annotated[str, Meta(max_length=512, description="An e-mail address or a URL.")] = ""


class McpDependency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that an agent uses."""

    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name in the agent's MCP configuration.")]
    required: Annotated[bool, Meta(description="Whether the agent cannot work without it.")] = False
    capabilities: Annotated[
        tuple[str, ...], Meta(description="The capabilities that need it. Empty: all of the agent's.")
    ] = ()


class Dependencies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent needs besides itself."""

    mcps: Annotated[tuple[McpDependency, ...], Meta(description="MCP servers, connected only when needed.")] = ()
    agents: Annotated[tuple[str, ...], Meta(description="The agents that this one may call.")] = ()
    knowledge: Annotated[
        tuple[RelativePath, ...], Meta(description="Files that must exist, relative to the agent's folder.")
    ] = ()


class Observability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How calls to an agent appear in traces and logs."""

    trace_enabled: Annotated[bool, Meta(description="Whether calls are traced.")] = True
    span_name: Annotated[str, Meta(max_length=256, description="Name of a span; knows {agent} and {operation}.")] = (
        "{agent}.{operation}"
    )
    attributes: Annotated[dict[str, str], Meta(description="Attributes of each span and log line.")] = {}


_NO_OBSERVABILITY = Observability()


class SpanFacts(NamedTuple):
    """How a call to an agent is named and described in traces and logs."""

    name: str
    attributes: dict[str, str]


def describe_span(observability: Observability | None, agent_id: str, role: str, operation: str) -> SpanFacts | None:
    """None if the card says that calls to its agent are not traced. What the card says wins over its name and role."""
    card = observability or _NO_OBSERVABILITY
    if not card.trace_enabled:
        return None
    name = card.span_name.replace("{agent}", agent_id).replace("{operation}", operation)
    own = {"agent.name": agent_id, **({"agent.role": role} if role else {})}
    return SpanFacts(name[:_MAX_SPAN_NAME], {**own, **card.attributes})


class CoordinationRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule for work that involves several agents."""

    condition: Annotated[
        str,
        Meta(min_length=1, max_length=2000, description="When the rule applies: words of a request, or a sentence."),
    ]
    action: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2000,
            description="What happens then: `delegate to AGENT`, `never delegate to AGENT`, or a sentence for the "
            "agent's prompt.",
        ),
    ]
    scope: Annotated[
        RuleScope,
        Meta(description="domain: requests that words brought to this agent. global: every request to it."),
    ] = "domain"


class Coordination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How an agent works together with others."""

    can_delegate: Annotated[bool, Meta(description="Whether it may hand work to other agents.")] = True
    accepts_subtasks: Annotated[bool, Meta(description="Whether other agents may hand work to it.")] = True
    rules: Annotated[tuple[CoordinationRule, ...], Meta(description="Rules for work with several agents.")] = ()


class AgentOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a federated agent comes from. The node writes it when it reads a card or a registry."""

    location: Annotated[Literal["local", "git", "remote"], Meta(description="The type of the location.")]
    registry: Annotated[str, Meta(description="The registry or folder that names the agent.")] = ""
    url: Annotated[str, Meta(description="Address of the card or of the repository, without credentials.")] = ""
    ref: Annotated[str, Meta(description="Branch, tag or commit that was asked for.")] = ""
    commit: Annotated[str, Meta(description="The commit that is checked out; empty before the first use.")] = ""
    folder: Annotated[str, Meta(description="The agent's folder on this machine.")] = ""


class WordRouting(msgspec.Struct, frozen=True, kw_only=True):
    """How words choose an agent, as the registries of a node say. Empty on a node without a registry."""

    orchestrator: str = ""
    default_agent: str | None = None
    switch_commands: tuple[str, ...] = ()
    multi_agent_triggers: tuple[str, ...] = ()
    skill_index: dict[str, str] = {}  # which agent answers a skill, by the skill's id


def merge_word_routing(blocks: Iterable[WordRouting]) -> WordRouting:
    """One block of all, the earlier before the later; phrases are joined."""
    parts = list(blocks)
    skill_index: dict[str, str] = {}
    for part in reversed(parts):
        skill_index |= part.skill_index
    return WordRouting(
        orchestrator=next((part.orchestrator for part in parts if part.orchestrator), ""),
        default_agent=next((part.default_agent for part in parts if part.default_agent), None),
        switch_commands=_join(part.switch_commands for part in parts),
        multi_agent_triggers=_join(part.multi_agent_triggers for part in parts),
        skill_index=skill_index,
    )


def _join(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(phrase for group in groups for phrase in group))
