"""A view: a named set of agents and tools, to which a key can be bound or a request can narrow itself.

A view only takes away: scopes and trust tiers still apply, and a caller with several views gets what all of them
include. Patterns have `*` and `?`. A tool is named `AGENT.CAPABILITY`, a built-in tool by its id; as in calls,
letter case and the separators `-`, `_` and space make no difference there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Audience, Manifest, TrustTier, normalize_name
from a2a_fabric.core.errors import suggest_for_pattern

VIEW_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
EVERY_CAPABILITY = "*"  # as a capability: the view includes all that the agent offers, whatever that is
_ANY_NAME = "\0" * 300  # longer than any name, so only a pattern that matches every name matches it
_WILDCARD = re.compile(r"[*?]")

_Patterns = tuple[str, ...] | None


class View(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """What a list does not restrict is unset; an empty list includes nothing."""

    name: Annotated[
        str, Meta(pattern=VIEW_NAME_PATTERN, max_length=64, description="The view's name, as in /views/NAME/mcp.")
    ]
    agents: Annotated[_Patterns, Meta(description="Ids of agents and of built-in tools. Unset: all.")] = None
    tools: Annotated[_Patterns, Meta(description="Tools, as AGENT.CAPABILITY, or built-in tools. Unset: all.")] = None
    tags: Annotated[_Patterns, Meta(description="Only agents with one of these tags. Unset: all.")] = None
    tiers: Annotated[
        tuple[TrustTier, ...] | None, Meta(description="Only agents of these trust tiers. Unset: all.")
    ] = None
    audiences: Annotated[
        tuple[Audience, ...] | None,
        Meta(description="Only agents for these audiences, and those that name none. Unset: all."),
    ] = None
    exclude: Annotated[tuple[str, ...], Meta(description="Tools that the view does not include.")] = ()

    def may_include(self, manifest: Manifest) -> bool:
        """Whether the view includes the agent, with any capability at all."""
        prefix = _tool_name(manifest, "")
        return self._selects(manifest) and (
            self.tools is None or any(_may_concern(pattern, prefix, manifest) for pattern in self.tools)
        )

    def includes(self, manifest: Manifest, capability: str) -> bool:
        return self._selects(manifest) and self._includes_tool(manifest, capability)

    def list_unmatched(self, manifests: Sequence[Manifest]) -> Iterator[str]:
        """A sentence for each pattern that matches none of these agents and tools, with the nearest names.

        An agent whose capabilities are not known may have any tool.
        """
        ids = [manifest.agent_id for manifest in manifests]
        tools = [
            manifest.agent_id if manifest.is_tool else f"{manifest.agent_id}.{capability.name}"
            for manifest in manifests
            for capability in manifest.capabilities
        ]
        tags = list(dict.fromkeys(tag for manifest in manifests for tag in manifest.tags))
        unknown = [manifest for manifest in manifests if not manifest.capabilities]
        for key, patterns, names in (("agents", self.agents, ids), ("tags", self.tags, tags)):
            for pattern in patterns or ():
                if not any(_matches(name, (pattern,)) for name in names):
                    yield f"{key}: '{pattern}' matches nothing{suggest_for_pattern(pattern, names)}"
        normalized = [normalize_name(name) for name in tools]
        for key, patterns in (("tools", self.tools), ("exclude", self.exclude)):
            for pattern in patterns or ():
                is_matched = any(_matches_tool(name, (pattern,)) for name in normalized)
                if not is_matched and not any(_may_concern(pattern, _tool_name(each, ""), each) for each in unknown):
                    yield f"{key}: '{pattern}' matches no tool{suggest_for_pattern(pattern, tools)}"

    def _selects(self, manifest: Manifest) -> bool:
        return (
            (self.agents is None or _matches(manifest.agent_id, self.agents))
            and (self.tiers is None or manifest.trust_tier in self.tiers)
            and (self.audiences is None or manifest.audience is None or manifest.audience in self.audiences)
            and (self.tags is None or any(_matches(tag, self.tags) for tag in manifest.tags))
        )

    def _includes_tool(self, manifest: Manifest, capability: str) -> bool:
        if self.tools is None and not self.exclude:
            return True
        if capability == EVERY_CAPABILITY:
            prefix = _tool_name(manifest, "")
            if any(_may_concern(pattern, prefix, manifest) for pattern in self.exclude):
                return False
            capability = _ANY_NAME
        name = _tool_name(manifest, capability)
        return (self.tools is None or _matches_tool(name, self.tools)) and not _matches_tool(name, self.exclude)


def _tool_name(manifest: Manifest, capability: str) -> str:
    name = manifest.agent_id if manifest.is_tool else f"{manifest.agent_id}.{capability}"
    return normalize_name(name)


def _may_concern(pattern: str, prefix: str, manifest: Manifest) -> bool:
    """Whether some tool of the agent could match. Only the text before the first wildcard is compared."""
    literal = normalize_name(_WILDCARD.split(pattern, maxsplit=1)[0])
    if manifest.is_tool:
        return prefix.startswith(literal)
    return literal.startswith(prefix) or prefix.startswith(literal)


@lru_cache(maxsize=65_536)
def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return compile_patterns(patterns).fullmatch(name) is not None


@lru_cache(maxsize=65_536)
def _matches_tool(name: str, patterns: tuple[str, ...]) -> bool:
    return compile_patterns(tuple(map(normalize_name, patterns))).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    escaped = (re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") for pattern in patterns)
    return re.compile("|".join(escaped) or r"(?!)", re.DOTALL)
