"""Adds agents to the text of an `agents.yaml`, and changes which tools they leave out; all other text stays."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import yaml

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing.yaml_text import (
    dump_block,
    end_line_of,
    end_with_newline,
    insert_lines,
    is_empty,
    replace_lines,
)
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


def set_excluded_tools(text: str, agent_id: str, patterns: Sequence[str], name: str) -> str:
    """The text with `tools.exclude` of an agent as given. Raises ConfigError if it cannot be changed safely.

    Without patterns the list goes, and `tools` too if nothing else is in it.
    """
    expected = [_with_excluded(entry, agent_id, patterns) for entry in _list_entries(YAMLFile(name, text).value)]
    listed = _find_agents_node(yaml.compose(text, Loader=yaml.SafeLoader))
    for entry in getattr(listed, "value", None) or ():
        fields = {key.value: (key, value) for key, value in entry.value} if isinstance(entry, yaml.MappingNode) else {}
        if "agent_id" in fields and fields["agent_id"][1].value == agent_id:
            after = _edit_excluded(text, entry, fields, patterns)
            with suppress(ConfigError):  # raised if it is no longer YAML
                entries = _list_entries(YAMLFile(name, after).value)
                if [_without_empty_choice(each) for each in entries] == expected:
                    return after
    raise ConfigError(
        f"{name}: the entry of agent '{agent_id}' is written in a form that cannot be changed safely; "
        f"write `tools: {{exclude: {_dump_flow(patterns)}}}` there yourself"
    )


def set_enabled(text: str, agent_id: str, *, enabled: bool, name: str) -> str:
    """The text with `enabled` of an agent as given. Raises ConfigError if it cannot be changed safely."""
    expected = [_with_enabled(entry, agent_id, enabled) for entry in _list_entries(YAMLFile(name, text).value)]
    listed = _find_agents_node(yaml.compose(text, Loader=yaml.SafeLoader))
    written = "true" if enabled else "false"
    for entry in getattr(listed, "value", None) or ():
        fields = {key.value: (key, value) for key, value in entry.value} if isinstance(entry, yaml.MappingNode) else {}
        if "agent_id" not in fields or fields["agent_id"][1].value != agent_id:
            continue
        if "enabled" in fields:
            value = fields["enabled"][1]
            after = f"{text[: value.start_mark.index]}{written}{text[value.end_mark.index :]}"
        else:
            after = text if enabled else _add_key(text, entry, f"enabled: {written}")
        with suppress(ConfigError):  # raised if it is no longer YAML
            entries = _list_entries(YAMLFile(name, after).value)
            if [_with_enabled(each, agent_id, None) for each in entries] == expected:
                return after
    raise ConfigError(
        f"{name}: the entry of agent '{agent_id}' is written in a form that cannot be changed safely; "
        f"write `enabled: {written}` there yourself"
    )


def _with_enabled(entry: Any, agent_id: str, enabled: bool | None) -> Any:
    """With the value as given, or as it is; written out, since none means true."""
    if not isinstance(entry, dict) or entry.get("agent_id") != agent_id:
        return entry
    return {**entry, "enabled": entry.get("enabled", True) if enabled is None else enabled}


def _with_excluded(entry: Any, agent_id: str, patterns: Sequence[str]) -> Any:
    if isinstance(entry, dict) and entry.get("agent_id") == agent_id:
        entry = {**entry, "tools": {**(entry.get("tools") or {}), "exclude": list(patterns)}}
    return _without_empty_choice(entry)


def _without_empty_choice(entry: Any) -> Any:
    """An empty list of excluded tools, and an empty `tools`, mean the same as none."""
    if not isinstance(entry, dict) or not isinstance(entry.get("tools") or {}, dict):
        return entry
    tools = {key: value for key, value in (entry.get("tools") or {}).items() if key != "exclude" or value}
    rest = {key: value for key, value in entry.items() if key != "tools"}
    return {**rest, "tools": tools} if tools else rest


def _edit_excluded(text: str, entry: Any, fields: dict[str, Any], patterns: Sequence[str]) -> str:
    """Replace or remove the list, or add it to `tools`, or add `tools` to the entry."""
    written = f"exclude: {_dump_flow(patterns)}"
    if "tools" not in fields:
        return _add_key(text, entry, f"tools: {{{written}}}")
    tools = fields["tools"][1]
    if not patterns and not entry.flow_style and len(tools.value) == 1:
        return replace_lines(text, fields["tools"], "")
    if not isinstance(tools, yaml.MappingNode) or not tools.value:
        start = text[: tools.start_mark.index]
        return f"{start}{' ' * start.endswith(':')}{{{written}}}{text[tools.end_mark.index :]}"
    for key, value in tools.value:
        if key.value == "exclude":
            is_block = isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value
            end = (value.value[-1] if is_block else value).end_mark.index
            return f"{text[: key.start_mark.index]}{written}{text[end:]}"
    return _add_key(text, tools, written)


def _add_key(text: str, mapping: Any, written: str) -> str:
    """As the first key, whatever follows."""
    first = mapping.value[0][0].start_mark
    separator = ", " if mapping.flow_style else "\n" + " " * first.column
    if mapping.flow_style:
        return text[: first.index] + written + separator + text[first.index :]
    last = end_line_of(mapping)
    return insert_lines(text, last, f"{' ' * first.column}{written}\n")


def _dump_flow(patterns: Sequence[str]) -> str:
    return yaml.safe_dump(list(patterns), default_flow_style=True, allow_unicode=True, width=10_000).strip()


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
        return (start or "") + (_NEW_FILE_HEADER if not text.strip() else "agents:\n") + dump_block(list(entries), 2)
    listed = _find_agents_node(root)
    if listed is None:
        return end_with_newline(text) + "agents:\n" + dump_block(list(entries), 2)
    if is_empty(listed):
        return _fill_empty_list(text, listed, entries, indent=0 if listed is root else 2)
    if not isinstance(listed, yaml.SequenceNode) or listed.flow_style:
        raise _not_editable(name)
    return insert_lines(text, end_line_of(listed), dump_block(list(entries), listed.start_mark.column))


def _find_agents_node(root: Any) -> Any | None:
    """The node of the list; None if the table has no list yet."""
    if not isinstance(root, yaml.MappingNode):
        return root
    return next((value for key, value in root.value if key.value == "agents"), None)


def _fill_empty_list(text: str, empty: Any, entries: Sequence[dict[str, Any]], indent: int) -> str:
    """Put the entries in the place of `[]`, or of nothing."""
    start, end = empty.start_mark, empty.end_mark
    rest = text[: start.index].rstrip(" ") + text[end.index :]
    line_number = start.line + 1 if indent else start.line
    return insert_lines(rest, line_number, dump_block(list(entries), indent))


def _not_editable(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: its list of agents is written in a form to which nothing can be added; "
        "write it as a block list (one `- agent_id: …` a line), or name another file with --agents"
    )
