"""Reads the MCP servers from a client's configuration file, and turns them into agents.

    {"mcpServers": {NAME: {"command", "args", "env"} or {"url", "headers"}}}   Claude, Cursor, Gemini, LibreChat (YAML)
    {"servers": {NAME: …}} or {"mcp": {"servers": {NAME: …}}}                  VS Code
    {"context_servers": {NAME: …}}                                             Zed
    {"mcp": {NAME: {"command": […], "environment"} or {"url", "headers"}}}     opencode
    [mcp_servers.NAME]                                                         Codex (TOML)
    extensions: {NAME: {"cmd", "args", "envs", "env_keys"} or {"uri", "headers"}}   Goose (YAML)

A server that cannot be used is skipped with a remark; only an unreadable file is an error. Agents are entries for
`agents.yaml` with secrets by reference, or manifests in memory."""

from __future__ import annotations

import asyncio
import logging
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.yamlfile import YAMLFile

_URLS = ("url", "httpUrl", "serverUrl", "uri")
_KNOWN_KEYS = {
    *_URLS, "command", "cmd", "args", "env", "environment", "envs", "env_keys", "headers", "http_headers", "cwd",
    "type", "transport", "description", "disabled", "enabled", "isActive", "source", "name", "display_name", "bundled",
}  # fmt: skip
_BUILT_IN = ("builtin", "platform", "frontend", "inline_python")  # extensions that only Goose itself can run
_MAX_FILE_BYTES = 16 * 1024 * 1024

_log = logging.getLogger(__name__)


class ClientServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server, as its client reaches it."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    transport: str = "http"  # of a server at an address
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
    candidates = [value.get(key) for key in ("mcpServers", "servers", "mcp_servers", "context_servers", "extensions")]
    if isinstance(inner, dict):
        candidates += [inner.get("servers"), inner.get("mcpServers"), inner]
    return next((candidate for candidate in candidates if isinstance(candidate, dict)), None)


def _parse_server(name: str, entry: Any, remarks: list[str]) -> ClientServer | None:
    if not isinstance(entry, dict):
        remarks.append(f"{name}: skipped, it is not a table")
        return None
    if entry.get("disabled") is True or entry.get("enabled") is False or entry.get("isActive") is False:
        remarks.append(f"{name}: skipped, it is disabled")
        return None
    kind = str(entry.get("type") or entry.get("transport") or "").lower()
    if kind in _BUILT_IN:
        remarks.append(f"{name}: skipped, it is built into the client")
        return None
    url = next((entry[key] for key in _URLS if isinstance(entry.get(key), str) and entry[key]), None)
    if kind in ("ws", "websocket") or (url and not url.startswith(("http://", "https://", "${", "$"))):
        remarks.append(f"{name}: skipped, only stdio and HTTP servers can be used")
        return None
    if ignored := sorted(str(key) for key in entry.keys() - _KNOWN_KEYS):
        remarks.append(f"{name}: ignored {', '.join(ignored)}")
    if url is not None:
        is_sse = kind == "sse" or (not kind and url.rstrip("/").endswith("/sse"))  # the transport of 2024
        headers = {**_to_strings(entry.get("headers")), **_to_strings(entry.get("http_headers"))}
        return ClientServer(
            name=name,
            url=url,
            headers=headers,
            transport="sse" if is_sse else "http",
            description=_to_string(entry.get("description")),
        )
    return _parse_program(name, entry, remarks)


def _parse_program(name: str, entry: dict[str, Any], remarks: list[str]) -> ClientServer | None:
    command, args = entry.get("command") or entry.get("cmd"), entry.get("args") or []
    command_words = [command] if isinstance(command, str) else command
    if not isinstance(command_words, list) or not isinstance(args, list) or not command_words or not all(command_words):
        remarks.append(f"{name}: skipped, it has neither a command nor a url")
        return None
    return ClientServer(
        name=name,
        command=tuple(str(word) for word in (*command_words, *args)),
        env=_read_variables(entry),
        cwd=_to_string(entry.get("cwd")) or None,
        description=_to_string(entry.get("description")),
    )


