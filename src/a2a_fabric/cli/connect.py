"""`a2a-fabric connect`: add this Fabric to the configuration file of an MCP client."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from a2a_fabric.cli.options import AgentsFiles, ConfigFile, Json
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.cli.state import StateFolder
from a2a_fabric.client.client import DEFAULT_URL
from a2a_fabric.config import read_environment
from a2a_fabric.connecting.client_config import ClientEntry, ConfigChange, add_entry, remove_entry, render_snippet
from a2a_fabric.connecting.clients import CLIENTS, TOKEN_VARIABLE, Machine, McpClient
from a2a_fabric.core.errors import ConfigError, suggest_nearest

_BACKUP = ".before-a2a-fabric"


def run(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"One of: {', '.join(CLIENTS)}.")],
    http: Annotated[bool, typer.Option("--http", help="By address instead of by a program that it starts.")] = False,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The node's address; implies --http.")] = None,
    name: Annotated[str, typer.Option("--name", help="What the client calls it.")] = "fabric",
    path: Annotated[Path | None, typer.Option("--path", metavar="FILE", help="Instead of the client's own.")] = None,
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the entry; change nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take our entry out again.")] = False,
    as_json: Json = False,
) -> None:
    """Add this Fabric to the configuration of an MCP client.

    The file as it was is kept beside it. Doing it twice changes nothing.

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
    change = (
        _remove_entry(mcp_client, name, file)
        if undo
        else add_entry(mcp_client, entry, _read_file(file) or "", str(file))
    )
    backup = _apply_change(change, file, is_undo=undo)
    if as_json:
        print_json({"ok": True, "client": client, "path": str(file), "action": change.action, "backup": backup})
    else:
        _print_change(mcp_client, change, file, backup, is_address="command" not in entry.value)


def _find_client(client: str) -> McpClient:
    if client not in CLIENTS:
        raise typer.BadParameter(f"no client '{client}'{suggest_nearest(client, CLIENTS)}; known: {', '.join(CLIENTS)}")
    return CLIENTS[client]


def _resolve_file(client: McpClient, path: Path | None, environ: Mapping[str, str]) -> Path:
    """Where the file really is: a link stays a link."""
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
    """What finds this user's node. Clients hand few variables on to what they start, and start it anywhere."""
    folders = [name for name in ("FABRIC_HOME", "XDG_STATE_HOME") if environ.get(name)][:1]  # the first one decides
    variables = {name: str(Path(environ[name]).expanduser().absolute()) for name in folders}
    return {**variables, "FABRIC_URL": environ["FABRIC_URL"]} if environ.get("FABRIC_URL") else variables


def _build_command(config: Path | None, agents: list[Path]) -> list[str]:
    """This very program, wherever the client starts it from."""
    program_path = Path(sys.argv[0])
    program = [str(program_path.absolute())] if program_path.name == NAME else [sys.executable, "-m", "a2a_fabric"]
    options = ["--config", str(config.absolute())] if config else []
    for each in agents:
        options += ["--agents", str(each.absolute())]
    return [*program, "mcp", *options]


def _remove_entry(client: McpClient, name: str, file: Path) -> ConfigChange:
    before = _read_file(file.with_name(file.name + _BACKUP))
    return remove_entry(client, name, _read_file(file) or "", before, str(file))


def _apply_change(change: ConfigChange, file: Path, *, is_undo: bool) -> str | None:
    """Write the change; returns where the file as it was is kept."""
    backup = file.with_name(file.name + _BACKUP)
    if change.text is None:
        return None
    try:
        if is_undo:
            if change.text or backup.exists():
                _write_file(file, change.text)
            else:  # there was none before us
                file.unlink()
            backup.unlink(missing_ok=True)
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not backup.exists():  # the oldest is the one without us
            shutil.copy2(file, backup)
        _write_file(file, change.text)
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be written: {exc.strerror}") from exc
    return str(backup) if backup.exists() else None


def _write_file(file: Path, text: str) -> None:
    """Whole or not at all; as readable by others as it was, a new one by nobody."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(text, "utf-8")
    if file.exists():
        shutil.copymode(file, draft)
    draft.replace(file)


def _read_file(file: Path) -> str | None:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def _print_change(client: McpClient, change: ConfigChange, file: Path, backup: str | None, *, is_address: bool) -> None:
    print_line(f"{client.title}: {change.action} ({file})")
    if backup:
        remark(f"The file as it was: {backup}")
    if change.action not in ("connected", "updated"):
        return
    if is_address and not client.inputs:
        remark(f"Set {TOKEN_VARIABLE} to the node's key where {client.title} runs.")
    elif is_address:
        remark(f"{client.title} asks for the node's key when it connects.")
    remark(client.next_step)
