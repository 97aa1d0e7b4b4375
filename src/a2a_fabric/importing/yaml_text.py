"""Edits the text of a YAML file: one member or some lines change, and everything else stays, comments included.

This is done on the text, because ruamel.yaml writes the whole file anew and so changes its indentation and quotes. The
callers compare the parsed result with what they wanted, so a mistake here cannot damage a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

_MARK = "\ufeff"


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """The text with this value at the path of block mappings, replaced or added at the end. Raises ValueError."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return append_lines(text, dump_block(_nest(path, value), 0))
    for depth, key in enumerate(path):
        mapping = _require_block(node)
        member = _find_member(mapping, key)
        if member is None:
            column = mapping.value[0][0].start_mark.column
            return insert_lines(text, end_line_of(mapping), dump_block(_nest(path[depth:], value), column))
        if depth + 1 == len(path) or is_empty(member[1]):
            column = member[0].start_mark.column
            return replace_lines(text, member, dump_block(_nest(path[depth:], value), column))
        node = member[1]
    raise ValueError("the path is empty")


def remove_member(text: str, path: Sequence[str]) -> str:
    """The text without the member at the path. Raises ValueError."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in path[:-1]:
        member = _find_member(_require_block(node), key)
        node = member[1] if member else None
    member = _find_member(_require_block(node), path[-1])
    if member is None:
        raise ValueError("there is no such member")
    return replace_lines(text, member, "")


def is_empty(node: Any) -> bool:
    return not node.value or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null")


def end_line_of(node: Any) -> int:
    """The number of the line after the node's last one."""
    if isinstance(node, yaml.ScalarNode) or not node.value or node.flow_style:
        mark = node.end_mark
        return int(mark.line + 1 if mark.column else mark.line)
    last = node.value[-1]
    return end_line_of(last[1] if isinstance(last, tuple) else last)


def insert_lines(text: str, line_number: int, added: str) -> str:
    return _replace_lines(text, line_number, line_number, added)


def append_lines(text: str, added: str) -> str:
    end = len(text.splitlines())
    return _replace_lines(text, end, end, added)


def _replace_lines(text: str, start: int, end: int, added: str) -> str:
    """With the line ends and the byte order mark of the text; if its last line has no end, neither has the result."""
    mark = _MARK if text.startswith(_MARK) else ""
    lines = text.removeprefix(mark).splitlines(keepends=True)
    newline = "\r\n" if "\r\n" in text else "\n"
    before = "".join(lines[:start])
    if before and added and not before.endswith("\n"):
        before += newline
    joined = "".join([mark, before, added.replace("\n", newline), *lines[end:]])
    has_end = not lines or lines[-1].endswith("\n") or end < len(lines)
    return joined if has_end else joined.removesuffix("\n").removesuffix("\r")


def dump_block(value: Any, indent: int) -> str:
    dumped = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return "".join(f"{' ' * indent}{line}" for line in dumped.splitlines(keepends=True))


def _nest(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _require_block(node: Any) -> Any:
    if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
        raise ValueError("it is not a block mapping")
    return node


def _find_member(mapping: Any, key: str) -> tuple[Any, Any] | None:
    return next(((name, value) for name, value in mapping.value if name.value == key), None)


def replace_lines(text: str, member: tuple[Any, Any], replacement: str) -> str:
    """A member has its lines for itself, as it is in a block mapping."""
    start, end = member[0].start_mark.line, end_line_of(member[1])
    return _replace_lines(text, start, max(end, start + 1), replacement)
