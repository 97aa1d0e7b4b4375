"""Adds Fabric's entry to the configuration of an MCP client, or removes it; other servers may move out and back in.

The change is computed as text; the caller writes the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from a2a_fabric.mcp_clients.clients import TOKEN_INPUT, TOKEN_VARIABLE, McpClient
from a2a_fabric.mcp_clients.config_files import JsonConfigFile, TomlConfigFile, YamlConfigFile

Action = Literal["connected", "updated", "already connected", "disconnected", "not connected"]

_OWN_MARKERS = ("a2a-fabric", "a2a_fabric", TOKEN_VARIABLE, TOKEN_INPUT)


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the new text: empty if only Fabric's entry was in the file, None if the file stays as it is."""

    action: Action
    text: str | None = None
    moved: dict[str, Any] = {}  # servers that were taken out, or put back


class ClientEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: dict[str, Any]
    inputs: tuple[dict[str, Any], ...] = ()


def render_snippet(client: McpClient, entry: ClientEntry) -> str:
    """Fabric's entry alone, to be pasted."""
    return _parse_file(client, "", "").add_entry(entry.name, entry.value, entry.inputs)


def list_servers(client: McpClient, text: str, path: str) -> dict[str, Any]:
    """The servers in a client's file, by name. Raises ConfigError."""
    return _parse_file(client, text, path).servers


def add_entry(
    client: McpClient, entry: ClientEntry, text: str, path: str, replaced: Collection[str] = ()
) -> ConfigChange:
    """Add Fabric's entry, and take out the servers that it replaces. Raises ConfigError."""
    servers = list_servers(client, text, path)
    existing = servers.get(entry.name)
    moved = {name: servers[name] for name in replaced if name in servers and name != entry.name}
    if existing == entry.value and not moved:
        return ConfigChange(action="already connected")
    if existing != entry.value:
        text = _parse_file(client, text, path).add_entry(entry.name, entry.value, entry.inputs)
    for name in moved:
        text = _parse_file(client, text, path).remove_entry(name)
    return ConfigChange(action="connected" if existing is None else "updated", text=text, moved=moved)


def remove_entry(
    client: McpClient,
    name: str,
    text: str,
    original_text: str | None,
    path: str,
    moved: Mapping[str, Any],
) -> ConfigChange:
    """Remove Fabric's entry; an entry of the same name in the original text comes back, and so do moved servers.

    A file that was not edited since is the original again, to the character.
    """
    servers = list_servers(client, text, path)
    if name not in servers:
        return ConfigChange(action="not connected")
    back = {each: entry for each, entry in moved.items() if each not in servers}
    if original_text is not None and _is_our_edit(client, name, text, original_text, path, back):
        return ConfigChange(action="disconnected", text=original_text, moved=back)
    for each, entry in back.items():
        text = _parse_file(client, text, path).add_entry(each, entry)
    earlier = list_servers(client, original_text, path).get(name) if original_text is not None else None
    file = _parse_file(client, text, path)
    if earlier is not None and not _is_own_entry(earlier):
        return ConfigChange(action="disconnected", text=file.add_entry(name, earlier), moved=back)
    rest = file.remove_entry(name, client.inputs)
    if not rest and original_text is not None and client.file_format == "json":
        rest = "{}\n"  # clients cannot read an empty file
    return ConfigChange(action="disconnected", text=rest, moved=back)


def _is_our_edit(
    client: McpClient, name: str, text: str, original_text: str, path: str, moved: Mapping[str, Any]
) -> bool:
    """Whether the text is the original one and what `add_entry` does to it, and nothing else."""
    earlier = list_servers(client, original_text, path).get(name)
    if earlier is not None and _is_own_entry(earlier):
        return False
    value = list_servers(client, text, path)[name]
    entries = [ClientEntry(name=name, value=value, inputs=inputs) for inputs in ((), client.inputs)]
    return any(add_entry(client, each, original_text, path, tuple(moved)).text == text for each in entries)


def _is_own_entry(entry: dict[str, Any]) -> bool:
    """Whether an earlier `connect` wrote the entry."""
    text = str(entry)
    return any(mark in text for mark in _OWN_MARKERS)


_FILES: dict[str, type[JsonConfigFile | TomlConfigFile | YamlConfigFile]] = {
    "json": JsonConfigFile,
    "toml": TomlConfigFile,
    "yaml": YamlConfigFile,
}


def _parse_file(client: McpClient, text: str, path: str) -> JsonConfigFile | TomlConfigFile | YamlConfigFile:
    return _FILES[client.file_format](text, path, client.key)
