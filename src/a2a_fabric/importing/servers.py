"""Reads the MCP servers from a client's configuration file.

    {"mcpServers": {NAME: {"command", "args", "env"} or {"url", "headers"}}}   Claude, Cursor, Gemini, LibreChat (YAML)
    {"servers": {NAME: …}} or {"mcp": {"servers": {NAME: …}}}                  VS Code
    [mcp_servers.NAME]                                                         Codex (TOML)

A server that cannot be used is skipped with a remark; only an unreadable file is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc
from a2a_fabric.yamlfile import YAMLFile

_URLS = ("url", "httpUrl", "serverUrl", "uri")
_KNOWN_KEYS = {*_URLS, "command", "args", "env", "headers", "http_headers", "cwd", "type", "transport", "description",
         "disabled", "enabled", "isActive"}  # fmt: skip
_MAX_FILE_BYTES = 16 * 1024 * 1024


class ClientServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server, as its client reaches it."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    description: str = ""


class ParsedServers(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[ClientServer, ...]
    remarks: tuple[str, ...] = ()


def read_servers(path: Path) -> ParsedServers:
    """Raises ConfigError if the file cannot be read or holds no servers."""
    return parse_servers(_load_file(path), str(path))


def parse_servers(value: Any, name: str) -> ParsedServers:
    tables = _find_table(value)
    if tables is None:
        raise ConfigError(f"{name}: it has no `mcpServers` (or `servers`)")
    servers: list[ClientServer] = []
    remarks: list[str] = []
    for key, entry in tables.items():
        server = _parse_server(str(key), entry, remarks)
        if server is not None:
            servers.append(server)
    return ParsedServers(servers=tuple(servers), remarks=tuple(remarks))


def _load_file(path: Path) -> Any:
    if path.suffix.lower() in (".yaml", ".yml"):
        return YAMLFile.read(path).value
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if path.suffix.lower() != ".toml":
        return jsonc.parse(text, str(path))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from exc


def _find_table(value: Any) -> Mapping[str, Any] | None:
    if not isinstance(value, dict):
        return None
    inner = value.get("mcp")
    candidates = [value.get("mcpServers"), value.get("servers"), value.get("mcp_servers")]
    if isinstance(inner, dict):
        candidates += [inner.get("servers"), inner.get("mcpServers")]
    return next((candidate for candidate in candidates if isinstance(candidate, dict)), None)


def _parse_server(name: str, entry: Any, remarks: list[str]) -> ClientServer | None:
    if not isinstance(entry, dict):
        remarks.append(f"{name}: skipped, it is not a table")
        return None
    if entry.get("disabled") is True or entry.get("enabled") is False or entry.get("isActive") is False:
        remarks.append(f"{name}: skipped, it is disabled")
        return None
    kind = str(entry.get("type") or entry.get("transport") or "").lower()
    url = next((entry[key] for key in _URLS if isinstance(entry.get(key), str) and entry[key]), None)
    if kind in ("ws", "websocket") or (url and not url.startswith(("http://", "https://", "${", "$"))):
        remarks.append(f"{name}: skipped, only stdio and HTTP servers can be used")
        return None
    if ignored := sorted(str(key) for key in entry.keys() - _KNOWN_KEYS):
        remarks.append(f"{name}: ignored {', '.join(ignored)}")
    if url is not None:
        if kind == "sse" or url.rstrip("/").endswith("/sse"):
            remarks.append(f"{name}: HTTP+SSE is the transport of 2024; Streamable HTTP is used instead")
        headers = {**_to_strings(entry.get("headers")), **_to_strings(entry.get("http_headers"))}
        return ClientServer(name=name, url=url, headers=headers, description=_to_string(entry.get("description")))
    return _parse_program(name, entry, remarks)


def _parse_program(name: str, entry: dict[str, Any], remarks: list[str]) -> ClientServer | None:
    command, args = entry.get("command"), entry.get("args") or []
    command_words = [command] if isinstance(command, str) else command
    if not isinstance(command_words, list) or not isinstance(args, list) or not command_words or not all(command_words):
        remarks.append(f"{name}: skipped, it has neither a command nor a url")
        return None
    return ClientServer(
        name=name,
        command=tuple(str(word) for word in (*command_words, *args)),
        env=_to_strings(entry.get("env")),
        cwd=_to_string(entry.get("cwd")) or None,
        description=_to_string(entry.get("description")),
    )


def _to_strings(table: Any) -> dict[str, str]:
    """Names and values as strings; a number or a boolean becomes its JSON text."""
    if not isinstance(table, dict):
        return {}
    return {
        str(name): value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in table.items()
        if value is not None
    }


def _to_string(value: Any) -> str:
    return value if isinstance(value, str) else ""
