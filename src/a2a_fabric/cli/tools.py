"""`a2a-fabric tools`: list the built-in tools, and the agents as tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark


def run(
    category: Annotated[str | None, typer.Option(help="Only this category: io, web, math, text, ...")] = None,
    provider: Annotated[Literal["builtin", "agent"] | None, typer.Option(help="Only tools from there.")] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the built-in tools, and the agents as tools.

    Example: a2a-fabric tools --category math
    """
    tools = run_request(connect(url, token), lambda node: node.tools(category, provider), as_json=as_json)
    if as_json:
        print_json({"tools": tools, "count": len(tools)})
    elif tools:
        print_table(("tool", "state", "effects", "description"), map(_build_row, tools))
    else:
        remark("No such tools.")


def _build_row(tool: dict[str, Any]) -> tuple[str, ...]:
    return tool["tool_id"], "on" if tool["enabled"] else "off", tool["side_effects"] or "", tool["description"]
