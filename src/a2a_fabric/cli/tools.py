"""The tools of a node: the commands of `a2a-fabric tools`."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import msgspec
import typer

from a2a_fabric.cli.connection import connect, request_page, run_request
from a2a_fabric.cli.files import read_text, replace_text
from a2a_fabric.cli.node_setup import plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, print_table, remark, report_errors
from a2a_fabric.config import read_environment
from a2a_fabric.core.agent import Manifest, ToolChoice, normalize_name
from a2a_fabric.core.errors import AgentNotFound, BadInput, FabricError
from a2a_fabric.importing.agents_yaml import set_excluded_tools
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.registry.tool_choice import matches_any

ToolPattern = Annotated[str, typer.Argument(metavar="AGENT.TOOL", help="The tool may hold `*` and `?`.")]


def list_tools(
    category: Annotated[str | None, typer.Option(help="Only this category: io, web, math, text, …")] = None,
    provider: Annotated[
        Literal["builtin", "agent"] | None, typer.Option(help="Only built-in tools, or only agents.")
    ] = None,
    view: Annotated[str | None, typer.Option(help="Only what this view of the node includes.")] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the built-in tools, and the agents as tools.

    Example: a2a-fabric tools list --category math
    """
    tools = run_request(connect(url, token, view=view), lambda node: node.tools(category, provider), as_json=as_json)
    if as_json:
        print_json({"tools": tools, "count": len(tools)})
    elif tools:
        print_table(("tool", "state", "effects", "description"), map(_build_tool_row, tools))
    else:
        remark("No tool matches. List all of them with: a2a-fabric tools list")


def _build_tool_row(tool: dict[str, Any]) -> tuple[str, ...]:
    return tool["tool_id"], "on" if tool["enabled"] else "off", tool["side_effects"] or "", tool["description"]


