"""The text tools: match, transform and compare texts."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from a2a_fabric.core.errors import FabricError
from a2a_fabric.tools.computation import compute
from a2a_fabric.tools.regex import RegexPattern, Spans
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, encode_utf8, tool_error

MAX_TEXT = 1_000_000
_MAX_MATCHES = 10_000
_MAX_OUTPUT = 4_000_000
_MAX_LINES = 100_000  # of a text that is compared
_MAX_LINE_PAIRS = 5_000_000  # equal lines of the two texts: about a second of difflib's time

Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class RegexArguments(ToolArguments, frozen=True, kw_only=True):
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


async def _match_regex(arguments: RegexArguments, toolbox: Toolbox) -> RegexResult:
    return await compute(toolbox.computations, len(arguments.text), _find_matches, arguments)


def _find_matches(time_limit: TimeLimit, arguments: RegexArguments) -> RegexResult:
    pattern = RegexPattern(arguments.pattern, arguments.flags)
    text = encode_utf8(arguments.text, "MATCH_ERROR")
    result: RegexResult = {"matches": [], "groups": [], "count": 0, "pattern": arguments.pattern}
    size = 0
    for spans in pattern.find_matches(text, time_limit):
        result["count"] += 1
        if result["count"] > _MAX_MATCHES:
            continue
        size += sum(end - start for start, end in spans)
        if size > _MAX_OUTPUT:
            raise tool_error("MATCH_ERROR", f"The matches are longer than {_MAX_OUTPUT} bytes together")
        result["matches"].append(_extract_span(text, spans[0]) or "")
        result["groups"].append(_extract_groups(pattern, text, spans))
    return result


def _extract_groups(pattern: RegexPattern, text: bytes, spans: Spans) -> list[str | None] | dict[str, str | None]:
    if pattern.names:
        return {name: _extract_span(text, spans[index]) for name, index in pattern.names.items()}
    return [_extract_span(text, span) for span in spans[1:]]


def _extract_span(text: bytes, span: tuple[int, int]) -> str | None:
    return None if span[0] < 0 else text[span[0] : span[1]].decode("utf-8", "replace")


class TextOperation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["uppercase", "lowercase", "trim", "truncate", "replace", "split", "join"]
    length: Annotated[int, Meta(ge=0, description="truncate: characters to keep before '...'.")] = 100
    old: Annotated[str, Meta(description="replace: what to look for.")] = ""
    new: Annotated[str, Meta(description="replace: what to put there.")] = ""
    count: Annotated[int, Meta(ge=-1, description="replace: how many at most; -1 means all.")] = -1
    separator: Annotated[str | None, Meta(description="split (a newline if unset), join (nothing if unset).")] = None


class TransformArguments(ToolArguments, frozen=True, kw_only=True):
    text: Annotated[Text, Meta(description="The text to change.")]
    operations: Annotated[tuple[TextOperation, ...], Meta(max_length=100, description="Applied one after another.")]


class TransformResult(TypedDict):
    result: str | list[str]
    operations_applied: int


async def _transform(arguments: TransformArguments, toolbox: Toolbox) -> TransformResult:
    weight = len(arguments.text) * len(arguments.operations)
    return await compute(toolbox.computations, weight, _apply_operations, arguments)


def _apply_operations(time_limit: TimeLimit, arguments: TransformArguments) -> TransformResult:
    result: str | list[str] = arguments.text
    for number, operation in enumerate(arguments.operations, 1):
        time_limit.check()
        try:
            result = _join_parts(result, operation) if isinstance(result, list) else _apply_operation(result, operation)
        except ValueError as exc:
            raise _build_error(number, operation, str(exc)) from exc
    return {"result": result, "operations_applied": len(arguments.operations)}


def _build_error(number: int, operation: TextOperation, reason: str) -> FabricError:
    return tool_error("TRANSFORM_ERROR", f"Operation {number} ({operation.type}): {reason}")


def _apply_operation(text: str, operation: TextOperation) -> str | list[str]:
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
            return _replace_text(text, operation)
        case "split":
            return _split_text(text, "\n" if operation.separator is None else operation.separator)
        case "join":
            raise ValueError("there is nothing to join; split the text first")


def _replace_text(text: str, operation: TextOperation) -> str:
    if not operation.old:
        raise ValueError("'old' must not be empty")
    occurrences = text.count(operation.old)
    replacements = occurrences if operation.count < 0 else min(occurrences, operation.count)
    if len(text) + replacements * (len(operation.new) - len(operation.old)) > _MAX_OUTPUT:
        raise ValueError(f"the result would be longer than {_MAX_OUTPUT} characters")
    return text.replace(operation.old, operation.new, operation.count)


def _split_text(text: str, separator: str) -> list[str]:
    if not separator:
        raise ValueError("'separator' must not be empty")
    return text.split(separator)


def _join_parts(parts: list[str], operation: TextOperation) -> str:
    if operation.type != "join":
        raise ValueError("the text was split before; join it first")
    separator = operation.separator or ""
    if sum(map(len, parts)) + len(separator) * len(parts) > _MAX_OUTPUT:
        raise ValueError(f"the result would be longer than {_MAX_OUTPUT} characters")
    return separator.join(parts)


class DiffArguments(ToolArguments, frozen=True, kw_only=True):
    original: Annotated[Text, Meta(description="The text before.")]
    modified: Annotated[Text, Meta(description="The text after.")]
    context_lines: Annotated[int, Meta(ge=0, le=1000, description="Unchanged lines shown around a change.")] = 3


class DiffResult(TypedDict):
    diff: str
    added: int
    removed: int
    unchanged: int
    total_changes: int


async def _compare_texts(arguments: DiffArguments, toolbox: Toolbox) -> DiffResult:
    line_pairs = arguments.original.count("\n") * arguments.modified.count("\n")
    weight = line_pairs + len(arguments.original) + len(arguments.modified)
    return await compute(toolbox.computations, weight, _build_diff, arguments)


def _build_diff(time_limit: TimeLimit, arguments: DiffArguments) -> DiffResult:
    before, after = split_texts(arguments.original, arguments.modified)
    if max(len(before), len(after)) > _MAX_LINES:
        raise tool_error("DIFF_ERROR", f"A text has more than {_MAX_LINES} lines; compare parts of it")
    matcher = match_lines(before, after, time_limit)
    unchanged = sum(block.size for block in matcher.get_matching_blocks())
    added, removed = len(after) - unchanged, len(before) - unchanged
    return {
        "diff": render_unified(before, after, matcher, arguments.context_lines),
        "added": added,
        "removed": removed,
        "unchanged": unchanged,
        "total_changes": added + removed,
    }


def split_texts(original: str, modified: str) -> tuple[list[str], list[str]]:
    """Both texts as lines. A final newline adds no line if both texts end with one, or the other text is empty."""
    texts = (original, modified)
    end = -1 if all(text.endswith("\n") or not text for text in texts) else None
    before, after = (text.split("\n")[:end] if text else [] for text in texts)
    return before, after


class _TimedLines(list[str]):
    """Lines that check the time limit when difflib reads one; its search cannot be interrupted in another way."""

    def __init__(self, lines: list[str], time_limit: TimeLimit) -> None:
        super().__init__(lines)
        self._time_limit = time_limit

    def __getitem__(self, at: Any) -> Any:
        self._time_limit.check()
        return super().__getitem__(at)


def match_lines(before: list[str], after: list[str], time_limit: TimeLimit) -> SequenceMatcher[str]:
    """Compare two texts. difflib takes time for every pair of equal lines, so lines that occur too often are matched
    only beside other matches."""
    counts = Counter(after)
    max_count = _MAX_LINE_PAIRS // max(1, len(before))
    matcher = SequenceMatcher(
        lambda line: counts[line] > max_count, _TimedLines(before, time_limit), after, autojunk=False
    )
    matcher.get_opcodes()
    return matcher


def render_unified(before: list[str], after: list[str], matcher: SequenceMatcher[str], context: int) -> str:
    """A unified diff, empty if nothing changed. `difflib.unified_diff` would compare once more, without a limit."""
    output: list[str] = []
    for hunk in matcher.get_grouped_opcodes(context):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = hunk[0], hunk[-1]
        output.append(f"@@ -{_format_range(i1, i2)} +{_format_range(j1, j2)} @@")
        for tag, i1, i2, j1, j2 in hunk:
            if tag == "equal":
                output += [f" {line}" for line in before[i1:i2]]
            else:
                output += [f"-{line}" for line in before[i1:i2]]
                output += [f"+{line}" for line in after[j1:j2]]
    return "\n".join(["--- original", "+++ modified", *output]) if output else ""


def _format_range(start: int, end: int) -> str:
    length = end - start
    return str(end) if length == 1 else f"{start + 1 if length else start},{length}"


TOOLS = (
    BuiltinTool(
        tool_id="text.regex",
        capability="match",
        category="text",
        display_name="Match a pattern",
        description="All matches of a regular expression in a text, with their groups; the first 10000 are shown.",
        arguments=RegexArguments,
        result=RegexResult,
        handler=_match_regex,
    ),
    BuiltinTool(
        tool_id="text.transform",
        capability="transform",
        category="text",
        display_name="Transform text",
        description="Changes a text by a list of operations; `split` makes a list of it, `join` a text again.",
        arguments=TransformArguments,
        result=TransformResult,
        handler=_transform,
    ),
    BuiltinTool(
        tool_id="text.diff",
        capability="compare",
        category="text",
        display_name="Compare texts",
        description="The difference of two texts, line by line, as a unified diff with counts.",
        arguments=DiffArguments,
        result=DiffResult,
        handler=_compare_texts,
    ),
)
