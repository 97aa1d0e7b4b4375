"""A small JSONPath with `$`, `.key`, `['key']`, `[0]`, `[-1]`, `[*]`, `.*` and `..`; bounded in what it visits.

Not jmespath: it has no `..` and writes paths without `$`, so the queries that callers of data.json send would break."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from a2a_fabric.tools.toolkit import tool_error

_MAX_NODES = 100_000
_STEP_PATTERN = re.compile(
    r"""(?P<deep>\.\.)?(?:(?:(?(deep)|\.))(?P<name>\*|[\w-]+)"""
    r"""|\[\s*(?:(?P<index>-?\d{1,9})|(?P<all>\*)|'(?P<single>[^']*)'|"(?P<double>[^"]*)")\s*\])"""
)


class _PathStep(NamedTuple):
    deep: bool
    key: str | int | None  # None: every child


def query(data: Any, path: str) -> Any:
    """A list for a path with `*` or `..`, else one value, or None if nothing is there. Raises PARSE_ERROR."""
    steps = _parse_path(path)
    nodes = [data]
    for step in steps:
        nodes = _collect_bounded(child for node in nodes for child in _select_nodes(node, step))
    if any(step.deep or step.key is None for step in steps):
        return nodes
    return nodes[0] if nodes else None


def _parse_path(path: str) -> list[_PathStep]:
    text = path.strip()
    position, steps = 1, []
    while text.startswith("$") and position < len(text):
        match = _STEP_PATTERN.match(text, position)
        if match is None:
            break
        steps.append(_step_from_match(match))
        position = match.end()
    if not text.startswith("$") or position < len(text):
        raise tool_error("PARSE_ERROR", f"{path[:100]!r} is not a path like $.items[0].name, $..id or $['a key'][*]")
    return steps


def _step_from_match(match: re.Match[str]) -> _PathStep:
    deep = match["deep"] is not None
    if match["all"] or match["name"] == "*":
        return _PathStep(deep, None)
    if match["index"] is not None:
        return _PathStep(deep, int(match["index"]))
    return _PathStep(deep, next(key for key in (match["name"], match["single"], match["double"]) if key is not None))


def _select_nodes(node: Any, step: _PathStep) -> Iterator[Any]:
    for each in _walk_descendants(node) if step.deep else (node,):
        yield from _select_children(each, step.key)


def _select_children(node: Any, key: str | int | None) -> Iterator[Any]:
    if isinstance(node, dict):
        if key is None:
            yield from node.values()
        elif key in node:
            yield node[key]
    elif isinstance(node, list):
        if key is None:
            yield from node
        elif (index := _parse_index(key)) is not None and -len(node) <= index < len(node):
            yield node[index]


def _parse_index(key: str | int) -> int | None:
    if isinstance(key, int):
        return key
    return int(key) if key.isdecimal() and len(key) < 10 else None


def _walk_descendants(node: Any) -> Iterator[Any]:
    """The node and all its descendants, parents first, in the order of the document."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, dict):
            stack.extend(reversed(current.values()))
        elif isinstance(current, list):
            stack.extend(reversed(current))


def _collect_bounded(nodes: Iterator[Any]) -> list[Any]:
    collected: list[Any] = []
    for node in nodes:
        if len(collected) == _MAX_NODES:
            raise tool_error("PARSE_ERROR", f"The path leads to more than {_MAX_NODES} places")
        collected.append(node)
    return collected
