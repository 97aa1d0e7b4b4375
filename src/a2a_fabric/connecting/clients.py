"""The MCP clients we know: where each keeps its configuration, and how it writes down a server.

A program is started by every client; an address is understood by most, each with
its own way to take the token from a variable instead of from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal

import msgspec

ClientName = Literal["claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini"]
TOKEN_VARIABLE = "FABRIC_TOKEN"  # noqa: S105  # its name
TOKEN_INPUT = "fabric-token"  # noqa: S105  # its name


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What decides where a client keeps its files."""

    platform: str  # as sys.platform has it
    home: str
    environ: Mapping[str, str]

    def configuration(self, *parts: str) -> PurePath:
        """Where applications of this system keep their settings."""
        if self.platform == "darwin":
            return PurePath(self.home, "Library", "Application Support", *parts)
        if self.platform == "win32":
            return PurePath(self.environ.get("APPDATA") or f"{self.home}/AppData/Roaming", *parts)
        return PurePath(self.environ.get("XDG_CONFIG_HOME") or f"{self.home}/.config", *parts)


class Client(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    path: Callable[[Machine], PurePath]
    key: str  # of the table of servers
    program: Callable[[list[str], dict[str, str]], dict[str, Any]]
    address: Callable[[str], dict[str, Any]] | None = None
    inputs: tuple[dict[str, Any], ...] = ()  # what an address needs besides, in a list of the same file
    is_toml: bool = False
    then: str = "Restart it to see the tools."


def _program(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
    return {**entry, "env": env} if env else entry


def _typed_program(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {"type": "stdio", **_program(command, env)}


def _bearer(reference: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {reference}"}


CLIENTS: dict[ClientName, Client] = {
    "claude-code": Client(
        title="Claude Code",
        path=lambda machine: PurePath(machine.environ.get("CLAUDE_CONFIG_DIR") or machine.home, ".claude.json"),
        key="mcpServers",
        program=_typed_program,
        address=lambda url: {"type": "http", "url": url, "headers": _bearer(f"${{{TOKEN_VARIABLE}}}")},
        then="See it with: claude mcp list",
    ),
    "claude-desktop": Client(
        title="Claude Desktop",
        path=lambda machine: machine.configuration("Claude", "claude_desktop_config.json"),
        key="mcpServers",
        program=_program,
    ),
    "cursor": Client(
        title="Cursor",
        path=lambda machine: PurePath(machine.home, ".cursor", "mcp.json"),
        key="mcpServers",
        program=_program,
        address=lambda url: {"url": url, "headers": _bearer(f"${{env:{TOKEN_VARIABLE}}}")},
    ),
    "vscode": Client(
        title="VS Code",
        path=lambda machine: machine.configuration("Code", "User", "mcp.json"),
        key="servers",
        program=_typed_program,
        address=lambda url: {"type": "http", "url": url, "headers": _bearer(f"${{input:{TOKEN_INPUT}}}")},
        inputs=(
            {"type": "promptString", "id": TOKEN_INPUT, "description": "Key of the Fabric node", "password": True},
        ),
        then="See it with the command: MCP: List Servers",
    ),
    "codex": Client(
        title="Codex",
        path=lambda machine: PurePath(machine.environ.get("CODEX_HOME") or f"{machine.home}/.codex", "config.toml"),
        key="mcp_servers",
        program=_program,
        address=lambda url: {"url": url, "bearer_token_env_var": TOKEN_VARIABLE},
        is_toml=True,
        then="See it with: codex mcp list",
    ),
    "gemini": Client(
        title="Gemini CLI",
        path=lambda machine: PurePath(
            machine.environ.get("GEMINI_CLI_HOME") or machine.home, ".gemini", "settings.json"
        ),
        key="mcpServers",
        program=_program,
        address=lambda url: {"httpUrl": url, "headers": _bearer(f"${TOKEN_VARIABLE}")},
        then="See it, in a folder that Gemini CLI trusts, with: gemini mcp list",
    ),
}
