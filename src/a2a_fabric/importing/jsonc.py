"""JSON as editors' settings hold it: with comments and commas too many."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from a2a_fabric.core.errors import ConfigError

# A string is matched first, so that what looks like a comment inside one is left alone.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')


def parse(text: str, name: str) -> Any:
    """Raises ConfigError naming the file and the line."""
    if not text.strip():
        return {}
    bare = _STRING_OR_COMMA.sub(_string, _STRING_OR_COMMENT.sub(_string, text.removeprefix("\ufeff")))
    return parse_strict(bare, name)


def parse_strict(text: str, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        where = re.search(r"\(byte (\d+)\)", str(exc))
        line = text.encode()[: int(where[1])].count(b"\n") + 1 if where else 1
        what = re.sub(r" \(byte \d+\)", "", str(exc).removeprefix("JSON is malformed: "))
        raise ConfigError(f"{name}:{line}: not valid JSON: {what}") from exc


def _string(match: re.Match[str]) -> str:
    """Strings stay; everything else keeps its line breaks, so that lines keep their numbers."""
    return match[1] or "\n" * match[0].count("\n")
