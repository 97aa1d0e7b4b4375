"""Codex's TOML file with our table in it, or without: worked on as text, so that comments stay."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from a2a_fabric.core.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class TOMLText:
    """Raises ConfigError, when made, for a file that is broken."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._text = text
        self._name = name
        self._key = key
        try:
            self._value = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{name}: not valid TOML: {exc}; nothing was changed") from exc

    def entry(self, name: str) -> dict[str, Any] | None:
        table = self._value.get(self._key, {})
        found = table.get(name) if isinstance(table, dict) else None
        return found if isinstance(found, dict) else None

    def having(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        rest = self.without(name)
        gap = "\n" if rest.strip() else ""
        text = f"{rest.rstrip()}\n{gap}" if rest.strip() else ""
        return self._checked(text + snippet(name, entry, self._key), name, entry)

    def without(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        if self.entry(name) is None:
            return self._text
        kept: list[str] = []
        is_ours = False
        for line in self._text.splitlines(keepends=True):
            if line.lstrip().startswith("["):
                is_ours = _is_header(line, self._key, name)
            if not is_ours:
                kept.append(line)
        return self._checked("".join(kept), name, None)

    def _checked(self, text: str, name: str, entry: dict[str, Any] | None) -> str:
        """Text was cut and pasted; what it says now must be what was meant."""
        wanted = {key: value for key, value in self._value.items() if key != self._key}
        servers = {key: value for key, value in self._value.get(self._key, {}).items() if key != name}
        servers |= {name: entry} if entry is not None else {}
        now = tomllib.loads(text)
        if {**now, self._key: now.get(self._key, {})} != {**wanted, self._key: servers}:
            raise ConfigError(
                f"{self._name}: `{self._key}` is written in a way that cannot be changed safely; "
                "paste what --print shows; nothing was changed"
            )
        return text


def snippet(name: str, entry: dict[str, Any], key: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
    """Our table alone, to be pasted. JSON's strings and lists are TOML's too."""
    lines = [f"[{key}.{_quoted(name)}]"]
    lines += [f"{field} = {_value(value)}" for field, value in entry.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    return json.dumps(value)


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _is_header(line: str, key: str, name: str) -> bool:
    """`[mcp_servers.NAME]`, or a table inside it."""
    try:
        header = tomllib.loads(line.strip().rstrip("\r\n"))
    except tomllib.TOMLDecodeError:
        return False
    table = header.get(key)
    return isinstance(table, dict) and name in table
