"""Writes what the node lists of the tools, from their definitions, and prints their reference page, docs/tools.md."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from a2a_fabric.tools.catalog import ALL_TOOLS
from a2a_fabric.tools.listing import LISTING_FILE, ToolListing, encode_listings
from a2a_fabric.tools.settings import ToolSettings

_LISTINGS = [tool.listing for tool in ALL_TOOLS]

_INTRODUCTION = """\
# Built-in tools

<!-- Written by `scripts/generate`; change the definitions instead. -->

Each tool is an agent with one capability. Call it through any door: `fabric.tool.math.calculate` on the Fabric wire and
MCP, `a2a-fabric call math.calculate` on the command line. A tool is deterministic and without side effects unless its
row says otherwise. A failure carries one of the usual codes, and the tool's own in `details.tool_error`.
"""
_SANDBOX_SECTION = """\
## Limits of the tools

- `io.*` and the working folder of `system.execute` stay inside `tools.io_root`: no absolute path, no `..`, no symbolic
  link anywhere on the way, plain files only.
- `web.*` goes through the node's guarded client: private and local addresses are refused, at each redirect again.
- `math.calculate` reads arithmetic, not Python, and refuses numbers beyond 4096 bits before computing them.
- `text.regex` and `io.search_files` use RE2, whose time grows with the text and not with the pattern's shape.
- `system.execute` has no shell, gives programs only the variables of `tools.execute_env`, and kills the whole process
  group when time is up or the caller disconnects. It runs with the rights of the node itself.
- `data.validate` never loads a reference to another document, and checks costly schemas in a process that it can stop.
"""


def build_reference() -> str:
    parts = [
        _INTRODUCTION,
        _render_overview(),
        *(_render_section(tool) for tool in _LISTINGS),
        _render_settings(),
        _SANDBOX_SECTION,
    ]
    return "\n".join(parts)


def _render_overview() -> str:
    rows = [
        f"| [`{tool.tool_id}`](#{tool.tool_id.replace('.', '')}) | {tool.category} | {_render_names(tool)} "
        f"| {_describe_effects(tool)} | {_describe_default(tool)} |"
        for tool in _LISTINGS
    ]
    head = ["| tool | category | capability | declares | by default |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _render_names(tool: ToolListing) -> str:
    return ", ".join(f"`{name}`" for name in (tool.capability, *tool.aliases))


def _describe_effects(tool: ToolListing) -> str:
    if tool.side_effects != "none":
        return tool.side_effects
    return "pure" if tool.deterministic else "not deterministic"


def _describe_default(tool: ToolListing) -> str:
    reason = tool.find_disabled_reason(ToolSettings())
    return "on" if reason is None else f"off: {reason}"


def _render_section(tool: ToolListing) -> str:
    properties = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", [])
    rows = [
        f"| `{name}` | {_describe_type(part)} | {_render_default(part, name in required)} "
        f"| {_escape_cell(part.get('description', ''))} |"
        for name, part in properties.items()
    ]
    head = ["| argument | type | default | |", "|---|---|---|---|"]
    lines = [f"## {tool.tool_id}", "", tool.description, "", *head, *rows, "", f"Result: {_render_result(tool)}.", ""]
    return "\n".join(lines)


def _render_result(tool: ToolListing) -> str:
    return ", ".join(f"`{name}`" for name in tool.output_schema["properties"])


def _describe_type(part: dict[str, Any]) -> str:
    if "anyOf" in part:
        return " or ".join(_describe_type(each) for each in part["anyOf"])
    if "enum" in part:
        return " ".join(f"`{value}`" for value in part["enum"])
    if part.get("type") == "array":
        return f"array of {_describe_type(part.get('items', {}))}"
    return str(part.get("type", "any"))


def _render_default(part: dict[str, Any], required: bool) -> str:
    return "required" if required else f"`{msgspec.json.encode(part.get('default')).decode()}`"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _render_settings() -> str:
    schema = msgspec.json.schema(ToolSettings)["$defs"]["ToolSettings"]["properties"]
    rows = [
        f"| `tools.{name}` | {_render_default(part, False)} | {_escape_cell(part['description'])} |"
        for name, part in schema.items()
    ]
    return "\n".join(["## Settings", "", "| setting | default | |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    LISTING_FILE.write_bytes(encode_listings(_LISTINGS))
    sys.stdout.write(build_reference())
