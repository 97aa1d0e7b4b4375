"""Parses and edits JSON with comments and trailing commas, as editors write their settings; no maintained library does.

An edit changes the text of one member and nothing else: comments, order, indentation, line ends and a byte order mark
stay. The callers compare the parsed result with what they wanted, so a mistake here cannot damage a file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

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


_SKIPPED = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)  # what may stand between two tokens
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_SCALAR = re.compile(r"[^\s,\]}/]+")
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/[ \t]*)?")


class _Node(NamedTuple):
    """A value in the text. The members of an object have names, those of an array have their numbers."""

    start: int
    end: int
    members: list[_Member] | None = None  # None for a scalar


class _Member(NamedTuple):
    key: str | int
    start: int
    value: _Node


def set_member(text: str, path: Sequence[str | int], value: Any) -> str:
    """The text with this value at the path, replaced or added at the end. Valid text only: call `parse` first."""
    if not text.strip("\ufeff \t\r\n"):
        text += "{}\n"
    node = _scan(text)
    for depth, key in enumerate(path):
        member = next((each for each in node.members or () if each.key == key), None)
        if member is None:
            for inner_key in reversed(path[depth + 1 :]):
                value = {inner_key: value}
            return _append(text, node, key, value)
        node = member.value
    return text[: node.start] + _dump(text, value, _indent_at(text, node.start)) + text[node.end :]


def remove_member(text: str, path: Sequence[str | int]) -> str:
    """The text without the member at the path, which has to exist."""
    node = _scan(text)
    for key in path[:-1]:
        node = next(each.value for each in node.members or () if each.key == key)
    members = node.members or []
    number = next(number for number, each in enumerate(members) if each.key == path[-1])
    start, end = members[number].start, members[number].value.end
    after = _skip(text, end)
    if text[after] == ",":
        end = after + 1
    elif number:  # the last member: the comma before it goes as well
        comma = text.index(",", _skip(text, members[number - 1].value.end))
        text = text[:comma] + text[comma + 1 :]
        start, end = start - 1, end - 1
    line_start = text.rfind("\n", 0, start) + 1
    rest = re.compile(r"[ \t]*\r?\n").match(text, end)
    if rest and not text[line_start:start].strip():  # the member has its lines for itself
        return text[:line_start] + text[rest.end() :]
    return text[:start].rstrip(" \t") + text[end:] if number else text[:start] + text[end:].lstrip(" \t")


def _append(text: str, container: _Node, key: str | int, value: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(key, str) else ""
    close = container.end - 1
    outer_indent = _indent_at(text, container.start)
    if not container.members:
        indent = outer_indent + _indent_unit(text)
        inner = text[:close].rstrip()
        return f"{inner}{newline}{indent}{name}{_dump(text, value, indent)}{newline}{outer_indent}{text[close:]}"
    last = container.members[-1].value.end
    after = _skip(text, last)
    has_comma = text[after] == ","
    if has_comma:
        last = after + 1
    if "\n" not in text[container.start : container.members[0].start]:
        separator = " " if has_comma else ", "
        return f"{text[:last]}{separator}{name}{json.dumps(value, ensure_ascii=False)}{text[last:]}"
    indent = _indent_at(text, container.members[0].start)
    rest = _REST_OF_LINE.match(text, last)  # a remark about the member before stays with it
    end = rest.end() if rest else last
    comma, own_comma = ("", ",") if has_comma else (",", "")
    return (
        f"{text[:last]}{comma}{text[last:end].rstrip()}{newline}{indent}{name}{_dump(text, value, indent)}{own_comma}"
        f"{text[end:]}"
    )


def _scan(text: str) -> _Node:
    return _scan_value(text, _skip(text, 1 if text.startswith("\ufeff") else 0))


def _scan_value(text: str, start: int) -> _Node:
    if text[start] not in "{[":
        match = (_STRING if text[start] == '"' else _SCALAR).match(text, start)
        return _Node(start, match.end() if match else start + 1)
    members: list[_Member] = []
    position = _skip(text, start + 1)
    while text[position] not in "}]":
        member_start = position
        key: str | int = len(members)
        if text[start] == "{":
            name = _STRING.match(text, position)
            if name is None:
                raise ValueError("a name was expected")
            key = json.loads(name[0])
            position = _skip(text, _skip(text, name.end()) + 1)  # past the colon
        value = _scan_value(text, position)
        members.append(_Member(key, member_start, value))
        position = _skip(text, value.end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return _Node(start, position + 1, members)


def _skip(text: str, position: int) -> int:
    match = _SKIPPED.match(text, position)
    return match.end() if match else position


def _indent_at(text: str, position: int) -> str:
    """The indentation of the line on which the position is."""
    line = text[text.rfind("\n", 0, position) + 1 : position].removeprefix("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indent_unit(text: str) -> str:
    match = re.search(r"[{\[][^\S\n]*\n([ \t]+)\S", text)
    return match[1] if match else "  "


def _dump(text: str, value: Any, indent: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    return json.dumps(value, ensure_ascii=False, indent=_indent_unit(text)).replace("\n", newline + indent)


def find_offset(text: str, path: Sequence[str | int]) -> int:
    """Where the member at the path begins, or the nearest one above it that exists. Valid text only."""
    node, offset = _scan(text), 0
    for key in path:
        member = next((each for each in node.members or () if each.key == key), None)
        if member is None:
            break
        node, offset = member.value, member.start
    return offset
