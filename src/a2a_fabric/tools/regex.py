"""Regular expressions from callers: RE2, whose time grows with the text and never with the pattern's shape.

One search is linear, but a pattern can be large, and a text is searched again for each
match. So program size, output and time are bounded too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no stubs

from a2a_fabric.core.errors import FabricError
from a2a_fabric.tools.toolkit import TimeLimit, encode_utf8, tool_error

_MAX_MEMORY = 2 << 20
_MAX_STEPS = 200_000_000  # program size x bytes of text: a second or two
_UNSUPPORTED = ("invalid perl operator", "invalid escape sequence")

Spans = list[tuple[int, int]]


class RegexPattern:
    """A compiled pattern that is matched against UTF-8 bytes."""

    def __init__(self, pattern: str, flags: Collection[str] = ()) -> None:
        source = strip_comments(pattern) if "x" in flags else pattern
        switches = "".join(flag for flag in "ims" if flag in flags)
        if switches:
            source = f"(?{switches}){source}"
        try:
            self._compiled: Any = re2.compile(encode_utf8(source, "INVALID_REGEX"), _build_options())
        except re2.error as exc:
            raise _build_invalid(pattern, exc) from exc
        names: dict[bytes, int] = self._compiled.groupindex
        self.names = {name.decode(): index for name, index in names.items()}

    def find_matches(self, text: bytes, time_limit: TimeLimit) -> Iterator[Spans]:
        """The spans of each match and its groups, from left to right; (-1, -1) is a group that did not match."""
        if self._compiled.programsize * len(text) > _MAX_STEPS:
            raise tool_error("MATCH_ERROR", "The pattern is too large for a text of this length")
        previous = None
        for match in self._compiled.finditer(text):
            time_limit.check()
            span: tuple[int, int] = match.span()
            if span == previous or (span[0] == span[1] and _is_inside_character(text, span[0])):
                continue  # the library finds an empty match behind a gap twice
            previous = span
            yield [span, *(match.span(index + 1) for index in range(self._compiled.groups))]


def _is_inside_character(text: bytes, at: int) -> bool:
    """Whether an empty match lies between the bytes of one character, which only a search by bytes finds."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def _build_options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    return options


def _build_invalid(pattern: str, exc: Exception) -> FabricError:
    reason = exc.args[0] if exc.args else ""
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    hint = ""
    if text.startswith(_UNSUPPORTED):
        hint = "; look-around and back-references are not supported, because they cannot be matched in linear time"
    return tool_error("INVALID_REGEX", f"{pattern[:100]!r} is not a pattern that can be used: {text}{hint}")


def strip_comments(pattern: str) -> str:
    """A pattern of flag x as an ordinary one: without blanks and comments, except in classes and after a backslash."""
    output: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            output.append(_escape_pair(pattern[at : at + 2]))
            at += 2
        elif character == "[":
            end = _find_class_end(pattern, at)
            output.append(pattern[at:end])
            at = end
        elif character == "#":
            newline = pattern.find("\n", at)
            at = len(pattern) if newline < 0 else newline
        else:
            output.append("" if character.isspace() else character)
            at += 1
    return "".join(output)


def _escape_pair(pair: str) -> str:
    return f"\\x{{{ord(pair[1]):x}}}" if pair[1:].isspace() else pair


def _find_class_end(pattern: str, start: int) -> int:
    """The position after the `]` that closes the class; a `]` in first place is a member of it."""
    at = start + 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        if pattern.startswith("[:", at) and ":]" in pattern[at + 2 :]:
            at = pattern.index(":]", at + 2) + 2
        else:
            at += 2 if pattern[at] == "\\" else 1
    return at + 1
