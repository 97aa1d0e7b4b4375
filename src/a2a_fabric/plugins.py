"""Doors, runtimes and stores by kind. Built-in kinds and those of other packages are loaded the same way.

A row names a module and a plug-in value in it (`core.plugin`). The module is imported on first use, so a kind
whose library is not installed costs nothing until it is used. Other packages add kinds through the entry
points `a2a_fabric.doors`, `.runtimes`, `.stores`, `.schemas` and `.guards`. An entry point may also name the plain
`build` function of such a plug-in; a door's function then carries its settings as an attribute `settings`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal

from a2a_fabric.core.errors import ConfigError, suggest_nearest
from a2a_fabric.core.guards import CallGuard
from a2a_fabric.core.ports import DoorPlugin, NoSettings, RuntimePlugin, StorePlugin, load_module

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

PluginGroup = Literal["doors", "runtimes", "stores", "schemas", "guards"]

_BUILT_IN: dict[PluginGroup, dict[str, str]] = {
    "doors": {  # in the order in which a node opens them
        "fabric": "a2a_fabric.doors.fabric.door:plugin",
        "mcp": "a2a_fabric.doors.mcp.door:plugin",
        "a2a": "a2a_fabric.doors.a2a.door:plugin",
        "directory": "a2a_fabric.doors.directory.door:plugin",
        "rest": "a2a_fabric.doors.rest.door:plugin",
        "discovery": "a2a_fabric.doors.discovery.door:plugin",
    },
    "runtimes": {
        "a2a": "a2a_fabric.runtimes.a2a:plugin",
        "acp": "a2a_fabric.runtimes.acp.runtime:plugin",
        "agent-client": "a2a_fabric.runtimes.agent_client.runtime:plugin",
        "agentzero": "a2a_fabric.runtimes.agentzero:plugin",
        "claude": "a2a_fabric.runtimes.claude.runtime:plugin",
        "fabric": "a2a_fabric.runtimes.fabric.runtime:plugin",
        "grpc": "a2a_fabric.runtimes.grpc.runtime:plugin",
        "http": "a2a_fabric.runtimes.http.runtime:plugin",
        "mcp": "a2a_fabric.runtimes.mcp.runtime:plugin",
        "process": "a2a_fabric.runtimes.process.runtime:plugin",
        "python": "a2a_fabric.runtimes.python:plugin",
        "rest": "a2a_fabric.runtimes.rest:plugin",
        "rpc": "a2a_fabric.runtimes.rpc:plugin",
        "tool": "a2a_fabric.runtimes.tool:plugin",
    },
    "stores": {
        "memory": "a2a_fabric.stores.sqlite.store:memory_plugin",
        "nats": "a2a_fabric.stores.nats.store:plugin",
        "postgresql": "a2a_fabric.stores.postgres.store:plugin",
        "sqlite": "a2a_fabric.stores.sqlite.store:plugin",
    },
    "schemas": {  # which migrations a store has applied
        "nats": "a2a_fabric.stores.nats.store:inspect_schema",
        "postgresql": "a2a_fabric.stores.postgres.connections:inspect_schema",
        "sqlite": "a2a_fabric.stores.sqlite.connections:inspect_schema",
    },
    "guards": {
        "http": "a2a_fabric.guards.http:build",
        "secrets": "a2a_fabric.guards.secrets:build",
    },
}

_ADDED: dict[PluginGroup, dict[str, Any]] = {"doors": {}, "runtimes": {}, "stores": {}, "schemas": {}, "guards": {}}

_ALIASES: dict[str, str] = {
    "agent-zero": "agentzero",
    "claude-subprocess": "claude",
    "custom-http": "http",
    "fabric-http": "http",
    "local": "process",
    "subprocess": "process",
    "postgres": "postgresql",
}


def add_plugin(group: PluginGroup, kind: str, plugin: object) -> None:
    """Make a plug-in known to this process without an entry point: for tests, and programs that embed a node."""
    _ADDED[group][kind] = plugin


def list_builtin_kinds(group: PluginGroup) -> list[str]:
    """In the order of the table."""
    return list(_BUILT_IN[group])


def list_kinds(group: PluginGroup) -> list[str]:
    third_party = {point.name for point in _list_entry_points(group)}
    return sorted(third_party | set(_BUILT_IN[group]) | set(_ADDED[group]))


def is_available(group: PluginGroup, kind: str) -> bool:
    """Imports nothing. A built-in kind is found without reading the installed packages, which takes a while."""
    return canonical_kind(kind) in _BUILT_IN[group] or kind in list_kinds(group)


def canonical_kind(kind: str) -> str:
    """The name under which a kind is in the table."""
    return _ALIASES.get(kind, kind)


def load_door(kind: str) -> DoorPlugin[Any, Any, Any]:
    """Raises ConfigError when there is no such kind or it cannot be imported; so do the functions below."""
    plugin = _load("doors", kind)
    if isinstance(plugin, DoorPlugin):
        return plugin
    return DoorPlugin(settings=getattr(plugin, "settings", NoSettings), build=plugin)


def load_runtime(kind: str) -> RuntimePlugin[Any]:
    plugin = _load("runtimes", kind)
    return plugin if isinstance(plugin, RuntimePlugin) else RuntimePlugin(build=plugin)


def load_store(kind: str) -> StorePlugin:
    plugin = _load("stores", kind)
    return plugin if isinstance(plugin, StorePlugin) else StorePlugin(build=plugin)


def load_schema_inspector(kind: str) -> Callable[[str], Awaitable[Any]]:
    """The function that reports which migrations the store at an address has applied, without changing it."""
    inspect: Callable[[str], Awaitable[Any]] = _load("schemas", kind)
    return inspect


def build_guard(kind: str, options: Mapping[str, Any]) -> CallGuard:
    """A guard from its plug-in, a function that takes the options; or MODULE:FUNCTION, the guard itself."""
    if ":" not in kind:
        guard: CallGuard = _load("guards", kind)(options)
        return guard
    module, _, name = kind.partition(":")
    try:
        function = getattr(load_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"guard '{kind}' cannot be loaded: {exc}") from exc
    if options:
        raise ConfigError(f"guard '{kind}' is a function, which takes no options")
    if not iscoroutinefunction(function):
        raise ConfigError(f"guard '{kind}' is not an async function")
    own: CallGuard = function
    return own


def _load(group: PluginGroup, kind: str) -> Any:
    kind = canonical_kind(kind)
    if kind in _ADDED[group]:
        return _ADDED[group][kind]
    address = _BUILT_IN[group].get(kind)
    if address is None:
        points = [point for point in _list_entry_points(group) if point.name == kind]
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


def _list_entry_points(group: PluginGroup) -> EntryPoints:
    """Those of installed packages. Most nodes have built-in kinds only, so the module is loaded on use."""
    points: EntryPoints = load_module("importlib.metadata").entry_points(group=f"a2a_fabric.{group}")
    return points
