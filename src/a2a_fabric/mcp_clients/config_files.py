"""The JSON, TOML and YAML files in which MCP clients keep their servers: one server is added or removed.

The change is computed as text; everything else in the file stays, comments included. Each edit is compared with what
was wanted, and refused if more than that has changed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc, yaml_text
from a2a_fabric.yamlfile import YAMLFile


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
        self._has_crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
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
        if self._has_crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        actual = tomllib.loads(text)
        if {**actual, self._key: actual.get(self._key, {})} != {**self._value, self._key: servers}:
            raise _not_editable(self._name, self._key)
        return text


def _make_servers_table(name: str, entry: dict[str, Any]) -> Any:
    servers = tomlkit.table(is_super_table=True)
    servers.append(name, tomlkit.item(entry))
    return servers


class YamlConfigFile:
    """Raises ConfigError, when made, for a file that is broken."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._text = text
        self._name = name
        self._key = key
        self._value = self._parse(text)

    @property
    def servers(self) -> dict[str, Any]:
        return dict(self._value.get(self._key) or {})

    def add_entry(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        return self._edit(
            lambda: yaml_text.set_member(self._text, (self._key, name), entry), {**self.servers, name: entry}
        )

    def remove_entry(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        """A table that becomes empty is removed too."""
        others = {each: entry for each, entry in self.servers.items() if each != name}
        path = (self._key, name) if others else (self._key,)
        return self._edit(lambda: yaml_text.remove_member(self._text, path), others)

    def _edit(self, edit: Callable[[], str], servers: dict[str, Any]) -> str:
        """Raises ConfigError unless the table of servers alone has changed, and as wanted."""
        rest = {key: value for key, value in self._value.items() if key != self._key}
        try:
            edited = edit()
            is_exact = self._parse(edited) == ({**rest, self._key: servers} if servers else rest)
        except (ValueError, ConfigError) as exc:
            raise _not_editable(self._name, self._key) from exc
        if not is_exact:
            raise _not_editable(self._name, self._key)
        return edited

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            value = YAMLFile(self._name, text).value
        except ConfigError as error:
            raise ConfigError(f"{error.message}; nothing was changed") from error
        value = {} if value is None else value
        if not isinstance(value, dict) or not isinstance(value.get(self._key) or {}, dict):
            raise ConfigError(f"{self._name}: `{self._key}` is not a table; nothing was changed")
        return value
