"""Adds agents to the text of an `agents.yaml`, and changes which tools they leave out; all other text stays."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import yaml

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing.yaml_text import (
    append_lines,
    dump_block,
    end_line_of,
    insert_lines,
    is_empty,
    replace_lines,
)
from a2a_fabric.yamlfile import YAMLFile

_COMMA = re.compile(r"[ \t]*,[ \t]*")
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

    Without patterns the list goes, and `tools` too if nothing else is in it, unless comments stand there.
    """
    expected = [_with_excluded(entry, agent_id, patterns) for entry in _list_entries(YAMLFile(name, text).value)]
    for edit in (_edit_patterns, _edit_excluded):
        with suppress(ConfigError, ValueError, yaml.YAMLError):  # raised if it cannot do that, or it is no longer YAML
            after = edit(text, agent_id, patterns)
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
    written = "true" if enabled else "false"
    with suppress(ConfigError, ValueError, yaml.YAMLError):  # raised for no such entry, or if it is no longer YAML
        entry, fields = _find_entry(text, agent_id)
        if "enabled" in fields:
            value = fields["enabled"][1]
            after = f"{text[: value.start_mark.index]}{written}{text[value.end_mark.index :]}"
        else:
            after = text if enabled else _add_key(text, entry, f"enabled: {written}")
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


def _find_entry(text: str, agent_id: str) -> tuple[Any, dict[str, Any]]:
    """The node of an agent, and its members by name. Raises ValueError."""
    listed = _find_agents_node(yaml.compose(text, Loader=yaml.SafeLoader))
    for entry in getattr(listed, "value", None) or ():
        fields = {key.value: (key, value) for key, value in entry.value} if isinstance(entry, yaml.MappingNode) else {}
        if "agent_id" in fields and fields["agent_id"][1].value == agent_id:
            return entry, fields
    raise ValueError("there is no such entry")


def _find_excluded(text: str, agent_id: str) -> tuple[Any, Any]:
    """The key and the list of `tools.exclude` with at least one pattern. Raises ValueError."""
    tools = _find_entry(text, agent_id)[1].get("tools", (None, None))[1]
    members = tools.value if isinstance(tools, yaml.MappingNode) else ()
    for key, value in members:
        if key.value == "exclude" and isinstance(value, yaml.SequenceNode) and value.value:
            return key, value
    raise ValueError("there is no such list")


def _edit_patterns(text: str, agent_id: str, patterns: Sequence[str]) -> str:
    """Put new patterns at the end of the list and take others out, one by one: comments in the list stay.

    Raises ValueError where the list has nothing to keep.
    """
    listed = _find_excluded(text, agent_id)[1]
    if not patterns and not _has_comment(text, _find_entry(text, agent_id)[1]["tools"], listed):
        raise ValueError("the list has no comments to keep")
    present = [each.value for each in listed.value]
    for pattern in patterns:
        if pattern not in present:
            text = _add_pattern(text, _find_excluded(text, agent_id)[1], pattern)
    for pattern in present:
        if pattern not in patterns:
            text = _remove_pattern(text, *_find_excluded(text, agent_id), pattern)
    return text


def _add_pattern(text: str, listed: Any, pattern: str) -> str:
    written = _dump_flow([pattern])[1:-1]
    if listed.flow_style:
        end = listed.value[-1].end_mark.index
        return f"{text[:end]}, {written}{text[end:]}"
    return insert_lines(text, end_line_of(listed), f"{' ' * listed.start_mark.column}- {written}\n")


def _remove_pattern(text: str, key: Any, listed: Any, pattern: str) -> str:
    """A comment behind the pattern on its line goes with it; all others stay."""
    number = next(number for number, each in enumerate(listed.value) if each.value == pattern)
    item, is_last, is_only = listed.value[number], number + 1 == len(listed.value), len(listed.value) == 1
    start, end = item.start_mark.index, item.end_mark.index
    if not listed.flow_style:
        rest = replace_lines(text, (item, item), "")
        colon = text.index(":", key.end_mark.index) + 1
        return f"{rest[:colon]} []{rest[colon:]}" if is_only else rest
    if not is_last or is_only:
        comma = _COMMA.match(text, end)
        return text[:start] + text[end if comma is None else comma.end() :]
    end_before = listed.value[number - 1].end_mark.index
    between = text[end_before:start]
    if "#" not in between:
        return text[:end_before] + text[end:]
    return text[:end_before] + between.replace(",", "", 1) + text[end:]


def _has_comment(text: str, member: tuple[Any, Any], listed: Any = None) -> bool:
    """On the lines of a member, except those of the items of a block list."""
    lines = text.splitlines()
    items = () if listed is None or listed.flow_style else listed.value
    own = {number for item in items for number in range(item.start_mark.line, end_line_of(item))}
    numbers = range(member[0].start_mark.line, end_line_of(member[1]))
    return any("#" in lines[number] for number in numbers if number not in own)


def _edit_excluded(text: str, agent_id: str, patterns: Sequence[str]) -> str:
    """Write the list as a whole, or remove it, or add it to `tools`, or add `tools` to the entry. Raises ValueError."""
    entry, fields = _find_entry(text, agent_id)
    written = f"exclude: {_dump_flow(patterns)}"
    if "tools" not in fields:
        return _add_key(text, entry, f"tools: {{{written}}}")
    tools = fields["tools"][1]
    if not patterns and not entry.flow_style and len(tools.value) == 1 and not _has_comment(text, fields["tools"]):
        return replace_lines(text, fields["tools"], "")
    if not isinstance(tools, yaml.MappingNode) or not tools.value:
        start = text[: tools.start_mark.index]
        return f"{start}{' ' * start.endswith(':')}{{{written}}}{text[tools.end_mark.index :]}"
    for key, value in tools.value:
        if key.value == "exclude":
            is_block = isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value
            end = (value.value[-1] if is_block else value).end_mark.index
            lines = text[key.end_mark.index : end]
            if "#" in lines if patterns else _has_comment(text, (key, value), value):
                raise ValueError("comments in the list would be lost")
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
        header = "agents:\n" if text.strip("\ufeff \t\r\n") else _NEW_FILE_HEADER
        return append_lines(text, header + dump_block(list(entries), 2))
    listed = _find_agents_node(root)
    if listed is None:
        return append_lines(text, "agents:\n" + dump_block(list(entries), 2))
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
