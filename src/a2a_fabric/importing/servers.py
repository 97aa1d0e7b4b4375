"""The MCP servers of a client's file, whichever client it is.

    {"mcpServers": {NAME: {"command", "args", "env"} or {"url", "headers"}}}   Claude, Cursor, Gemini, LibreChat (YAML)
    {"servers": {NAME: …}} or {"mcp": {"servers": {NAME: …}}}                  VS Code
    [mcp_servers.NAME]                                                         Codex (TOML)

What cannot be used is left out with a remark; only a file that cannot be read at all is an error.
"""

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
_USED = {*_URLS, "command", "args", "env", "headers", "http_headers", "cwd", "type", "transport", "description",
         "disabled", "enabled", "isActive"}  # fmt: skip
_LARGEST = 16 * 1024 * 1024


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server as its client would reach it."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    description: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[Server, ...]
    remarks: tuple[str, ...] = ()


def read_servers(path: Path) -> Found:
    """Raises ConfigError if the file cannot be read or holds no servers."""
    return servers_in(_value(path), str(path))


def servers_in(value: Any, name: str) -> Found:
    tables = _tables(value)
    if tables is None:
        raise ConfigError(f"{name}: no `mcpServers` (or `servers`) in it")
    servers: list[Server] = []
    remarks: list[str] = []
    for key, entry in tables.items():
        server = _server(str(key), entry, remarks)
        if server is not None:
            servers.append(server)
    return Found(servers=tuple(servers), remarks=tuple(remarks))


def _value(path: Path) -> Any:
    if path.suffix.lower() in (".yaml", ".yml"):
        return YAMLFile.read(path).value
    try:
        if path.stat().st_size > _LARGEST:
            raise ConfigError(f"{path}: larger than {_LARGEST} bytes")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if path.suffix.lower() != ".toml":
        return jsonc.parse(text, str(path))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from exc


def _tables(value: Any) -> Mapping[str, Any] | None:
    if not isinstance(value, dict):
        return None
    inner = value.get("mcp")
    places = [value.get("mcpServers"), value.get("servers"), value.get("mcp_servers")]
    if isinstance(inner, dict):
        places += [inner.get("servers"), inner.get("mcpServers")]
    return next((place for place in places if isinstance(place, dict)), None)


def _server(name: str, entry: Any, remarks: list[str]) -> Server | None:
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
    if ignored := sorted(str(key) for key in entry.keys() - _USED):
        remarks.append(f"{name}: ignored {', '.join(ignored)}")
    if url is not None:
        if kind == "sse" or url.rstrip("/").endswith("/sse"):
            remarks.append(f"{name}: HTTP+SSE is the transport of 2024; it is asked over Streamable HTTP instead")
        headers = {**_texts(entry.get("headers")), **_texts(entry.get("http_headers"))}
        return Server(name=name, url=url, headers=headers, description=_text(entry.get("description")))
    return _program(name, entry, remarks)


def _program(name: str, entry: dict[str, Any], remarks: list[str]) -> Server | None:
    command, args = entry.get("command"), entry.get("args") or []
    words = [command] if isinstance(command, str) else command
    if not isinstance(words, list) or not isinstance(args, list) or not words or not all(words):
        remarks.append(f"{name}: skipped, it has neither a command nor a url")
        return None
    return Server(
        name=name,
        command=tuple(str(word) for word in (*words, *args)),
        env=_texts(entry.get("env")),
        cwd=_text(entry.get("cwd")) or None,
        description=_text(entry.get("description")),
    )


def _texts(table: Any) -> dict[str, str]:
    """Names and values; a number or a truth is written as JSON has it."""
    if not isinstance(table, dict):
        return {}
    return {
        str(name): value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in table.items()
        if value is not None
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
