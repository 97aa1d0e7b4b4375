"""All built-in tools, and how the registry sees them: each is an agent with one capability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.tools import data, docs, encode, io, math, security, system, text, web
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.spec import Tool

ALL: tuple[Tool, ...] = (
    *io.TOOLS, *web.TOOLS, *math.TOOLS, *text.TOOLS, *system.TOOLS, *data.TOOLS, *security.TOOLS, *encode.TOOLS,
    *docs.TOOLS,
)  # fmt: skip
BY_ID: Mapping[str, Tool] = {tool.tool_id: tool for tool in ALL}

_VERSION = "1.0.0"


def manifests(settings: ToolSettings) -> list[Manifest]:
    """One manifest per tool. A tool that is switched off is listed too, and says what would switch it on."""
    return [manifest_of(tool, settings) for tool in ALL] if settings.enabled else []


def manifest_of(tool: Tool, settings: ToolSettings) -> Manifest:
    why = tool.why_disabled(settings)
    metadata: dict[str, Any] = {"provider": "builtin", "enabled": why is None}
    if why is not None:
        metadata["why"] = why
    if tool.aliases:
        metadata["aliases"] = list(tool.aliases)
    return Manifest(
        agent_id=tool.tool_id,
        endpoint={"transport": "local"},
        runtime="tool",
        capabilities=(_capability(tool),),
        display_name=tool.display_name,
        description=tool.description,
        version=_VERSION,
        trust_tier=tool.trust_tier,
        tags=("tool", tool.category),
        category=tool.category,
        metadata=metadata,
    )


def _capability(tool: Tool) -> Capability:
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
