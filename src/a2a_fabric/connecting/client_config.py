"""Adds Fabric's entry to the JSON or TOML configuration of an MCP client, or removes it.

The change is computed as text; the caller writes the file. Comments in TOML stay. JSON with comments is not
changed, because no maintained library edits JSON and keeps its comments."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Literal

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from a2a_fabric.connecting.clients import TOKEN_INPUT, TOKEN_VARIABLE, McpClient
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc


class JsonConfigFile:
    """Raises ConfigError, when made, for a file that is broken, or that has comments: writing it would lose them."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._text = text
        self._key = key
        self._value = _parse_json(text, name)
        if not isinstance(self._value, dict) or not isinstance(self._value.get(key, {}), dict):
            raise ConfigError(f"{name}: `{key}` is not a table; nothing was changed")

    def find_entry(self, name: str) -> dict[str, Any] | None:
        value = self._value.get(self._key, {}).get(name)
        return value if isinstance(value, dict) else None

    def add_entry(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        value = {**self._value, self._key: {**self._value.get(self._key, {}), name: entry}}
        if inputs:
            ids = {each["id"] for each in inputs}
            value["inputs"] = [*(each for each in _list_inputs(value) if each.get("id") not in ids), *inputs]
        return self._dump(value)

    def remove_entry(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        """Tables that become empty are removed too. The text is empty if nothing else was in the file."""
        servers = {key: entry for key, entry in self._value.get(self._key, {}).items() if key != name}
        value = {**self._value, self._key: servers}
        ids = {each["id"] for each in inputs}
        if "inputs" in value:
            value["inputs"] = [each for each in _list_inputs(value) if each.get("id") not in ids]
        value = {key: inner for key, inner in value.items() if inner or key not in (self._key, "inputs")}
        return self._dump(value) if value else ""

    def _dump(self, value: Any) -> str:
        return json.dumps(value, indent=_detect_indent(self._text), ensure_ascii=False) + "\n"


def render_json_snippet(name: str, entry: dict[str, Any], key: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
    """Fabric's entry alone, to be pasted."""
    return JsonConfigFile("", "", key).add_entry(name, entry, inputs)


def _parse_json(text: str, name: str) -> Any:
    if not text.strip():
        return {}
    try:
        return jsonc.parse_strict(text, name)
    except ConfigError as error:
        try:
            jsonc.parse(text, name)
        except ConfigError:
            raise ConfigError(f"{error.message}; nothing was changed") from error
        raise ConfigError(
            f"{name}: it has comments or extra commas, which would be lost; paste what --print shows, or remove them"
        ) from error


def _list_inputs(value: dict[str, Any]) -> list[dict[str, Any]]:
    listed = value.get("inputs")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _detect_indent(text: str) -> int | str:
    match = re.search(r"^[{\[]\s*\n([ \t]+)\S", text)
    return ("\t" if "\t" in match[1] else len(match[1])) if match else 2


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

    def find_entry(self, name: str) -> dict[str, Any] | None:
        servers = self._value.get(self._key, {})
        value = servers.get(name) if isinstance(servers, dict) else None
        return value if isinstance(value, dict) else None

    def add_entry(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        """A new entry comes last, so that the text before it stays as it is."""
        try:
            if self.find_entry(name) is None:
                self._document.append(self._key, _make_servers_table(name, entry))
            else:
                self._servers[name] = tomlkit.item(entry)
        except TOMLKitError as exc:
            raise self._not_editable() from exc
        return self._check_edit(name, entry)

    def remove_entry(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        if self.find_entry(name) is not None:
            del self._servers[name]
            if not self._servers:
                del self._document[self._key]
        return self._check_edit(name, None)

    @property
    def _servers(self) -> Any:
        servers = self._document[self._key]
        if isinstance(servers, InlineTable):  # all on one line, whose layout is the user's own
            raise self._not_editable()
        return servers

    def _check_edit(self, name: str, entry: dict[str, Any] | None) -> str:
        """The new text. Raises ConfigError unless it differs by the entry alone."""
        servers = {key: value for key, value in self._value.get(self._key, {}).items() if key != name}
        servers |= {name: entry} if entry is not None else {}
        text = tomlkit.dumps(self._document)
        actual = tomllib.loads(text)
        if {**actual, self._key: actual.get(self._key, {})} != {**self._value, self._key: servers}:
            raise self._not_editable()
        return text

    def _not_editable(self) -> ConfigError:
        return ConfigError(
            f"{self._name}: `{self._key}` is written in a way that cannot be changed safely; "
            "paste what --print shows; nothing was changed"
        )


def _make_servers_table(name: str, entry: dict[str, Any]) -> Any:
    servers = tomlkit.table(is_super_table=True)
    servers.append(name, tomlkit.item(entry))
    return servers


def render_toml_snippet(name: str, entry: dict[str, Any], key: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
    """Fabric's table alone, to be pasted."""
    return TomlConfigFile("", "", key).add_entry(name, entry)


Action = Literal["connected", "updated", "already connected", "disconnected", "not connected"]


_OWN_MARKERS = ("a2a-fabric", "a2a_fabric", TOKEN_VARIABLE, TOKEN_INPUT)


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the new text: empty if only Fabric's entry was in the file, None if the file stays as it is."""

    action: Action
    text: str | None = None


class ClientEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: dict[str, Any]
    inputs: tuple[dict[str, Any], ...] = ()


def render_snippet(client: McpClient, entry: ClientEntry) -> str:
    render = render_toml_snippet if client.is_toml else render_json_snippet
    return render(entry.name, entry.value, client.key, entry.inputs)


def add_entry(client: McpClient, entry: ClientEntry, text: str, path: str) -> ConfigChange:
    file = _parse_file(client, text, path)
    existing = file.find_entry(entry.name)
    if existing == entry.value:
        return ConfigChange(action="already connected")
    action: Action = "connected" if existing is None else "updated"
    return ConfigChange(action=action, text=file.add_entry(entry.name, entry.value, entry.inputs))


def remove_entry(client: McpClient, name: str, text: str, original_text: str | None, path: str) -> ConfigChange:
    """Remove Fabric's entry; an entry of the same name in the original text comes back."""
    file = _parse_file(client, text, path)
    if file.find_entry(name) is None:
        return ConfigChange(action="not connected")
    earlier = _parse_file(client, original_text, path).find_entry(name) if original_text is not None else None
    if earlier is not None and not _is_own_entry(earlier):
        return ConfigChange(action="disconnected", text=file.add_entry(name, earlier))
    return ConfigChange(action="disconnected", text=file.remove_entry(name, client.inputs))


def _is_own_entry(entry: dict[str, Any]) -> bool:
    """Whether an earlier `connect` wrote the entry."""
    text = str(entry)
    return any(mark in text for mark in _OWN_MARKERS)


def _parse_file(client: McpClient, text: str, path: str) -> JsonConfigFile | TomlConfigFile:
    return TomlConfigFile(text, path, client.key) if client.is_toml else JsonConfigFile(text, path, client.key)
