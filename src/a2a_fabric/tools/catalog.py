"""All built-in tools, and their manifests: each tool is an agent with one capability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.tools import data, docs, encode, io, math, system, text, web
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.spec import BuiltinTool

ALL_TOOLS: tuple[BuiltinTool, ...] = (
    *io.TOOLS, *web.TOOLS, *math.TOOLS, *text.TOOLS, *system.TOOLS, *data.TOOLS, *encode.TOOLS, *docs.TOOLS,
)  # fmt: skip
TOOLS_BY_ID: Mapping[str, BuiltinTool] = {tool.tool_id: tool for tool in ALL_TOOLS}

_VERSION = "1.0.0"


def build_manifests(settings: ToolSettings) -> list[Manifest]:
    """One manifest per tool. A tool that is switched off is listed too, with the setting that switches it on."""
    return [build_manifest(tool, settings) for tool in ALL_TOOLS] if settings.enabled else []


def build_manifest(tool: BuiltinTool, settings: ToolSettings) -> Manifest:
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


def _build_capability(tool: BuiltinTool) -> Capability:
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
