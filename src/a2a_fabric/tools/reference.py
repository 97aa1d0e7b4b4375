"""The reference page of the tools, docs/tools.md, written from their definitions."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from a2a_fabric.tools.catalog import ALL
from a2a_fabric.tools.settings import ToolSettings
from a2a_fabric.tools.spec import Tool

_OPENING = """\
# Built-in tools

<!-- Written by `python -m a2a_fabric.tools.reference > docs/tools.md`; change the definitions instead. -->

Each tool is an agent with one capability. Call it through any door: `fabric.tool.math.calculate` on the Fabric wire and
MCP, `a2a-fabric call math.calculate` on the command line. A tool is deterministic and without side effects unless its
row says otherwise. A failure carries one of the usual codes, and the tool's own in `details.tool_error`.
"""
_SANDBOX = """\
## What keeps them in

- `io.*` and the working folder of `system.execute` stay inside `tools.io_root`: no absolute path, no `..`, no symbolic
  link anywhere on the way, plain files only.
- `web.*` goes through the node's guarded client: private and local addresses are refused, at each redirect again.
- `math.calculate` reads arithmetic, not Python, and refuses numbers beyond 4096 bits before computing them.
- `text.regex` and `io.search_files` use RE2, whose time grows with the text and not with the pattern's shape.
- `system.execute` has no shell, gives programs only the variables of `tools.execute_env`, and kills the whole process
  group when time is up or the caller goes away. It runs with the rights of the node itself.
- `data.validate` never loads a reference from elsewhere, and checks costly schemas in a process that it can stop.
"""


def reference() -> str:
    parts = [_OPENING, _overview(), *(_section(tool) for tool in ALL), _settings(), _SANDBOX]
    return "\n".join(parts)


def _overview() -> str:
    rows = [
        f"| [`{tool.tool_id}`](#{tool.tool_id.replace('.', '')}) | {tool.category} | {_names(tool)} "
        f"| {_declared(tool)} | {_default(tool)} |"
        for tool in ALL
    ]
    head = ["| tool | category | capability | declares | by default |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _names(tool: Tool) -> str:
    return ", ".join(f"`{name}`" for name in (tool.capability, *tool.aliases))


def _declared(tool: Tool) -> str:
    effects = {"none": "", "reads": "looks at the world", "writes": "changes the world"}[tool.side_effects]
    return effects or ("pure" if tool.deterministic else "not deterministic")


def _default(tool: Tool) -> str:
    why = tool.why_disabled(ToolSettings())
    return "on" if why is None else f"off: {why}"


def _section(tool: Tool) -> str:
    properties = tool.input_schema.get("properties", {})
    required = tool.input_schema.get("required", [])
    rows = [
        f"| `{name}` | {_type(part)} | {_given(part, name in required)} | {_cell(part.get('description', ''))} |"
        for name, part in properties.items()
    ]
    head = ["| argument | type | default | |", "|---|---|---|---|"]
    lines = [f"## {tool.tool_id}", "", tool.description, "", *head, *rows, "", f"Result: {_result(tool)}.", ""]
    return "\n".join(lines)


def _result(tool: Tool) -> str:
    return ", ".join(f"`{name}`" for name in tool.output_schema["properties"])


def _type(part: dict[str, Any]) -> str:
    if "anyOf" in part:
        return " or ".join(_type(each) for each in part["anyOf"])
    if "enum" in part:
        return " ".join(f"`{value}`" for value in part["enum"])
    if part.get("type") == "array":
        return f"array of {_type(part.get('items', {}))}"
    return str(part.get("type", "any"))


def _given(part: dict[str, Any], required: bool) -> str:
    return "required" if required else f"`{msgspec.json.encode(part.get('default')).decode()}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _settings() -> str:
    schema = msgspec.json.schema(ToolSettings)["$defs"]["ToolSettings"]["properties"]
    rows = [
        f"| `tools.{name}` | {_given(part, False)} | {_cell(part['description'])} |" for name, part in schema.items()
    ]
    return "\n".join(["## Settings", "", "| setting | default | |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(reference())
