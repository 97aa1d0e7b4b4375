"""Adds agents to the text of an `agents.yaml`; existing text and comments stay as they are.

This is done on the text, because ruamel.yaml writes the whole file anew and so changes its indentation and quotes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import yaml

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.yamlfile import YAMLFile

_NEW_FILE_HEADER = "# Agents of this node. Secrets stand as env:NAME. Reference: docs/configuration.md\n\nagents:\n"


def add_entries(text: str, entries: Sequence[dict[str, Any]], name: str) -> str:
    """The text with these entries at the end of its list. Raises ConfigError if they cannot be added safely."""
    if not entries:
        return text
    before = _list_entries(YAMLFile(name, text).value)
    after = _insert_entries(text, entries, name)
    if _list_entries(YAMLFile(name, after).value) != [*before, *entries]:
        raise _not_editable(name)
    return after


def unified_diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", lineterm="")
    return "\n".join(lines)


def _list_entries(value: Any) -> list[Any]:
    listed = value.get("agents") if isinstance(value, dict) else value
    return list(listed) if isinstance(listed, list) else []


def _insert_entries(text: str, entries: Sequence[dict[str, Any]], name: str) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        start = text if not text or text.endswith("\n") else text + "\n"
        return (start or "") + (_NEW_FILE_HEADER if not text.strip() else "agents:\n") + _dump_entries(entries, 2)
    listed = _find_agents_node(root)
    if listed is None:
        return _end_with_newline(text) + "agents:\n" + _dump_entries(entries, 2)
    if _is_empty(listed):
        return _fill_empty_list(text, listed, entries, indent=0 if listed is root else 2)
    if not isinstance(listed, yaml.SequenceNode) or listed.flow_style:
        raise _not_editable(name)
    return _insert_lines(text, _end_line_of(listed), _dump_entries(entries, listed.start_mark.column))


def _find_agents_node(root: Any) -> Any | None:
    """The node of the list; None if the table has no list yet."""
    if not isinstance(root, yaml.MappingNode):
        return root
    return next((value for key, value in root.value if key.value == "agents"), None)


def _is_empty(node: Any) -> bool:
    return not node.value or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null")


def _fill_empty_list(text: str, empty: Any, entries: Sequence[dict[str, Any]], indent: int) -> str:
    """Put the entries in the place of `[]`, or of nothing."""
    start, end = empty.start_mark, empty.end_mark
    rest = text[: start.index].rstrip(" ") + text[end.index :]
    line_number = start.line + 1 if indent else start.line
    return _insert_lines(rest, line_number, _dump_entries(entries, indent))


def _end_line_of(node: Any) -> int:
    """The number of the line after the node's last one."""
    if isinstance(node, yaml.ScalarNode) or not node.value or node.flow_style:
        mark = node.end_mark
        return int(mark.line + 1 if mark.column else mark.line)
    last = node.value[-1]
    return _end_line_of(last[1] if isinstance(last, tuple) else last)


def _insert_lines(text: str, line_number: int, added: str) -> str:
    lines = _end_with_newline(text).splitlines(keepends=True)
    return "".join([*lines[:line_number], added, *lines[line_number:]])


def _end_with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _dump_entries(entries: Sequence[dict[str, Any]], indent: int) -> str:
    text = yaml.safe_dump(list(entries), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return "".join(f"{' ' * indent}{line}" for line in text.splitlines(keepends=True))


def _not_editable(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: its list of agents is written in a form to which nothing can be added; "
        "write it as a block list (one `- agent_id: …` a line), or name another file with --agents"
    )
