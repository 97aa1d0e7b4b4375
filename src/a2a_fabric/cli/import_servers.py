"""`a2a-fabric import`: the MCP servers in other clients' files become agents of this node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from a2a_fabric.admin.agent_changes import AgentPlan, PlanArguments
from a2a_fabric.cli.agent_editing import AgentEditing
from a2a_fabric.cli.mcp_check import CheckFailed, check_server, find_program, print_contents
from a2a_fabric.cli.node_setup import ENV_FILE
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.config import read_environment
from a2a_fabric.doors.mcp.tool_list import ToolListSettings
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import build_entries, keep_used_variables, read_servers


def import_servers(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="mcp.json, claude_desktop_config.json, librechat.yaml …")
    ],
    agents: Annotated[
        Path | None,
        typer.Option("--agents", metavar="FILE", help="The file to add to. Default: that of the node, or agents.yaml."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Start the agents of the file, and say what clients will see.")
    ] = True,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Add the MCP servers of other clients' files to agents.yaml.

    Shows the change and asks before it is written: by the node that runs with the file, or that --url names; without
    one, by this command. Secrets are not copied: they become references to variables.

    Example: a2a-fabric import ~/.cursor/mcp.json
    """
    with report_errors(as_json=as_json):
        references = References(home=str(Path.home()))
        imported = build_entries([read_servers(path) for path in files], {}, references)
        editing = AgentEditing(url, token, [agents] if agents else ())
        plan = editing.plan(PlanArguments(entries=imported.entries)) if imported.entries else AgentPlan()
        plan = msgspec.structs.replace(
            plan,
            remarks=(*imported.remarks, *plan.remarks),
            variables=keep_used_variables(imported.variables, plan.entries),
        )
        if as_json:
            is_written = yes and bool(plan.entries)
            if is_written:
                editing.add(plan)
            _print_report(plan, editing, is_written=is_written)
            return
        _print_plan(plan)
        if plan.entries and (yes or typer.confirm(f"Write {plan.path}?", default=True, err=True)):
            editing.add(plan)
            editing.report_who_wrote(plan.path)
            if editing.node_url is not None:
                remark("See what it offers with: a2a-fabric agents")
            elif check:
                _look_at_agents(Path(plan.path))


def _print_report(plan: AgentPlan, editing: AgentEditing, *, is_written: bool) -> None:
    page = {"ok": True, "path": plan.path, "written": is_written, "entries": plan.entries, "diff": plan.diff}
    print_json({**page, "variables": plan.variables, "remarks": plan.remarks, "node": editing.node_url})


def _print_plan(plan: AgentPlan) -> None:
    for each in plan.remarks:
        remark(f"Note: {each}")
    if not plan.entries:
        remark("Nothing to add.")
        return
    print_line(plan.diff)
    limit = ToolListSettings().max_listed
    remark(
        f"\nMCP clients of the node are shown all tools of these servers, up to {limit} (max_listed of the door mcp)."
    )
    remark("When more are there, the node and `a2a-fabric agents` say how many are hidden.")
    if plan.variables:
        remark(f"\nSet these variables where the node runs, or in {ENV_FILE} beside that file; they were not copied:")
        width = max(len(each.name) for each in plan.variables)
        for variable in plan.variables:
            remark(f"  {variable.name.ljust(width)}  {variable.purpose}")
    remark("")


def _look_at_agents(agents: Path) -> None:
    """Say how many tools of these agents MCP clients will see, and how many are not listed."""
    environ = read_environment()
    program = find_program()
    variables = {
        name: value for name, value in environ.items() if not name.startswith("FABRIC_") or name == "FABRIC_HOME"
    }
    command = [*program, "mcp", "--alone", "--agents", str(agents.absolute())]
    try:
        contents = asyncio.run(check_server(command, environ, variables, Path.cwd()))
    except CheckFailed as error:
        remark(f"The agents could not be started for a look: {error.message}")
        return
    print_contents("MCP clients of this node will see", contents)
    remark(f"Connect one with: {NAME} connect CLIENT --replace")
