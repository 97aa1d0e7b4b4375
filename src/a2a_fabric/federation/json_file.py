"""JSON files decoded strictly into structs, with errors that name file, line and field.

Plain JSON only: no comments, no trailing commas, and no name twice in one object, of which other readers would silently
drop one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing import jsonc
from a2a_fabric.yamlfile import YAMLFile, YamlPath, pause_gc

T = TypeVar("T")

MAX_CARD_BYTES = 1024 * 1024
MAX_REGISTRY_BYTES = 64 * 1024 * 1024


# What is expected, in words, by the regular expression of a field.
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
VERSION_PATTERN = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
SKILL_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"
REF_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/+-]*$"
COMMIT_PATTERN = "^[0-9a-f]{40}$"
URL_PATTERN = "^https?://"
_EXPECTED = {
    NAME_PATTERN: "a name of lowercase letters, digits, . _ and -, without spaces",
    VERSION_PATTERN: "MAJOR.MINOR.PATCH, such as 1.0.0",
    SKILL_PATTERN: "kebab case, such as parse-recipe",
    REF_PATTERN: "the name of a branch or a tag",
    COMMIT_PATTERN: "a whole commit: 40 hexadecimal digits",
    URL_PATTERN: "a URL with http or https",
}
_MATCHING = re.compile(r"Expected `str` matching regex ('.*')")


class _DuplicateName(ValueError):
    """An object has two members of one name."""


class JSONFile(YAMLFile):
    """A file that was read: its name, its text, its value."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text.removeprefix("\ufeff")
        try:
            with pause_gc():
                self.value: Any = json.loads(
                    self.text, object_pairs_hook=_build_object, parse_constant=_refuse_constant
                )
        except _DuplicateName as exc:
            line = _find_second_line(self.text, str(exc))
            raise ConfigError(f"{name}:{line}: '{exc}' is written twice") from exc
        except json.JSONDecodeError as exc:
            is_comment = self.text[exc.pos :].lstrip().startswith(("//", "/*", "#"))
            reason = "JSON has no comments" if is_comment else exc.msg
            raise ConfigError(f"{name}:{exc.lineno}: not valid JSON: {reason} (column {exc.colno})") from exc
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"{name}: not valid JSON: {exc}") from exc

    @classmethod
    def load(cls, path: Path, limit: int = MAX_CARD_BYTES) -> JSONFile:
        """Raises ConfigError."""
        try:
            with path.open("rb") as file:
                return cls.parse(str(path), file.read(limit + 1), limit)
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc

    @classmethod
    def parse(cls, name: str, content: bytes, limit: int = MAX_CARD_BYTES) -> JSONFile:
        """Raises ConfigError."""
        if len(content) > limit:
            raise ConfigError(f"{name}: larger than {limit} bytes")
        try:
            return cls(name, content.decode())
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{name}: not valid JSON: it is not UTF-8") from exc

    def decode(self, kind: type[T], value: Any = None, location: YamlPath = ()) -> T:
        """As of any file; what a text has to look like is said in words."""
        try:
            return super().decode(kind, value, location)
        except ConfigError as exc:
            raise ConfigError(_MATCHING.sub(_describe_pattern, exc.message)) from exc

    def find_line(self, location: YamlPath) -> int:
        return self.text.count("\n", 0, jsonc.find_offset(self.text, location)) + 1


def _describe_pattern(match: re.Match[str]) -> str:
    words = next((words for pattern, words in _EXPECTED.items() if repr(pattern) == match[1]), None)
    return match[0] if words is None else f"expected {words}"


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise _DuplicateName(name)
            names.add(name)
    return value


def _find_second_line(text: str, name: str) -> int:
    quoted = json.dumps(name, ensure_ascii=False)
    first = text.find(quoted)
    second = text.find(quoted, first + 1)
    return text.count("\n", 0, max(first, second)) + 1


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
