"""Doors, runtimes and stores by kind. Built-in ones and those of other packages are loaded the same way.

A row names a module and an attribute and is imported on first use, so a kind whose
library is not installed costs nothing until it is used. Other packages add kinds
through the entry points `a2a_fabric.doors`, `.runtimes`, `.stores` and `.schemas`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Literal

from a2a_fabric.core.errors import ConfigError, suggest_nearest
from a2a_fabric.core.lazy_import import load_module

PluginGroup = Literal["doors", "runtimes", "stores", "schemas"]

_BUILT_IN: dict[PluginGroup, dict[str, str]] = {
    "doors": {
        "a2a": "a2a_fabric.doors.a2a:build",
        "directory": "a2a_fabric.doors.directory:build",
        "discovery": "a2a_fabric.doors.discovery:build",
        "fabric": "a2a_fabric.doors.fabric:build",
        "mcp": "a2a_fabric.doors.mcp:build",
        "rest": "a2a_fabric.doors.rest:build",
    },
    "runtimes": {
        "a2a": "a2a_fabric.runtimes.a2a:build",
        "acp": "a2a_fabric.runtimes.acp:build",
        "agent-client": "a2a_fabric.runtimes.agent_client:build",
        "agentzero": "a2a_fabric.runtimes.agentzero:build",
        "claude": "a2a_fabric.runtimes.claude:build",
        "fabric": "a2a_fabric.runtimes.fabric.runtime:build",
        "grpc": "a2a_fabric.runtimes.grpc.runtime:build",
        "http": "a2a_fabric.runtimes.http.runtime:build",
        "mcp": "a2a_fabric.runtimes.mcp.runtime:build",
        "process": "a2a_fabric.runtimes.process.runtime:build",
        "python": "a2a_fabric.runtimes.python:build",
        "rest": "a2a_fabric.runtimes.rest:build",
        "rpc": "a2a_fabric.runtimes.rpc:build",
        "tool": "a2a_fabric.runtimes.tool:build",
    },
    "stores": {
        "memory": "a2a_fabric.stores.memory:build",
        "postgresql": "a2a_fabric.stores.postgres:build",
        "sqlite": "a2a_fabric.stores.sqlite:build",
    },
    "schemas": {  # what a store has applied, looked at without touching it
        "postgresql": "a2a_fabric.stores.postgres.migrate:inspect_schema",
        "sqlite": "a2a_fabric.stores.sqlite.connections:inspect_schema",
    },
}

_ALIASES: dict[str, str] = {
    "agent-zero": "agentzero",
    "claude-subprocess": "claude",
    "custom-http": "http",
    "fabric-http": "http",
    "local": "process",
    "subprocess": "process",
    "postgres": "postgresql",
}


def list_kinds(group: PluginGroup) -> list[str]:
    third_party = {point.name for point in entry_points(group=f"a2a_fabric.{group}")}
    return sorted(third_party | set(_BUILT_IN[group]))


def is_available(group: PluginGroup, kind: str) -> bool:
    """Without importing it; for ours without looking at what is installed, which takes a while."""
    return canonical_kind(kind) in _BUILT_IN[group] or kind in list_kinds(group)


def canonical_kind(kind: str) -> str:
    """The name under which a kind stands in the table."""
    return _ALIASES.get(kind, kind)


def load_plugin(group: PluginGroup, kind: str) -> Any:
    """The factory of this kind; raises ConfigError when there is none or it cannot be imported."""
    kind = canonical_kind(kind)
    address = _BUILT_IN[group].get(kind)
    if address is None:
        points = [point for point in entry_points(group=f"a2a_fabric.{group}") if point.name == kind]
        if not points:
            available = list_kinds(group)
            raise ConfigError(
                f"no {group[:-1]} of kind '{kind}'{suggest_nearest(kind, available)}; known: {', '.join(available)}"
            )
        address = points[0].value
    module, _, attribute = address.partition(":")
    try:
        return getattr(load_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"{group[:-1]} '{kind}' cannot be loaded: {exc}") from exc
