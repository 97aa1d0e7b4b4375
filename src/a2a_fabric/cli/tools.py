"""The tools of a node: the commands of `a2a-fabric tools`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from a2a_fabric.admin.agent_changes import AGENT_PREFIX
from a2a_fabric.cli.agent_editing import AgentEditing
from a2a_fabric.cli.agents import AgentId
from a2a_fabric.cli.connection import complete_agent_ids, connect, run_request
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json, Token, Url, Wide
from a2a_fabric.cli.output import clip_text, print_json, print_line, print_table, remark, report_errors
from a2a_fabric.cli.tool_approval import ToolApproval

_MAX_DESCRIPTION = 100  # characters in a list

ToolPattern = Annotated[str, typer.Argument(metavar="AGENT.TOOL", help="The tool may hold `*` and `?`.")]


def list_tools(
    category: Annotated[str | None, typer.Option(help="Only this category: io, web, math, text, …")] = None,
    provider: Annotated[
        Literal["builtin", "agent"] | None, typer.Option(help="Only built-in tools, or only agents.")
    ] = None,
    view: Annotated[str | None, typer.Option(help="Only what this view of the node includes.")] = None,
    wide: Wide = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the tools of all agents, as AGENT.TOOL, and the built-in tools.

    Example: a2a-fabric tools list --category math
    """
    tools = run_request(connect(url, token, view=view), lambda node: node.tools(category, provider), as_json=as_json)
    if as_json:
        print_json({"tools": tools, "count": len(tools)})
    elif tools:
        print_table(("tool", "state", "effects", "description"), [_build_tool_row(tool, wide) for tool in tools])
    else:
        remark("No tool matches. List all of them with: a2a-fabric tools list")


def _build_tool_row(tool: dict[str, Any], wide: bool) -> tuple[str, ...]:
    """An agent's tool is named as `tools disable` and views name it."""
    name = tool["tool_id"].removeprefix(AGENT_PREFIX) if tool["provider"] == "agent" else tool["tool_id"]
    description = tool["description"] if wide else clip_text(tool["description"], _MAX_DESCRIPTION)
    state = "changed" if tool.get("changed_since_approval") else "on" if tool["enabled"] else "off"
    return name, state, tool["side_effects"] or "", description


def disable_tools(
    tool: ToolPattern,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Leave tools of an agent out: they are neither listed nor called.

    Adds the pattern to `tools.exclude` in the agents file: through the node that runs with it, which tells its clients,
    or in the file itself if none runs. Undo it with: a2a-fabric tools enable AGENT.TOOL

    Example: a2a-fabric tools disable 'github.delete_*'
    """
    with report_errors(as_json=as_json):
        _switch(AgentEditing(url, token, agents or (), config), tool, on=False, as_json=as_json)


def enable_tools(
    tool: ToolPattern,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List tools again that were disabled.

    Removes the pattern from `tools.exclude` in the agents file.

    Example: a2a-fabric tools enable 'github.delete_*'
    """
    with report_errors(as_json=as_json):
        _switch(AgentEditing(url, token, agents or (), config), tool, on=True, as_json=as_json)


def _switch(editing: AgentEditing, tool: str, *, on: bool, as_json: bool) -> None:
    """Raises FabricError."""
    agent_id, pattern, switched = editing.switch_tool(tool, on=on)
    what = "enabled" if on else "disabled"
    matched = [] if on else list(switched.matched or ())
    if as_json:
        page = {"agent_id": agent_id, what: pattern, "matched": matched, "file": switched.path}
        print_json({**page, "changed": switched.is_changed, "node": editing.node_url})
        return
    for each in switched.remarks:
        remark(each)
    if not switched.is_changed:
        return
    print_line(f"{what}: {', '.join(f'{agent_id}.{name}' for name in matched or [pattern])}")
    editing.report_who_wrote(switched.path)
    if switched.matched is None and not on:
        remark("Without a node it is not known which tools match.")


def show_changes(
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Only this agent.", autocompletion=complete_agent_ids)
    ] = None,
    agents: AgentsFiles = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show how tools changed since they were approved, or first seen.

    Asks the running node, with its own key. With --agents, or if no node is running and `agents.yaml` is here, shows
    what `a2a-fabric mcp --agents FILE` remembers.

    Example: a2a-fabric tools diff github
    """
    with report_errors(as_json=as_json):
        page = ToolApproval(url, token, [*map(Path, agents or ())]).list_changes(agent)
    if as_json:
        print_json(page)
        return
    for entry in page["agents"]:
        for problem in entry["problems"]:
            remark(f"{entry['agent_id']}: {problem}")
        for change in entry["changes"]:
            for line in _render_change(entry["agent_id"], change):
                print_line(line)
        if entry["changes"]:
            remark(_summarize_changes(entry))
    if not any(entry["changes"] for entry in page["agents"]):
        remark("No tool has changed since it was approved.")


def _summarize_changes(entry: dict[str, Any]) -> str:
    agent_id, number = entry["agent_id"], len(entry["changes"])
    state = "held back until you approve the change" if entry["is_held"] else "listed as the agent describes it now"
    what = "1 changed tool is" if number == 1 else f"{number} changed tools are"
    return f"{agent_id}: {what} {state}. Accept with: a2a-fabric tools approve {agent_id}"


def approve_tools(
    agent: AgentId,
    tools: Annotated[list[str] | None, typer.Argument(metavar="TOOL", help="Default: all that changed.")] = None,
    agents: AgentsFiles = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Accept what changed tools of an agent say now.

    Look at the changes first: a2a-fabric tools diff AGENT

    Example: a2a-fabric tools approve github search
    """
    with report_errors(as_json=as_json):
        page = ToolApproval(url, token, [*map(Path, agents or ())]).approve(agent, tools or ())
    if as_json:
        print_json(page)
    elif page["approved"]:
        print_line(f"Approved: {', '.join(page['approved'])}")
    else:
        remark("No changed tool matches, so there was nothing to approve.")


def _render_change(agent_id: str, change: dict[str, Any]) -> Iterator[str]:
    before, after = (_render_text(change[key]) for key in ("approved", "current"))
    name = f"{agent_id}.{change['name']}"
    for line in difflib.unified_diff(before, after, f"{name} (approved)", f"{name} (now)", lineterm="", n=2):
        yield "".join(char if char.isprintable() or char == "\t" else "?" for char in line)


def _render_text(text: dict[str, Any]) -> list[str]:
    """The description, then everything else as JSON: the title, the side effects, the schema, the `_meta`."""
    others = {name: value for name, value in text.items() if name != "description"}
    formatted = msgspec.json.format(msgspec.json.encode(others, order="sorted"), indent=2).decode()
    return [*str(text.get("description", "")).splitlines(), *formatted.splitlines()]
