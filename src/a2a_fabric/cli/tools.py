"""The tools of a node: the commands of `a2a-fabric tools`."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from a2a_fabric.cli.agents import AgentId
from a2a_fabric.cli.connection import complete_agent_ids, connect, run_request
from a2a_fabric.cli.node_setup import plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json, Token, Url, Wide
from a2a_fabric.cli.output import clip_text, print_json, print_line, remark, report_errors
from a2a_fabric.cli.tables import print_table
from a2a_fabric.cli.tool_approval import ToolApproval
from a2a_fabric.config import read_environment
from a2a_fabric.core.agent import Manifest, ToolChoice, normalize_name
from a2a_fabric.core.errors import AgentNotFound, BadInput, FabricError, suggest_for_pattern
from a2a_fabric.importing.agents_yaml import set_excluded_tools
from a2a_fabric.importing.files import read_text, replace_text
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.registry.tool_choice import is_listed, matches_any

_AGENT_PREFIX = "agent."  # of an agent's tool in lists for programs
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
    name = tool["tool_id"].removeprefix(_AGENT_PREFIX) if tool["provider"] == "agent" else tool["tool_id"]
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

    Adds the pattern to `tools.exclude` in the agents file. A running node notices at once and tells its clients.
    Undo it with: a2a-fabric tools enable AGENT.TOOL

    Example: a2a-fabric tools disable 'github.delete_*'
    """
    with report_errors(as_json=as_json):
        path, manifest, pattern = _find_agent_of(tool, config, [*map(Path, agents or ())])
        known = _list_known_tools(manifest.agent_id, url, token)
        matched = [name for name in known or () if matches_any(name, (pattern,))]
        excluded = (manifest.tools or ToolChoice()).exclude
        if normalize_name(pattern) in map(normalize_name, excluded):
            remark(f"{tool} is disabled already.")
        elif known and not matched:
            suggestion = suggest_for_pattern(pattern, known)
            raise BadInput(f"No tool of '{manifest.agent_id}' matches '{pattern}', so nothing was changed{suggestion}")
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
        path, manifest, pattern = _find_agent_of(tool, config, [*map(Path, agents or ())])
        excluded = (manifest.tools or ToolChoice()).exclude
        kept = [each for each in excluded if normalize_name(each) != normalize_name(pattern)]
        if covering := [each for each in kept if matches_any(pattern, (each,))]:
            raise BadInput(
                f"'{pattern}' is left out by '{covering[0]}', so nothing was changed: enable that pattern, then "
                "disable the tools that you do not want"
            )
        if len(kept) == len(excluded):
            remark(f"{tool} was not disabled. '{manifest.agent_id}' leaves out: {', '.join(excluded) or 'nothing'}")
        else:
            _write_excluded(path, manifest.agent_id, kept)
        if manifest.tools is not None and manifest.tools.include is not None and not is_listed(manifest.tools, pattern):
            remark(f"`tools.include` of '{manifest.agent_id}' lists other tools only, so {tool} stays left out.")
        _report_edit(path, manifest.agent_id, "enabled", pattern, [], is_known=True, as_json=as_json)


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


def _find_agent_of(tool: str, config: Path | None, agents: list[Path] | None) -> tuple[Path, Manifest, str]:
    """The file and the agent of AGENT.TOOL, and the pattern. Raises AgentNotFound, BadInput, ConfigError."""
    setup = plan_setup(config, agents or [], None, read_environment())
    candidates = [(path, manifest) for path in setup.manifest_files for manifest in read_manifests(path)]
    found = [each for each in candidates if tool.startswith(f"{each[1].agent_id}.")]
    if not found and tool.startswith(_AGENT_PREFIX):
        return _find_agent_of(tool.removeprefix(_AGENT_PREFIX), config, agents)
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
    """The description, then everything else as JSON: the title, the side effects, the schema, the `_meta`."""
    others = {name: value for name, value in text.items() if name != "description"}
    formatted = msgspec.json.format(msgspec.json.encode(others, order="sorted"), indent=2).decode()
    return [*str(text.get("description", "")).splitlines(), *formatted.splitlines()]
