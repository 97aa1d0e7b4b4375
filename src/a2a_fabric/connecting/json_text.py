"""A client's JSON file with our entry in it, or without: everything else keeps its order and its value."""

from __future__ import annotations

import json
import re
from typing import Any

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc


class JSONText:
    """Raises ConfigError, when made, for a file that is broken or has comments, which writing it would lose."""

    def __init__(self, text: str, name: str, key: str) -> None:
        self._text = text
        self._key = key
        self._value = _parsed(text, name)
        if not isinstance(self._value, dict) or not isinstance(self._value.get(key, {}), dict):
            raise ConfigError(f"{name}: `{key}` is not a table; nothing was changed")

    def entry(self, name: str) -> dict[str, Any] | None:
        found = self._value.get(self._key, {}).get(name)
        return found if isinstance(found, dict) else None

    def having(self, name: str, entry: dict[str, Any], inputs: tuple[dict[str, Any], ...] = ()) -> str:
        value = {**self._value, self._key: {**self._value.get(self._key, {}), name: entry}}
        if inputs:
            ids = {each["id"] for each in inputs}
            value["inputs"] = [*(each for each in _inputs(value) if each.get("id") not in ids), *inputs]
        return self._written(value)

    def without(self, name: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
        """Tables that are empty without us go too; an empty text means that nothing else was in it."""
        servers = {key: entry for key, entry in self._value.get(self._key, {}).items() if key != name}
        value = {**self._value, self._key: servers}
        ids = {each["id"] for each in inputs}
        if "inputs" in value:
            value["inputs"] = [each for each in _inputs(value) if each.get("id") not in ids]
        value = {key: inner for key, inner in value.items() if inner or key not in (self._key, "inputs")}
        return self._written(value) if value else ""

    def _written(self, value: Any) -> str:
        return json.dumps(value, indent=_indent(self._text), ensure_ascii=False) + "\n"


def snippet(name: str, entry: dict[str, Any], key: str, inputs: tuple[dict[str, Any], ...] = ()) -> str:
    """Our entry alone, to be pasted."""
    return JSONText("", "", key).having(name, entry, inputs)


def _parsed(text: str, name: str) -> Any:
    if not text.strip():
        return {}
    try:
        return jsonc.parse_strict(text, name)
    except ConfigError as broken:
        try:
            jsonc.parse(text, name)
        except ConfigError:
            raise ConfigError(f"{broken.message}; nothing was changed") from broken
        raise ConfigError(
            f"{name}: it has comments or extra commas, which would be lost; paste what --print shows, or take them out"
        ) from broken


def _inputs(value: dict[str, Any]) -> list[dict[str, Any]]:
    listed = value.get("inputs")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _indent(text: str) -> int | str:
    found = re.search(r"^[{\[]\s*\n([ \t]+)\S", text)
    return ("\t" if "\t" in found[1] else len(found[1])) if found else 2
