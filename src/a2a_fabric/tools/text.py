"""Tools: matching, transforming and comparing texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import FabricError
from a2a_fabric.tools.difference import lines_of, script, unified
from a2a_fabric.tools.encodings import utf8
from a2a_fabric.tools.regex import Pattern, Spans
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import Patience, in_thread

MAX_TEXT = 1_000_000
_MAX_MATCHES = 10_000
_MAX_OUTPUT = 4_000_000
_MAX_LINES = 100_000  # of a text that is compared

Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class RegexArguments(Arguments, frozen=True, kw_only=True):
    text: Annotated[Text, Meta(description="Where to look.")]
    pattern: Annotated[str, Meta(max_length=1000, description="RE2 syntax: no look-around, no back-references.")]
    flags: Annotated[
        tuple[Literal["i", "m", "s", "x"], ...],
        Meta(
            max_length=8, description="i: ignore case, m: ^ and $ at lines, s: dot matches newline, x: with comments."
        ),
    ] = ()


class RegexResult(TypedDict):
    matches: list[str]
    groups: list[list[str | None] | dict[str, str | None]]
    count: int
    pattern: str


async def _regex(given: RegexArguments, _: Toolbox) -> RegexResult:
    return await in_thread(_matched, given)


def _matched(patience: Patience, given: RegexArguments) -> RegexResult:
    pattern = Pattern(given.pattern, given.flags)
    text = utf8(given.text, "MATCH_ERROR")
    result: RegexResult = {"matches": [], "groups": [], "count": 0, "pattern": given.pattern}
    size = 0
    for spans in pattern.matches(text, patience):
        result["count"] += 1
        if result["count"] > _MAX_MATCHES:
            continue
        size += sum(end - start for start, end in spans)
        if size > _MAX_OUTPUT:
            raise tool_error("MATCH_ERROR", f"The matches are longer than {_MAX_OUTPUT} bytes together")
        result["matches"].append(_cut(text, spans[0]) or "")
        result["groups"].append(_groups(pattern, text, spans))
    return result


def _groups(pattern: Pattern, text: bytes, spans: Spans) -> list[str | None] | dict[str, str | None]:
    if pattern.names:
        return {name: _cut(text, spans[index]) for name, index in pattern.names.items()}
    return [_cut(text, span) for span in spans[1:]]


def _cut(text: bytes, span: tuple[int, int]) -> str | None:
    return None if span[0] < 0 else text[span[0] : span[1]].decode("utf-8", "replace")


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["uppercase", "lowercase", "trim", "truncate", "replace", "split", "join"]
    length: Annotated[int, Meta(ge=0, description="truncate: characters to keep before '...'.")] = 100
    old: Annotated[str, Meta(description="replace: what to look for.")] = ""
    new: Annotated[str, Meta(description="replace: what to put there.")] = ""
    count: Annotated[int, Meta(ge=-1, description="replace: how many at most; -1 means all.")] = -1
    separator: Annotated[str | None, Meta(description="split (a newline if unset), join (nothing if unset).")] = None


class TransformArguments(Arguments, frozen=True, kw_only=True):
    text: Annotated[Text, Meta(description="The text to change.")]
    operations: Annotated[tuple[Operation, ...], Meta(max_length=100, description="Applied one after another.")]


class TransformResult(TypedDict):
    result: str | list[str]
    operations_applied: int


async def _transform(given: TransformArguments, _: Toolbox) -> TransformResult:
    return await in_thread(_transformed, given)


def _transformed(patience: Patience, given: TransformArguments) -> TransformResult:
    result: str | list[str] = given.text
    for number, operation in enumerate(given.operations, 1):
        patience.check()
        try:
            result = _join(result, operation) if isinstance(result, list) else _change(result, operation)
        except ValueError as exc:
            raise _wrong(number, operation, str(exc)) from exc
    return {"result": result, "operations_applied": len(given.operations)}


def _wrong(number: int, operation: Operation, why: str) -> FabricError:
    return tool_error("TRANSFORM_ERROR", f"Operation {number} ({operation.type}): {why}")


def _change(text: str, operation: Operation) -> str | list[str]:
    match operation.type:
        case "uppercase":
            return text.upper()
        case "lowercase":
            return text.lower()
        case "trim":
            return text.strip()
        case "truncate":
            return text if len(text) <= operation.length else text[: operation.length] + "..."
        case "replace":
            return _replace(text, operation)
        case "split":
            return _split(text, "\n" if operation.separator is None else operation.separator)
        case "join":
            raise ValueError("there is nothing to join; split the text first")


def _replace(text: str, operation: Operation) -> str:
    if not operation.old:
        raise ValueError("'old' must not be empty")
    places = text.count(operation.old)
    changed = places if operation.count < 0 else min(places, operation.count)
    if len(text) + changed * (len(operation.new) - len(operation.old)) > _MAX_OUTPUT:
        raise ValueError(f"the result would be longer than {_MAX_OUTPUT} characters")
    return text.replace(operation.old, operation.new, operation.count)


def _split(text: str, separator: str) -> list[str]:
    if not separator:
        raise ValueError("'separator' must not be empty")
    return text.split(separator)


def _join(parts: list[str], operation: Operation) -> str:
    if operation.type != "join":
        raise ValueError("the text was split before; join it first")
    separator = operation.separator or ""
    if sum(map(len, parts)) + len(separator) * len(parts) > _MAX_OUTPUT:
        raise ValueError(f"the result would be longer than {_MAX_OUTPUT} characters")
    return separator.join(parts)


class DiffArguments(Arguments, frozen=True, kw_only=True):
    original: Annotated[Text, Meta(description="The text before.")]
    modified: Annotated[Text, Meta(description="The text after.")]
    context_lines: Annotated[int, Meta(ge=0, le=1000, description="Unchanged lines shown around a change.")] = 3


class DiffResult(TypedDict):
    diff: str
    added: int
    removed: int
    unchanged: int
    total_changes: int


async def _diff(given: DiffArguments, _: Toolbox) -> DiffResult:
    return await in_thread(_compared, given)


def _compared(patience: Patience, given: DiffArguments) -> DiffResult:
    before, after = lines_of(given.original, given.modified)
    if max(len(before), len(after)) > _MAX_LINES:
        raise tool_error("DIFF_ERROR", f"A text has more than {_MAX_LINES} lines; compare parts of it")
    edits = script(before, after, patience)
    signs: dict[str, Any] = {sign: sum(edit.sign == sign for edit in edits) for sign in "+- "}
    return {
        "diff": unified(before, after, edits, given.context_lines),
        "added": signs["+"],
        "removed": signs["-"],
        "unchanged": signs[" "],
        "total_changes": signs["+"] + signs["-"],
    }


TOOLS = (
    Tool(
        tool_id="text.regex",
        capability="match",
        category="text",
        display_name="Match a pattern",
        description="All matches of a regular expression in a text, with their groups; the first 10000 are shown.",
        arguments=RegexArguments,
        result=RegexResult,
        handler=_regex,
    ),
    Tool(
        tool_id="text.transform",
        capability="transform",
        category="text",
        display_name="Transform text",
        description="Changes a text by a list of operations; `split` makes a list of it, `join` a text again.",
        arguments=TransformArguments,
        result=TransformResult,
        handler=_transform,
    ),
    Tool(
        tool_id="text.diff",
        capability="compare",
        category="text",
        display_name="Compare texts",
        description="The difference of two texts, line by line, as a unified diff with counts.",
        arguments=DiffArguments,
        result=DiffResult,
        handler=_diff,
    ),
)
