"""`a2a-fabric import`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli import agents_file
from a2a_fabric.cli.options import Json
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.setup import AGENTS_FILE
from a2a_fabric.importing.agents_text import difference, extended
from a2a_fabric.importing.entries import Import, entries_of
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import read_servers
from a2a_fabric.registry.files import read_manifests


def run(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="mcp.json, claude_desktop_config.json, librechat.yaml …")
    ],
    agents: Annotated[Path, typer.Option("--agents", metavar="FILE", help="Where the agents are added.")] = Path(
        AGENTS_FILE
    ),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Add the MCP servers of other clients' files to agents.yaml.

    Shows what would be added and asks. Secrets are not copied: they become references to variables.

    Example: a2a-fabric import ~/.cursor/mcp.json
    """
    before = agents_file.read(agents)
    present = {each.agent_id: each for each in read_manifests(agents)} if before.strip() else {}
    found = [read_servers(path) for path in files]
    imported = entries_of(found, present, References(home=str(Path.home())))
    after = extended(before, imported.entries, str(agents))
    if as_json:
        _report(imported, agents, difference(before, after, agents.name), is_written=yes and after != before)
    else:
        _show(imported, difference(before, after, agents.name))
    if after != before and (yes or (not as_json and typer.confirm(f"Write {agents}?", default=True, err=True))):
        agents_file.write(agents, after)
        if not as_json:
            remark(f"Wrote {agents}. Check it with: a2a-fabric check")


def _show(imported: Import, diff: str) -> None:
    for each in imported.remarks:
        remark(f"Note: {each}")
    if not imported.entries:
        remark("Nothing to add.")
        return
    print_line(diff)
    if imported.variables:
        remark("\nSet these variables where the node runs (their values stay where they were):")
        width = max(len(each.name) for each in imported.variables)
        for variable in imported.variables:
            remark(f"  {variable.name.ljust(width)}  {variable.purpose}")
    remark("")


def _report(imported: Import, agents: Path, diff: str, *, is_written: bool) -> None:
    told: dict[str, Any] = msgspec.to_builtins(imported)
    print_json({"ok": True, "path": str(agents), "written": is_written, **told, "diff": diff})