def disable_tools(
    tool: ToolPattern,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Leave tools of an agent out: they are neither listed nor called.

    Adds the pattern to `tools.exclude` in the agents file. A running node notices at once and tells its clients.
    Undo it with: a2a-fabric tools enable AGENT.TOOL

    Example: a2a-fabric tools disable 'github.delete_*'
    """
    with report_errors(as_json=as_json):
        path, manifest, pattern = _find_agent_of(tool, config, agents)
        known = _list_known_tools(manifest.agent_id, url, token)
        matched = [name for name in known or () if matches_any(name, (pattern,))]
        excluded = (manifest.tools or ToolChoice()).exclude
        if normalize_name(pattern) in map(normalize_name, excluded):
            remark(f"{tool} is disabled already.")
        elif known and not matched:
            listed = ", ".join(known[:10])
            raise BadInput(
                f"No tool of '{manifest.agent_id}' matches '{pattern}', so nothing was changed. It has: {listed}"
            )
        else:
            _write_excluded(path, manifest.agent_id, (*excluded, pattern))
        _report_edit(path, manifest.agent_id, "disabled", pattern, matched, is_known=known is not None, as_json=as_json)


def enable_tools(
    tool: ToolPattern,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    as_json: Json = False,
) -> None:
    """List tools again that were disabled.

    Removes the pattern from `tools.exclude` in the agents file.

    Example: a2a-fabric tools enable 'github.delete_*'
    """
    with report_errors(as_json=as_json):
        path, manifest, pattern = _find_agent_of(tool, config, agents)
        excluded = (manifest.tools or ToolChoice()).exclude
        kept = [each for each in excluded if normalize_name(each) != normalize_name(pattern)]
        if len(kept) == len(excluded):
            covering = [each for each in excluded if matches_any(pattern, (each,))]
            reason = (
                f"it is covered by '{covering[0]}'; enable that pattern, then disable the tools that you do not want"
                if covering
                else f"'{manifest.agent_id}' excludes: {', '.join(excluded) or 'nothing'}"
            )
            raise BadInput(f"'{pattern}' is not in tools.exclude, so nothing was changed: {reason}")
        _write_excluded(path, manifest.agent_id, kept)
        _report_edit(path, manifest.agent_id, "enabled", pattern, [], is_known=True, as_json=as_json)


def show_changes(
    agent: Annotated[str | None, typer.Argument(metavar="[AGENT]", help="Only this agent.")] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show how tools changed since they were approved, or first seen.

    Needs a running node and its own key.

    Example: a2a-fabric tools diff github
    """
    with report_errors(as_json=as_json):
        path = "/operator/tools" + (f"?{urlencode({'agent': agent})}" if agent else "")
        page = request_page(url, token, "GET", path)
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
            state = "held back until you approve them" if entry["is_held"] else "listed as they are now"
            remark(f"{entry['agent_id']}: {len(entry['changes'])} changed tools are {state}. Accept them with: "
                   f"a2a-fabric tools approve {entry['agent_id']}")  # fmt: skip
    if not any(entry["changes"] for entry in page["agents"]):
        remark("No tool has changed since it was approved.")


def approve_tools(
    agent: Annotated[str, typer.Argument(metavar="AGENT")],
    tools: Annotated[list[str] | None, typer.Argument(metavar="[TOOL]...", help="Default: all that changed.")] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Accept what changed tools of an agent say now.

    Look at the changes first: a2a-fabric tools diff AGENT

    Example: a2a-fabric tools approve github search
    """
    with report_errors(as_json=as_json):
        body = {"agent_id": agent, "tools": tools or []}
        page = request_page(url, token, "POST", "/operator/tools/approve", body)
    if as_json:
        print_json(page)
    elif page["approved"]:
        print_line(f"Approved: {', '.join(page['approved'])}")
    else:
        remark("No changed tool matches, so there was nothing to approve.")


def _find_agent_of(tool: str, config: Path | None, agents: list[Path] | None) -> tuple[Path, Manifest, str]:
    """The file and the agent of AGENT.TOOL, and the pattern. Raises AgentNotFound, BadInput, ConfigError."""
    setup = plan_setup(config, agents or [], None, read_environment())
    candidates = [(path, manifest) for path in setup.agents_files for manifest in read_manifests(path)]
    found = [each for each in candidates if tool.startswith(f"{each[1].agent_id}.")]
    if not found:
        if "." not in tool:
            raise BadInput(f"'{tool}' is not AGENT.TOOL, for example github.delete_repo")
        raise AgentNotFound(tool.partition(".")[0], [manifest.agent_id for _, manifest in candidates])
    path, manifest = max(found, key=lambda each: len(each[1].agent_id))
    pattern = tool[len(manifest.agent_id) + 1 :]
    if not pattern:
        raise BadInput(f"'{tool}' names no tool; all of them are {manifest.agent_id}.*")
    return path, manifest, pattern


def _list_known_tools(agent_id: str, url: str | None, token: str | None) -> list[str] | None:
    """The tools of the agent at the running node; None if no node answers."""
    try:
        described = _describe_agent(agent_id, url, token)
    except FabricError:
        return None
    return [capability["name"] for capability in described.get("capabilities", [])]


def _describe_agent(agent_id: str, url: str | None, token: str | None) -> dict[str, Any]:
    """Raises FabricError."""

    async def exchange() -> dict[str, Any]:
        async with connect(url, token, 5.0) as node:
            return await node.describe(agent_id)

    return asyncio.run(exchange())


def _write_excluded(path: Path, agent_id: str, patterns: Sequence[str]) -> None:
    text = read_text(path) or ""
    replace_text(path, set_excluded_tools(text, agent_id, patterns, str(path)))


def _report_edit(
    path: Path, agent_id: str, what: str, pattern: str, matched: list[str], *, is_known: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"agent_id": agent_id, what: pattern, "matched": matched, "file": str(path)})
        return
    if matched:
        print_line(f"{what}: {', '.join(f'{agent_id}.{name}' for name in matched)}")
    else:
        print_line(f"{what}: {agent_id}.{pattern}")
    if not is_known:
        remark(f"No node answers, so it is not known which tools match. {path} takes effect when a node reads it.")


def _render_change(agent_id: str, change: dict[str, Any]) -> Iterator[str]:
    before, after = (_render_text(change[key]) for key in ("approved", "current"))
    name = f"{agent_id}.{change['name']}"
    for line in difflib.unified_diff(before, after, f"{name} (approved)", f"{name} (now)", lineterm="", n=2):
        yield "".join(char if char.isprintable() or char == "\t" else "?" for char in line)


def _render_text(text: dict[str, Any]) -> list[str]:
    schema = msgspec.json.format(msgspec.json.encode(text.get("input_schema"), order="sorted"), indent=2).decode()
    return [*str(text.get("description", "")).splitlines(), *schema.splitlines()]
