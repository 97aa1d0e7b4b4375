"""`a2a-fabric connect`: add this node to the configuration file of an MCP client."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from a2a_fabric.cli.files import read_text, replace_text, report_write_errors
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.state import StateFolder
from a2a_fabric.client.client import DEFAULT_URL
from a2a_fabric.config import read_environment
from a2a_fabric.connecting.client_config import ClientEntry, ConfigChange, add_entry, remove_entry, render_snippet
from a2a_fabric.connecting.clients import CLIENTS, TOKEN_VARIABLE, Machine, McpClient
from a2a_fabric.core.errors import suggest_nearest

_BACKUP = ".before-a2a-fabric"


def run(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"One of: {', '.join(CLIENTS)}.")],
    http: Annotated[
        bool, typer.Option("--http", help="The client connects to the node's address instead of starting a program.")
    ] = False,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The node's address; implies --http.")] = None,
    name: Annotated[str, typer.Option("--name", help="The name of the server in the client.")] = "fabric",
    path: Annotated[
        Path | None, typer.Option("--path", metavar="FILE", help="Another file than the client's own.")
    ] = None,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the entry; change nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Remove the entry again.")] = False,
    as_json: Json = False,
) -> None:
    """Add this node to the configuration of an MCP client.

    A copy of the original file is saved beside it. Running the command twice changes nothing.

    Example: a2a-fabric connect claude-code
    """
    environ = read_environment()
    mcp_client = _find_client(client)
    file = _resolve_file(mcp_client, path, environ)
    entry = _build_entry(
        mcp_client, name, _choose_url(http, url, environ), _build_command(config, agents or []), environ
    )
    if only_print:
        print_line(render_snippet(mcp_client, entry).rstrip("\n"))
        return
    text, backup_file = read_text(file) or "", file.with_name(file.name + _BACKUP)
    if undo:
        change = remove_entry(mcp_client, name, text, read_text(backup_file), str(file))
    else:
        change = add_entry(mcp_client, entry, text, str(file))
    backup = _apply_change(change, file, backup_file, is_undo=undo)
    if as_json:
        print_json({"ok": True, "client": client, "path": str(file), "action": change.action, "backup": backup})
    else:
        _print_change(mcp_client, change, file, backup, is_address="command" not in entry.value)


def _find_client(client: str) -> McpClient:
    if client not in CLIENTS:
        raise typer.BadParameter(f"no client '{client}'{suggest_nearest(client, CLIENTS)}; known: {', '.join(CLIENTS)}")
    return CLIENTS[client]


def _resolve_file(client: McpClient, path: Path | None, environ: Mapping[str, str]) -> Path:
    """Resolve symbolic links, so that replacing the file keeps them."""
    machine = Machine(platform=sys.platform, home=str(Path.home()), environ=environ)
    return (path or Path(client.path(machine))).expanduser().resolve()


def _choose_url(http: bool, url: str | None, environ: Mapping[str, str]) -> str | None:
    if url is None and not http:
        return None
    node = StateFolder(environ).read_node()
    base = url or environ.get("FABRIC_URL") or (node.url if node else DEFAULT_URL)
    return base if base.rstrip("/").endswith("/mcp") else f"{base.rstrip('/')}/mcp"


def _build_entry(
    client: McpClient, name: str, url: str | None, command: list[str], environ: Mapping[str, str]
) -> ClientEntry:
    if url is None:
        return ClientEntry(name=name, value=client.program_entry(command, _select_environment(environ)))
    if client.address_entry is None:
        raise typer.BadParameter(f"{client.title} only starts programs: leave out --http and --url")
    return ClientEntry(name=name, value=client.address_entry(url), inputs=client.inputs)


def _select_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that lead to this user's node; clients pass few variables on, and start programs in any folder."""
    folders = [name for name in ("FABRIC_HOME", "XDG_STATE_HOME") if environ.get(name)][:1]  # the first one wins
    variables = {name: str(Path(environ[name]).expanduser().absolute()) for name in folders}
    return {**variables, "FABRIC_URL": environ["FABRIC_URL"]} if environ.get("FABRIC_URL") else variables


def _build_command(config: Path | None, agents: list[Path]) -> list[str]:
    """The command that starts this program from any folder."""
    program_path = Path(sys.argv[0])
    program = [str(program_path.absolute())] if program_path.name == NAME else [sys.executable, "-m", "a2a_fabric"]
    options = ["--config", str(config.absolute())] if config else []
    for each in agents:
        options += ["--agents", str(each.absolute())]
    return [*program, "mcp", *options]


def _apply_change(change: ConfigChange, file: Path, backup: Path, *, is_undo: bool) -> str | None:
    """Write the change, and return the path of the backup if there is one."""
    if change.text is None:
        return None
    with report_write_errors(file):
        if is_undo:
            if change.text or backup.exists():
                replace_text(file, change.text, mode=0o600)
            else:  # there was no file before
                file.unlink()
            backup.unlink(missing_ok=True)
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not backup.exists():  # an existing backup is older, from before our first change
            shutil.copy2(file, backup)
        replace_text(file, change.text, mode=0o600)
    return str(backup) if backup.exists() else None


def _print_change(client: McpClient, change: ConfigChange, file: Path, backup: str | None, *, is_address: bool) -> None:
    print_line(f"{client.title}: {change.action} ({file})")
    if backup:
        remark(f"The original file is saved as {backup}")
    if change.action not in ("connected", "updated"):
        return
    if is_address and not client.inputs:
        remark(f"Set {TOKEN_VARIABLE} to the node's key where {client.title} runs.")
    elif is_address:
        remark(f"{client.title} asks for the node's key when it connects.")
    remark(client.next_step)
