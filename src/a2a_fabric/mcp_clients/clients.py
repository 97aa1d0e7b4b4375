"""The supported MCP clients: where each keeps its configuration, and how it describes a server.

Every client can start a program; most can also use an address, each with its own way to read the token from a
variable instead of from the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Literal

import msgspec

ClientName = Literal[
    "claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "windsurf", "zed", "cline", "lmstudio",
    "opencode", "goose",
]  # fmt: skip
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
    other_paths: Callable[[Machine], tuple[PurePath, ...]] = (
        lambda machine: ()
    )  # used if a file is there and not at path
    key: str  # of the table of servers
    program_entry: Callable[[list[str], dict[str, str]], dict[str, Any]]
    address_entry: Callable[[str], dict[str, Any]] | None = None
    inputs: tuple[dict[str, Any], ...] = ()  # what an address needs in addition, in a list of the same file
    reference: str | None = None  # how the value of a variable is written in `env`; None: the client has no such form
    env_key: str = "env"
    name_key: str | None = None  # where an entry repeats its name
    listed_key: str | None = None  # of a list of variables to pass on, for clients that list names instead
    file_format: Literal["json", "toml", "yaml"] = "json"
    next_step: str = "Restart it to see the tools."

    def pass_variables(self, entry: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """The entry of a program that gets these variables of the client. Raises ValueError if it cannot."""
        if self.listed_key is not None:
            return {**entry, self.listed_key: [*entry.get(self.listed_key, ()), *names]}
        if self.reference is None:
            raise ValueError(f"{self.title} cannot pass variables on")
        references = {name: self.reference.format(name=name) for name in names}
        return {**entry, self.env_key: {**entry.get(self.env_key, {}), **references}}

    @property
    def can_pass_variables(self) -> bool:
        return self.reference is not None or self.listed_key is not None


def _make_program_entry(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
    return {**entry, "env": env} if env else entry


def _make_typed_program_entry(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {"type": "stdio", **_make_program_entry(command, env)}


def _make_bearer_headers(reference: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {reference}"}


def _make_goose_entry(kind: str) -> dict[str, Any]:
    return {"enabled": True, "type": kind, "description": "Agents and tools of Fabric", "timeout": 300}


CLIENTS: dict[ClientName, McpClient] = {
    "claude-code": McpClient(
        title="Claude Code",
        reference="${{{name}}}",
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
        reference="${{env:{name}}}",
        path=lambda machine: PurePath(machine.home, ".cursor", "mcp.json"),
        key="mcpServers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"url": url, "headers": _make_bearer_headers(f"${{env:{TOKEN_VARIABLE}}}")},
    ),
    "vscode": McpClient(
        title="VS Code",
        reference="${{env:{name}}}",
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
        listed_key="env_vars",
        path=lambda machine: PurePath(machine.environ.get("CODEX_HOME") or f"{machine.home}/.codex", "config.toml"),
        key="mcp_servers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"url": url, "bearer_token_env_var": TOKEN_VARIABLE},
        file_format="toml",
        next_step="See it with: codex mcp list",
    ),
    "gemini": McpClient(
        title="Gemini CLI",
        reference="${name}",
        path=lambda machine: PurePath(
            machine.environ.get("GEMINI_CLI_HOME") or machine.home, ".gemini", "settings.json"
        ),
        key="mcpServers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"httpUrl": url, "headers": _make_bearer_headers(f"${TOKEN_VARIABLE}")},
        next_step="See it, in a folder that Gemini CLI trusts, with: gemini mcp list",
    ),
    "windsurf": McpClient(
        title="Windsurf",
        reference="${{env:{name}}}",
        path=lambda machine: PurePath(machine.home, ".codeium", "windsurf", "mcp_config.json"),
        key="mcpServers",
        program_entry=_make_program_entry,
        address_entry=lambda url: {"serverUrl": url, "headers": _make_bearer_headers(f"${{env:{TOKEN_VARIABLE}}}")},
        next_step="See it in the MCP panel of Cascade, after a refresh.",
    ),
    "zed": McpClient(
        title="Zed",
        path=lambda machine: (
            machine.config_path("Zed", "settings.json")
            if machine.platform == "win32"
            else PurePath(
                (machine.environ.get("XDG_CONFIG_HOME") if machine.platform != "darwin" else None)
                or f"{machine.home}/.config",
                "zed",
                "settings.json",
            )
        ),
        key="context_servers",
        program_entry=_make_program_entry,
        next_step="See it in the settings of the Agent Panel.",
    ),
    "cline": McpClient(
        title="Cline",
        path=lambda machine: PurePath(
            machine.environ.get("CLINE_DIR") or f"{machine.home}/.cline", "data", "settings", "cline_mcp_settings.json"
        ),
        other_paths=lambda machine: (  # of the extension of VS Code before it shared its settings with the other Clines
            machine.config_path(
                "Code", "User", "globalStorage", "saoudrizwan.claude-dev", "settings", "cline_mcp_settings.json"
            ),
        ),
        key="mcpServers",
        program_entry=_make_program_entry,
        next_step="See it in Cline under MCP Servers.",
    ),
    "lmstudio": McpClient(
        title="LM Studio",
        path=lambda machine: PurePath(machine.home, ".lmstudio", "mcp.json"),
        other_paths=lambda machine: (
            PurePath(machine.home, ".cache", "lm-studio", "mcp.json"),
        ),  # of older installations
        key="mcpServers",
        program_entry=_make_program_entry,
    ),
    "opencode": McpClient(
        title="opencode",
        reference="{{env:{name}}}",
        env_key="environment",
        path=lambda machine: PurePath(
            machine.environ.get("XDG_CONFIG_HOME") or f"{machine.home}/.config", "opencode", "opencode.json"
        ),
        other_paths=lambda machine: (
            PurePath(machine.environ.get("XDG_CONFIG_HOME") or f"{machine.home}/.config", "opencode", "opencode.jsonc"),
        ),
        key="mcp",
        program_entry=lambda command, env: {
            "type": "local",
            "command": command,
            "enabled": True,
            **({"environment": env} if env else {}),
        },
        address_entry=lambda url: {
            "type": "remote",
            "url": url,
            "enabled": True,
            "headers": _make_bearer_headers(f"{{env:{TOKEN_VARIABLE}}}"),
        },
        next_step="See it with: opencode mcp list",
    ),
    "goose": McpClient(
        title="Goose",
        listed_key="env_keys",
        env_key="envs",
        name_key="name",
        path=lambda machine: (
            machine.config_path("Block", "goose", "config", "config.yaml")
            if machine.platform == "win32"
            else PurePath(machine.environ.get("XDG_CONFIG_HOME") or f"{machine.home}/.config", "goose", "config.yaml")
        ),
        key="extensions",
        program_entry=lambda command, env: {
            **_make_goose_entry("stdio"),
            "cmd": command[0],
            "args": command[1:],
            **({"envs": env} if env else {}),
        },
        address_entry=lambda url: {
            **_make_goose_entry("streamable_http"),
            "uri": url,
            "headers": _make_bearer_headers(f"${{{TOKEN_VARIABLE}}}"),
            "env_keys": [TOKEN_VARIABLE],
        },
        file_format="yaml",
        next_step="See it with: goose configure, or start a new session.",
    ),
}
