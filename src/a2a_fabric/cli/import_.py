"""`a2a-fabric import`: add the MCP servers of other clients' files to agents.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.files import read_text, replace_text
from a2a_fabric.cli.node_setup import AGENTS_FILE
from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.importing.agents import ImportResult, build_entries
from a2a_fabric.importing.agents_yaml import add_entries, unified_diff
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import read_servers
from a2a_fabric.registry.sources.files import read_manifests


def run(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="mcp.json, claude_desktop_config.json, librechat.yaml …")
    ],
    agents: Annotated[Path, typer.Option("--agents", metavar="FILE", help="The file to add to.")] = Path(AGENTS_FILE),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Add the MCP servers of other clients' files to agents.yaml.

    Shows the change and asks before it writes. Secrets are not copied: they become references to variables.

    Example: a2a-fabric import ~/.cursor/mcp.json
    """
    before = read_text(agents) or ""
    present = {each.agent_id: each for each in read_manifests(agents)} if before.strip() else {}
    servers = [read_servers(path) for path in files]
    imported = build_entries(servers, present, References(home=str(Path.home())))
    after = add_entries(before, imported.entries, str(agents))
    if as_json:
        _print_report(imported, agents, unified_diff(before, after, agents.name), is_written=yes and after != before)
    else:
        _print_import(imported, unified_diff(before, after, agents.name))
    if after != before and (yes or (not as_json and typer.confirm(f"Write {agents}?", default=True, err=True))):
        replace_text(agents, after)
        if not as_json:
            remark(f"Wrote {agents}. Check it with: a2a-fabric check")


def _print_import(imported: ImportResult, diff: str) -> None:
    for each in imported.remarks:
        remark(f"Note: {each}")
    if not imported.entries:
        remark("Nothing to add.")
        return
    print_line(diff)
    if imported.variables:
        remark("\nSet these variables where the node runs; their values were not copied:")
        width = max(len(each.name) for each in imported.variables)
        for variable in imported.variables:
            remark(f"  {variable.name.ljust(width)}  {variable.purpose}")
    remark("")


def _print_report(imported: ImportResult, agents: Path, diff: str, *, is_written: bool) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(imported)
    print_json({"ok": True, "path": str(agents), "written": is_written, **fields, "diff": diff})
