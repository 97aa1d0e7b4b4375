"""Servers as entries of `agents.yaml`: valid unique ids, secrets by reference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.importing.secrets import References, Variable
from a2a_fabric.importing.servers import Found, Server


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """What would be added, what to set for it, and what there is to say."""

    entries: tuple[dict[str, Any], ...]
    variables: tuple[Variable, ...] = ()
    remarks: tuple[str, ...] = ()


def entries_of(found: Sequence[Found], present: Mapping[str, Manifest], references: References) -> Import:
    """Entries for servers that are not among those present."""
    entries: dict[str, dict[str, Any]] = {}
    remarks = [remark for each in found for remark in each.remarks]
    for server in (server for each in found for server in each.servers):
        wanted = agent_id_of(server.name)
        endpoint = _endpoint(server, wanted, references)
        if _is_there(endpoint, wanted, present, entries):
            remarks.append(f"{server.name}: skipped, it is there already")
            continue
        agent_id = _unique(wanted, present.keys() | entries.keys())
        if agent_id != server.name:
            remarks.append(f"{server.name}: becomes agent '{agent_id}'")
        entries[agent_id] = _entry(agent_id, server, endpoint)
    used = _used(entries.values())
    variables = tuple(each for each in references.variables.values() if each.name in used)
    return Import(entries=tuple(entries.values()), variables=variables, remarks=tuple(remarks))


def agent_id_of(name: str) -> str:
    """The nearest valid id."""
    bare = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return (bare or "server")[:120]


def _unique(wanted: str, taken: Any) -> str:
    number, tried = 1, wanted
    while tried in taken:
        number += 1
        tried = f"{wanted}-{number}"
    return tried


def _endpoint(server: Server, agent_id: str, references: References) -> dict[str, Any]:
    if server.url is not None:
        endpoint: dict[str, Any] = {"transport": "http", "uri": references.address(agent_id, server.url)}
        if server.headers:
            endpoint["headers"] = references.table(agent_id, "headers", server.headers)
        return endpoint
    env = references.table(agent_id, "env", server.env)  # first: its names are the best names for variables
    endpoint = {"transport": "stdio", "command": references.words(agent_id, server.command)}
    if env:
        endpoint["env"] = env
    if server.cwd:
        endpoint["cwd"] = references.value(agent_id, "cwd", "CWD", server.cwd)
    return endpoint


def _entry(agent_id: str, server: Server, endpoint: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"agent_id": agent_id, "runtime": "mcp"}
    if server.description:
        entry["description"] = server.description
    return {**entry, "endpoint": endpoint}


def _is_there(
    endpoint: dict[str, Any], wanted: str, present: Mapping[str, Manifest], entries: Mapping[str, dict[str, Any]]
) -> bool:
    """Under its id, or under the id that an earlier import gave it."""

    def is_it(agent_id: str) -> bool:
        return agent_id == wanted or bool(re.fullmatch(re.escape(wanted) + r"-\d+", agent_id))

    known = [(each.agent_id, each.endpoint) for each in present.values()]
    known += [(agent_id, entry["endpoint"]) for agent_id, entry in entries.items()]
    return any(is_it(agent_id) and where == endpoint for agent_id, where in known)


def _used(entries: Any) -> set[str]:
    """Names of the variables that these entries refer to."""
    text = msgspec.json.encode(list(entries)).decode()
    return set(re.findall(r'"env:([A-Z0-9_a-z]+)"', text))
