"""Adds Fabric's entry to the JSON or TOML configuration of an MCP client, or removes it.

The change is computed as text; the caller writes the file. Comments stay, in TOML and in JSON."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from a2a_fabric.connecting.clients import TOKEN_INPUT, TOKEN_VARIABLE, McpClient
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc


class JsonConfigFile:
    """Raises ConfigError, when made, for a file that is broken."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._text = text
        self._name = name
        self._key = key
        try:
            self._value = jsonc.parse(text.strip("\ufeff") and text, name)
        except ConfigError as error:
            raise ConfigError(f"{error.message}; nothing was changed") from error
        if not isinstance(self._value, dict) or not isinstance(self._value.get(key, {}), dict):
            raise ConfigError(f"{name}: `{key}` is not a table; nothing was changed")

    @property
    def servers(self) -> dict[str, Any]:
        return dict(self._value.get(self._key, {}))

    def add_entry(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        text = self._edit(self._text, (self._key, name), entry)
        for each in inputs:
            listed = _list_inputs(jsonc.parse(text, self._name))
            number = next((at for at, found in enumerate(listed) if _input_id(found) == each["id"]), len(listed))
            path = ("inputs", number) if listed else ("inputs",)
            text = self._edit(text, path, each if listed else [each])
        return text

    def remove_entry(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        """Tables that become empty are removed too. The text is empty if nothing else was in the file."""
        text = self._edit(self._text, (self._key, name))
        for each in inputs:
            listed = _list_inputs(jsonc.parse(text, self._name))
            for number in [at for at, found in enumerate(listed) if _input_id(found) == each["id"]]:
                text = self._edit(text, ("inputs", number))
        value = jsonc.parse(text, self._name)
        for key in (self._key, "inputs"):
            if key in value and not value[key]:
                text = self._edit(text, (key,))
        return text if jsonc.parse(text, self._name) or "//" in text or "/*" in text else ""

    def _edit(self, text: str, path: tuple[str | int, ...], value: Any = None) -> str:
        """Set the value at the path, or remove it if there is no value. Raises ConfigError unless only that changed."""
        before = jsonc.parse(text.strip("\ufeff") and text, self._name)
        try:
            edited = jsonc.remove_member(text, path) if value is None else jsonc.set_member(text, path, value)
            is_exact = jsonc.parse(edited, self._name) == _with_change(before, path, value)
        except (ConfigError, ValueError, IndexError, StopIteration) as exc:
            raise _not_editable(self._name, self._key) from exc
        if not is_exact:
            raise _not_editable(self._name, self._key)
        return edited


def _with_change(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """The value with `new` at the path, or without what is there if `new` is None."""
    key, *rest = path
    copied: Any = list(value) if isinstance(value, list) else dict(value or {})
    if rest:
        present = copied.get(key) if isinstance(copied, dict) else copied[key]
        copied[key] = _with_change(present, tuple(rest), new)
    elif new is None:
        del copied[key]
    elif isinstance(copied, list) and key == len(copied):
        copied.append(new)
    else:
        copied[key] = new
    return copied


def _list_inputs(value: dict[str, Any]) -> list[Any]:
    listed = value.get("inputs")
    return listed if isinstance(listed, list) else []


def _input_id(value: Any) -> Any:
    return value.get("id") if isinstance(value, dict) else None


def _not_editable(name: str, key: str) -> ConfigError:
    return ConfigError(
        f"{name}: `{key}` is written in a way that cannot be changed safely; "
        "paste what --print shows; nothing was changed"
    )


class TomlConfigFile:
    """Raises ConfigError, when made, for a file that is broken."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._name = name
        self._key = key
        try:
            self._document = tomlkit.parse(text)
        except TOMLKitError as exc:
            raise ConfigError(f"{name}: not valid TOML: {exc}; nothing was changed") from exc
        self._value: dict[str, Any] = self._document.unwrap()

        if not isinstance(self._value.get(key, {}), dict):
            raise ConfigError(f"{name}: `{key}` is not a table; nothing was changed")

    @property
    def servers(self) -> dict[str, Any]:
        return dict(self._value.get(self._key, {}))

    def add_entry(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        """A new entry comes last, so that the text before it stays as it is."""
        try:
            table: Any = self._document.get(self._key)
            if isinstance(table, InlineTable):  # all on one line, which stays one line
                table[name] = entry
            elif name in self.servers:
                table[name] = tomlkit.item(entry)
            else:
                self._document.append(self._key, _make_servers_table(name, entry))
        except TOMLKitError as exc:
            raise _not_editable(self._name, self._key) from exc
        return self._check_edit(name, entry)

    def remove_entry(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        if name in self.servers:
            servers: Any = self._document[self._key]
            del servers[name]
            if not servers:
                del self._document[self._key]
        return self._check_edit(name, None)

    def _check_edit(self, name: str, entry: dict[str, Any] | None) -> str:
        """The new text. Raises ConfigError unless it differs by the entry alone."""
        servers = {key: value for key, value in self._value.get(self._key, {}).items() if key != name}
        servers |= {name: entry} if entry is not None else {}
        text = tomlkit.dumps(self._document)
        actual = tomllib.loads(text)
        if {**actual, self._key: actual.get(self._key, {})} != {**self._value, self._key: servers}:
            raise _not_editable(self._name, self._key)
        return text


def _make_servers_table(name: str, entry: dict[str, Any]) -> Any:
    servers = tomlkit.table(is_super_table=True)
    servers.append(name, tomlkit.item(entry))
    return servers


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
    """Remove Fabric's entry; an entry of the same name in the original text comes back, and so do moved servers."""
    servers = list_servers(client, text, path)
    if name not in servers:
        return ConfigChange(action="not connected")
    back = {each: entry for each, entry in moved.items() if each not in servers}
    for each, entry in back.items():
        text = _parse_file(client, text, path).add_entry(each, entry)
    earlier = list_servers(client, original_text, path).get(name) if original_text is not None else None
    file = _parse_file(client, text, path)
    if earlier is not None and not _is_own_entry(earlier):
        return ConfigChange(action="disconnected", text=file.add_entry(name, earlier), moved=back)
    return ConfigChange(action="disconnected", text=file.remove_entry(name, client.inputs), moved=back)


def _is_own_entry(entry: dict[str, Any]) -> bool:
    """Whether an earlier `connect` wrote the entry."""
    text = str(entry)
    return any(mark in text for mark in _OWN_MARKERS)


def _parse_file(client: McpClient, text: str, path: str) -> JsonConfigFile | TomlConfigFile:
    return TomlConfigFile(text, path, client.key) if client.is_toml else JsonConfigFile(text, path, client.key)