def _read_variables(entry: dict[str, Any]) -> dict[str, str]:
    """`env_keys` lists variables whose values the client looks up."""
    keys = entry.get("env_keys")
    looked_up = {str(key): f"${{{key}}}" for key in keys} if isinstance(keys, list) else {}
    return {**looked_up, **_to_strings(entry.get("env") or entry.get("environment") or entry.get("envs"))}


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


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The new entries, the variables to set for them, and remarks for the user."""

    entries: tuple[dict[str, Any], ...]
    variables: tuple[Variable, ...] = ()
    remarks: tuple[str, ...] = ()


def build_entries(
    parsed_files: Sequence[ParsedServers], present: Mapping[str, Manifest], references: References
) -> ImportResult:
    """Entries for the servers that are not present yet."""
    named_entries = [
        (server.name, _build_entry(server, references)) for each in parsed_files for server in each.servers
    ]
    entries, remarks = _keep_new(named_entries, present)
    remarks = (*(remark for each in parsed_files for remark in each.remarks), *remarks)
    variables = keep_used_variables(references.variables.values(), entries)
    return ImportResult(entries=entries, variables=variables, remarks=remarks)


def keep_new_entries(entries: Sequence[dict[str, Any]], present: Mapping[str, Manifest]) -> ImportResult:
    """Those of the entries that are not present yet, under ids that are free, and remarks on the others."""
    kept, remarks = _keep_new([(entry["agent_id"], entry) for entry in entries], present)
    return ImportResult(entries=kept, remarks=remarks)


def _keep_new(
    named_entries: Iterable[tuple[str, dict[str, Any]]], present: Mapping[str, Manifest]
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """`named_entries` have the names that remarks use."""
    kept: dict[str, dict[str, Any]] = {}
    remarks: list[str] = []
    for name, entry in named_entries:
        if _is_present(entry["endpoint"], entry["agent_id"], present, kept):
            remarks.append(f"{name}: skipped, it is present already")
            continue
        agent_id = make_unique(entry["agent_id"], present.keys() | kept.keys())
        if agent_id != name:
            remarks.append(f"{name}: becomes agent '{agent_id}'")
        kept[agent_id] = {**entry, "agent_id": agent_id}
    return tuple(kept.values()), tuple(remarks)


def keep_used_variables(variables: Iterable[Variable], entries: Iterable[dict[str, Any]]) -> tuple[Variable, ...]:
    """Those of the variables to which the entries refer."""
    text = msgspec.json.encode(list(entries)).decode()
    names = set(re.findall(r'"env:([A-Z0-9_a-z]+)"', text))
    return tuple(each for each in variables if each.name in names)


def find_present(parsed: ParsedServers, present: Mapping[str, Manifest]) -> list[str]:
    """The names of the servers that are agents already."""
    references = References(home=str(Path.home()))
    named = [(server.name, to_agent_id(server.name), server) for server in parsed.servers]
    return [
        name
        for name, base_id, server in named
        if _is_present(_build_endpoint(server, base_id, references), base_id, present, {})
    ]


def to_agent_id(name: str) -> str:
    """The nearest valid id."""
    bare = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return (bare or "server")[:120]


def make_unique(base_id: str, used_ids: Collection[str]) -> str:
    number, candidate = 1, base_id
    while candidate in used_ids:
        number += 1
        candidate = f"{base_id}-{number}"
    return candidate


def _build_endpoint(server: ClientServer, agent_id: str, references: References) -> dict[str, Any]:
    if server.url is not None:
        endpoint: dict[str, Any] = {"transport": server.transport, "uri": server.url, "headers": server.headers}
    else:
        endpoint = {"transport": "stdio", "command": server.command, "env": server.env, "cwd": server.cwd}
    return references.replace_endpoint(agent_id, {name: value for name, value in endpoint.items() if value})


def _build_entry(server: ClientServer, references: References) -> dict[str, Any]:
    """Under the id that the server has if no agent has it yet."""
    agent_id = to_agent_id(server.name)
    entry: dict[str, Any] = {"agent_id": agent_id, "runtime": "mcp"}
    if server.description:
        entry["description"] = server.description
    return {**entry, "endpoint": _build_endpoint(server, agent_id, references)}


def _is_present(
    endpoint: dict[str, Any], base_id: str, present: Mapping[str, Manifest], entries: Mapping[str, dict[str, Any]]
) -> bool:
    """Whether the server is there under its id, or under an id that an earlier import made for it."""

    def is_same_id(agent_id: str) -> bool:
        return agent_id == base_id or bool(re.fullmatch(re.escape(base_id) + r"-\d+", agent_id))

    existing = [(each.agent_id, each.endpoint) for each in present.values()]
    existing += [(agent_id, entry["endpoint"]) for agent_id, entry in entries.items()]
    return any(is_same_id(agent_id) and existing_endpoint == endpoint for agent_id, existing_endpoint in existing)


class ImportedServers:
    def __init__(self, paths: Sequence[Path]) -> None:
        self.name = f"the servers of {', '.join(map(str, paths))}"
        self._paths = paths

    async def load(self) -> list[Manifest]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Manifest]:
        parsed_files = [read_servers(path) for path in self._paths]
        imported = build_entries(parsed_files, {}, References(hides_secrets=False, home=str(Path.home())))
        for remark in imported.remarks:
            _log.warning("%s", remark)
        return [msgspec.convert(entry, Manifest) for entry in imported.entries]

    async def watch(self, changed: object) -> None:
        """The files are read once, when the node starts."""
