"""Parses JSON with comments and trailing commas, as editors write their settings; no maintained library does."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from a2a_fabric.core.errors import ConfigError

# A string is matched first, so that text inside a string is not taken for a comment.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')


def parse(text: str, name: str) -> Any:
    """Raises ConfigError, which names the file and the line."""
    if not text.strip():
        return {}
    bare = _STRING_OR_COMMA.sub(_keep_string, _STRING_OR_COMMENT.sub(_keep_string, text.removeprefix("\ufeff")))
    return parse_strict(bare, name)


def parse_strict(text: str, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        position = re.search(r"\(byte (\d+)\)", str(exc))
        line = text.encode()[: int(position[1])].count(b"\n") + 1 if position else 1
        reason = re.sub(r" \(byte \d+\)", "", str(exc).removeprefix("JSON is malformed: "))
        raise ConfigError(f"{name}:{line}: not valid JSON: {reason}") from exc


def _keep_string(match: re.Match[str]) -> str:
    """A string stays; a comment leaves its line breaks, so that lines keep their numbers."""
    return match[1] or "\n" * match[0].count("\n")
