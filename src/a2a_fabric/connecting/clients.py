"""The supported MCP clients: where each keeps its configuration, and how it describes a server.

Every client can start a program; most can also use an address, each with its own way to read the token from a
variable instead of from the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal

import msgspec

ClientName = Literal["claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini"]
TOKEN_VARIABLE = "FABRIC_TOKEN"  # noqa: S105  # its name
TOKEN_INPUT = "fabric-token"  # noqa: S105  # its name


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide where a client keeps its files."""

    platform: str  # as sys.platform has it
    home: str
    environ: Mapping[str, str]

    def config_path(self, *parts: str) -> PurePath:
        """The path below the folder in which applications of this system keep their settings."""
        if self.platform == "darwin":
            return PurePath(self.home, "Library", "Application Support", *parts)
        if self.platform == "win32":
            return PurePath(self.environ.get("APPDATA") or f"{self.home}/AppData/Roaming", *parts)
        return PurePath(self.environ.get("XDG_CONFIG_HOME") or f"{self.home}/.config", *parts)


class McpClient(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    path: Callable[[Machine], PurePath]
    key: str  # of the table of servers
    program_entry: Callable[[list[str], dict[str, str]], dict[str, Any]]
    address_entry: Callable[[str], dict[str, Any]] | None = None
    inputs: tuple[dict[str, Any], ...] = ()  # what an address needs in addition, in a list of the same file
    is_toml: bool = False
    next_step: str = "Restart it to see the tools."


def _make_program_entry(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
    return {**entry, "env": env} if env else entry


def _make_typed_program_entry(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {"type": "stdio", **_make_program_entry(command, env)}


def _make_bearer_headers(reference: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {reference}"}


CLIENTS: dict[ClientName, McpClient] = {
    "claude-code": McpClient(
        title="Claude Code",
        path=lambda machine: PurePath(machine.environ.get("CLAUDE_CONFIG_DIR") or machine.home, ".claude.json"),
        key="mcpServers",
        program_entry=_make_typed_program_entry,
        address_entry=lambda url: {
            "type": "http",
            "url": url,
            "headers": _make_bearer_headers(f"${{{TOKEN_VARIABLE}}}"),
        },
        next_step="See it with: claude mcp list",
    ),
    "claude-desktop": McpClient(
        title="Claude Desktop",
        path=lambda machine: machine.config_path("Claude", "claude_desktop_config.json"),
        key="mcpServers",
        program_entry=_make_program_entry,
    ),
    "cursor": McpClient(
        title="Cursor",
        path=lambda machine: PurePath(machine.home, ".cursor", "mcp.json"),
        key="mcpServers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"url": url, "headers": _make_bearer_headers(f"${{env:{TOKEN_VARIABLE}}}")},
    ),
    "vscode": McpClient(
        title="VS Code",
        path=lambda machine: machine.config_path("Code", "User", "mcp.json"),
        key="servers",
        program_entry=_make_typed_program_entry,
        address_entry=lambda url: {
            "type": "http",
            "url": url,
            "headers": _make_bearer_headers(f"${{input:{TOKEN_INPUT}}}"),
        },
        inputs=(
            {"type": "promptString", "id": TOKEN_INPUT, "description": "Key of the Fabric node", "password": True},
        ),
        next_step="See it with the command: MCP: List Servers",
    ),
    "codex": McpClient(
        title="Codex",
        path=lambda machine: PurePath(machine.environ.get("CODEX_HOME") or f"{machine.home}/.codex", "config.toml"),
        key="mcp_servers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"url": url, "bearer_token_env_var": TOKEN_VARIABLE},
        is_toml=True,
        next_step="See it with: codex mcp list",
    ),
    "gemini": McpClient(
        title="Gemini CLI",
        path=lambda machine: PurePath(
            machine.environ.get("GEMINI_CLI_HOME") or machine.home, ".gemini", "settings.json"
        ),
        key="mcpServers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"httpUrl": url, "headers": _make_bearer_headers(f"${TOKEN_VARIABLE}")},
        next_step="See it, in a folder that Gemini CLI trusts, with: gemini mcp list",
    ),
}
