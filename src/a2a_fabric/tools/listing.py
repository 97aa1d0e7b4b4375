"""What the built-in tools say about themselves, and their manifests: each tool is an agent with one capability.

The node reads it from `listing.json`, so that a start imports no tool and derives no schema. `scripts/generate` writes
that file from the definitions in `catalog`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, SideEffects, TrustTier
from a2a_fabric.tools.settings import ToolSettings

LISTING_FILE = Path(__file__).with_name("listing.json")

_VERSION = "1.0.0"


class ToolListing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    tool_id: str
    capability: str
    category: str
    display_name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    deterministic: bool = True
    side_effects: SideEffects = "none"
    trust_tier: TrustTier = "org"
    aliases: tuple[str, ...] = ()  # other names of the capability
    setting: str | None = None  # the tool is off until this setting is set

    def find_disabled_reason(self, settings: ToolSettings) -> str | None:
        """What to change in fabric.yaml so that the tool can be called; None if it can be."""
        for name in (self.tool_id, self.category, self.tool_id.partition(".")[0]):
            if name in settings.disabled:
                return f"remove '{name}' from tools.disabled in fabric.yaml"
        if self.setting and not getattr(settings, self.setting):
            value = "true" if getattr(settings, self.setting) is False else "env:NAME"
            return f"set tools.{self.setting}: {value} in fabric.yaml"
        return None


@cache
def load_listings() -> tuple[ToolListing, ...]:
    return msgspec.json.decode(LISTING_FILE.read_bytes(), type=tuple[ToolListing, ...])


def encode_listings(listings: Iterable[ToolListing]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(tuple(listings)), indent=1) + b"\n"


def build_manifests(settings: ToolSettings) -> list[Manifest]:
    """One manifest per tool. A tool that is switched off is listed too, with the setting that switches it on."""
    return [build_manifest(listing, settings) for listing in load_listings()] if settings.enabled else []


def build_manifest(tool: ToolListing, settings: ToolSettings) -> Manifest:
    reason = tool.find_disabled_reason(settings)
    metadata: dict[str, Any] = {"provider": "builtin", "enabled": reason is None}
    if reason is not None:
        metadata["why"] = reason
    if tool.aliases:
        metadata["aliases"] = list(tool.aliases)
    return Manifest(
        agent_id=tool.tool_id,
        endpoint={"transport": "local"},
        runtime="tool",
        capabilities=(_build_capability(tool),),
        display_name=tool.display_name,
        description=tool.description,
        version=_VERSION,
        trust_tier=tool.trust_tier,
        tags=("tool", tool.category),
        category=tool.category,
        metadata=metadata,
    )


def _build_capability(tool: ToolListing) -> Capability:
    return Capability(
        name=tool.capability,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        modalities=("text", "json"),
        idempotent=tool.side_effects != "writes",
        deterministic=tool.deterministic,
        side_effects=tool.side_effects,
    )
