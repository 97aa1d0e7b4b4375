"""Adds our entry to the JSON or TOML configuration of an MCP client, or removes it.

The change is computed as text; the caller writes the file. TOML is edited as text, so that comments stay."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Literal

import msgspec

from a2a_fabric.connecting.clients import TOKEN_INPUT, TOKEN_VARIABLE, McpClient
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc


class JsonConfigFile:
    """Raises ConfigError, when made, for a file that is broken or has comments, which writing it would lose."""

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
        """Tables that are empty without us go too; an empty text means that nothing else was in it."""
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
    """Our entry alone, to be pasted."""
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
            f"{name}: it has comments or extra commas, which would be lost; paste what --print shows, or take them out"
        ) from error


def _list_inputs(value: dict[str, Any]) -> list[dict[str, Any]]:
    listed = value.get("inputs")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _detect_indent(text: str) -> int | str:
    match = re.search(r"^[{\[]\s*\n([ \t]+)\S", text)
    return ("\t" if "\t" in match[1] else len(match[1])) if match else 2


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class TomlConfigFile:
    """Raises ConfigError, when made, for a file that is broken."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._text = text
        self._name = name
        self._key = key
        try:
            self._value = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{name}: not valid TOML: {exc}; nothing was changed") from exc

    def find_entry(self, name: str) -> dict[str, Any] | None:
        table = self._value.get(self._key, {})
        value = table.get(name) if isinstance(table, dict) else None
        return value if isinstance(value, dict) else None

    def add_entry(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        rest = self.remove_entry(name)
        gap = "\n" if rest.strip() else ""
        text = f"{rest.rstrip()}\n{gap}" if rest.strip() else ""
        return self._check_edit(text + render_toml_snippet(name, entry, self._key), name, entry)

    def remove_entry(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        if self.find_entry(name) is None:
            return self._text
        remaining: list[str] = []
        is_own_table = False
        for line in self._text.splitlines(keepends=True):
            if line.lstrip().startswith("["):
                is_own_table = _is_entry_header(line, self._key, name)
            if not is_own_table:
                remaining.append(line)
        return self._check_edit("".join(remaining), name, None)

    def _check_edit(self, text: str, name: str, entry: dict[str, Any] | None) -> str:
        """Text was cut and pasted; what it says now must be what was meant."""
        expected = {key: value for key, value in self._value.items() if key != self._key}
        servers = {key: value for key, value in self._value.get(self._key, {}).items() if key != name}
        servers |= {name: entry} if entry is not None else {}
        actual = tomllib.loads(text)
        if {**actual, self._key: actual.get(self._key, {})} != {**expected, self._key: servers}:
            raise ConfigError(
                f"{self._name}: `{self._key}` is written in a way that cannot be changed safely; "
                "paste what --print shows; nothing was changed"
            )
        return text


def render_toml_snippet(name: str, entry: dict[str, Any], key: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
    """Our table alone, to be pasted. JSON's strings and lists are TOML's too."""
    lines = [f"[{key}.{_quote_key(name)}]"]
    lines += [f"{field} = {_to_toml(value)}" for field, value in entry.items()]
    return "\n".join(lines) + "\n"


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quote_key(key)} = {_to_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_to_toml(inner) for inner in value) + "]"
    return json.dumps(value)


def _quote_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _is_entry_header(line: str, key: str, name: str) -> bool:
    """`[mcp_servers.NAME]`, or a table inside it."""
    try:
        header = tomllib.loads(line.strip().rstrip("\r\n"))
    except tomllib.TOMLDecodeError:
        return False
    table = header.get(key)
    return isinstance(table, dict) and name in table


Action = Literal["connected", "updated", "already connected", "disconnected", "not connected"]


_OWN_MARKERS = ("a2a-fabric", "a2a_fabric", TOKEN_VARIABLE, TOKEN_INPUT)


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the new text; empty: nothing but our entry was in the file; None: it stays as it is."""

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
    """Without our entry, or with the one that stood in its place before."""
    file = _parse_file(client, text, path)
    if file.find_entry(name) is None:
        return ConfigChange(action="not connected")
    earlier = _parse_file(client, original_text, path).find_entry(name) if original_text is not None else None
    if earlier is not None and not _is_own_entry(earlier):
        return ConfigChange(action="disconnected", text=file.add_entry(name, earlier))
    return ConfigChange(action="disconnected", text=file.remove_entry(name, client.inputs))


def _is_own_entry(entry: dict[str, Any]) -> bool:
    """Whether an earlier `connect` wrote it."""
    text = str(entry)
    return any(mark in text for mark in _OWN_MARKERS)


def _parse_file(client: McpClient, text: str, path: str) -> JsonConfigFile | TomlConfigFile:
    return TomlConfigFile(text, path, client.key) if client.is_toml else JsonConfigFile(text, path, client.key)
