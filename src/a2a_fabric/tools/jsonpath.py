"""A small JSONPath: `$`, `.key`, `['key']`, `[0]`, `[-1]`, `[*]`, `.*` and `..`; bounded in what it visits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from a2a_fabric.tools.errors import tool_error

_MAX_NODES = 100_000
_STEP = re.compile(
    r"""(?P<deep>\.\.)?(?:(?:(?(deep)|\.))(?P<name>\*|[\w-]+)|\[\s*(?:(?P<index>-?\d{1,9})|(?P<all>\*)|'(?P<single>[^']*)'|"(?P<double>[^"]*)")\s*\])"""
)


class _Step(NamedTuple):
    deep: bool
    key: str | int | None  # None: every child


def query(data: Any, path: str) -> Any:
    """One value (None if there is none) for a path to one place, a list for a path to many. Raises PARSE_ERROR."""
    steps = _parsed(path)
    nodes = [data]
    for step in steps:
        nodes = _bounded(found for node in nodes for found in _reached(node, step))
    if any(step.deep or step.key is None for step in steps):
        return nodes
    return nodes[0] if nodes else None


def _parsed(path: str) -> list[_Step]:
    text = path.strip()
    at, steps = 1, []
    while text.startswith("$") and at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            break
        steps.append(_step(match))
        at = match.end()
    if not text.startswith("$") or at < len(text):
        raise tool_error("PARSE_ERROR", f"{path[:100]!r} is not a path like $.items[0].name, $..id or $['a key'][*]")
    return steps


def _step(match: re.Match[str]) -> _Step:
    deep = match["deep"] is not None
    if match["all"] or match["name"] == "*":
        return _Step(deep, None)
    if match["index"] is not None:
        return _Step(deep, int(match["index"]))
    return _Step(deep, next(key for key in (match["name"], match["single"], match["double"]) if key is not None))


def _reached(node: Any, step: _Step) -> Iterator[Any]:
    for each in _descendants(node) if step.deep else (node,):
        yield from _children(each, step.key)


def _children(node: Any, key: str | int | None) -> Iterator[Any]:
    if isinstance(node, dict):
        if key is None:
            yield from node.values()
        elif key in node:
            yield node[key]
    elif isinstance(node, list):
        if key is None:
            yield from node
        elif (index := _index(key)) is not None and -len(node) <= index < len(node):
            yield node[index]


def _index(key: str | int) -> int | None:
    if isinstance(key, int):
        return key
    return int(key) if key.isdecimal() and len(key) < 10 else None


def _descendants(node: Any) -> Iterator[Any]:
    """The node and all below it, parents first, in the order of the document."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        if isinstance(here, dict):
            waiting.extend(reversed(here.values()))
        elif isinstance(here, list):
            waiting.extend(reversed(here))


def _bounded(nodes: Iterator[Any]) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if len(found) == _MAX_NODES:
            raise tool_error("PARSE_ERROR", f"The path leads to more than {_MAX_NODES} places")
        found.append(node)
    return found
