"""`a2a-fabric import`: the MCP servers in other clients' files become agents of this node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.mcp_check import CheckFailed, check_server, find_program, print_contents
from a2a_fabric.cli.node_setup import AGENTS_FILE, ENV_FILE
from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import print_json, print_line, remark, report_errors
from a2a_fabric.cli.program import NAME
from a2a_fabric.config import read_environment
from a2a_fabric.doors.mcp.tool_list import ToolListSettings
from a2a_fabric.importing.agents_yaml import add_entries, unified_diff
from a2a_fabric.importing.files import read_text, replace_text
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import ImportResult, build_entries, read_servers
from a2a_fabric.registry.sources.files import read_manifests


def import_servers(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="mcp.json, claude_desktop_config.json, librechat.yaml …")
    ],
    agents: Annotated[Path, typer.Option("--agents", metavar="FILE", help="The file to add to.")] = Path(AGENTS_FILE),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Start the agents of the file, and say what clients will see.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Add the MCP servers of other clients' files to agents.yaml.

    Shows the change and asks before it writes. Secrets are not copied: they become references to variables.

    Example: a2a-fabric import ~/.cursor/mcp.json
    """
    with report_errors(as_json=as_json):
        before = read_text(agents) or ""
        present = {each.agent_id: each for each in read_manifests(agents)} if before.strip() else {}
        servers = [read_servers(path) for path in files]
        imported = build_entries(servers, present, References(home=str(Path.home())))
        after = add_entries(before, imported.entries, str(agents))
        diff = unified_diff(before, after, agents.name)
        if as_json and yes and after != before:
            replace_text(agents, after)
    if as_json:
        fields: dict[str, Any] = msgspec.to_builtins(imported)
        print_json({"ok": True, "path": str(agents), "written": yes and after != before, **fields, "diff": diff})
        return
    _print_import(imported, diff)
    if after != before and (yes or typer.confirm(f"Write {agents}?", default=True, err=True)):
        replace_text(agents, after)
        remark(f"Wrote {agents}. Check it with: a2a-fabric check")
        if check:
            _look_at_agents(agents)


def _print_import(imported: ImportResult, diff: str) -> None:
    for each in imported.remarks:
        remark(f"Note: {each}")
    if not imported.entries:
        remark("Nothing to add.")
        return
    print_line(diff)
    limit = ToolListSettings().max_listed
    remark(
        f"\nMCP clients of the node are shown all tools of these servers, up to {limit} (max_listed of the door mcp)."
    )
    remark("When more are there, the node and `a2a-fabric agents` say how many are hidden.")
    if imported.variables:
        remark(f"\nSet these variables where the node runs, or in {ENV_FILE} beside that file; they were not copied:")
        width = max(len(each.name) for each in imported.variables)
        for variable in imported.variables:
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
