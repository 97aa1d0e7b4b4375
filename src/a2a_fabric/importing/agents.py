"""MCP servers as agents: entries for `agents.yaml` with secrets by reference, or manifests in memory."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.importing.servers import ClientServer, ParsedServers, read_servers


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The new entries, the variables to set for them, and remarks for the user."""

    entries: tuple[dict[str, Any], ...]
    variables: tuple[Variable, ...] = ()
    remarks: tuple[str, ...] = ()


def build_entries(
    parsed_files: Sequence[ParsedServers], present: Mapping[str, Manifest], references: References
) -> ImportResult:
    """Entries for the servers that are not present yet."""
    entries: dict[str, dict[str, Any]] = {}
    remarks = [remark for each in parsed_files for remark in each.remarks]
    for server in (server for each in parsed_files for server in each.servers):
        base_id = to_agent_id(server.name)
        endpoint = _build_endpoint(server, base_id, references)
        if _is_present(endpoint, base_id, present, entries):
            remarks.append(f"{server.name}: skipped, it is present already")
            continue
        agent_id = _make_unique(base_id, present.keys() | entries.keys())
        if agent_id != server.name:
            remarks.append(f"{server.name}: becomes agent '{agent_id}'")
        entries[agent_id] = _build_entry(agent_id, server, endpoint)
    used_names = _find_variable_names(entries.values())
    variables = tuple(each for each in references.variables.values() if each.name in used_names)
    return ImportResult(entries=tuple(entries.values()), variables=variables, remarks=tuple(remarks))


def to_agent_id(name: str) -> str:
    """The nearest valid id."""
    bare = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return (bare or "server")[:120]


def _make_unique(base_id: str, used_ids: Any) -> str:
    number, candidate = 1, base_id
    while candidate in used_ids:
        number += 1
        candidate = f"{base_id}-{number}"
    return candidate


def _build_endpoint(server: ClientServer, agent_id: str, references: References) -> dict[str, Any]:
    if server.url is not None:
        endpoint: dict[str, Any] = {"transport": "http", "uri": references.replace_url(agent_id, server.url)}
        if server.headers:
            endpoint["headers"] = references.replace_table(agent_id, "headers", server.headers)
        return endpoint
    env = references.replace_table(
        agent_id, "env", server.env
    )  # first, because its names are the best names for variables
    endpoint = {"transport": "stdio", "command": references.replace_arguments(agent_id, server.command)}
    if env:
        endpoint["env"] = env
    if server.cwd:
        endpoint["cwd"] = references.replace_value(agent_id, "cwd", "CWD", server.cwd)
    return endpoint


def _build_entry(agent_id: str, server: ClientServer, endpoint: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"agent_id": agent_id, "runtime": "mcp"}
    if server.description:
        entry["description"] = server.description
    return {**entry, "endpoint": endpoint}


def _is_present(
    endpoint: dict[str, Any], base_id: str, present: Mapping[str, Manifest], entries: Mapping[str, dict[str, Any]]
) -> bool:
    """Whether the server is there under its id, or under an id that an earlier import made for it."""

    def is_same_id(agent_id: str) -> bool:
        return agent_id == base_id or bool(re.fullmatch(re.escape(base_id) + r"-\d+", agent_id))

    existing = [(each.agent_id, each.endpoint) for each in present.values()]
    existing += [(agent_id, entry["endpoint"]) for agent_id, entry in entries.items()]
    return any(is_same_id(agent_id) and existing_endpoint == endpoint for agent_id, existing_endpoint in existing)


def _find_variable_names(entries: Any) -> set[str]:
    """The names of the variables to which these entries refer."""
    text = msgspec.json.encode(list(entries)).decode()
    return set(re.findall(r'"env:([A-Z0-9_a-z]+)"', text))


_log = logging.getLogger(__name__)


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
