"""The difference of two texts by lines: shortest edit script (Myers), rendered as a unified diff.

The search for the shortest script stops at a fixed number of edits; beyond that the
part in question counts as replaced, which is longer but just as correct."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from a2a_fabric.tools.time_limit import TimeLimit

_MAX_EDITS = 1500

TextLines = Sequence[str]


class Edit(NamedTuple):
    """One line of the script: its sign (space, minus or plus) and where it stands in both texts."""

    sign: str
    before: int
    after: int


def split_texts(original: str, modified: str) -> tuple[list[str], list[str]]:
    """Both texts as lines. A final newline that both have, or the only one that is not empty, adds no line."""
    has_final_newline = all(text.endswith("\n") or not text for text in (original, modified))
    return _split_lines(original, has_final_newline=has_final_newline), _split_lines(
        modified, has_final_newline=has_final_newline
    )


def _split_lines(text: str, *, has_final_newline: bool) -> list[str]:
    if not text:
        return []
    lines = text.split("\n")
    return lines[:-1] if has_final_newline else lines


def build_script(before: TextLines, after: TextLines, time_limit: TimeLimit) -> list[Edit]:
    start = 0
    shortest = min(len(before), len(after))
    while start < shortest and before[start] == after[start]:
        start += 1
    common_tail = 0
    while common_tail < shortest - start and before[-1 - common_tail] == after[-1 - common_tail]:
        common_tail += 1
    middle = _search_shortest(
        before[start : len(before) - common_tail], after[start : len(after) - common_tail], time_limit
    )
    edits = [Edit(" ", at, at) for at in range(start)]
    edits += [Edit(sign, x + start, y + start) for sign, x, y in middle]
    return edits + [Edit(" ", len(before) - at, len(after) - at) for at in range(common_tail, 0, -1)]


def _search_shortest(before: TextLines, after: TextLines, time_limit: TimeLimit) -> list[Edit]:
    """Search forward: how far each diagonal gets with 0, 1, 2… edits, until one gets to the end."""
    fronts: list[array[int]] = []
    for edits in range(min(len(before) + len(after), _MAX_EDITS) + 1):
        time_limit.check()
        front = array("i", bytes(4 * (edits + 1)))
        for at in range(edits + 1):
            x = _step_diagonal(fronts, edits, at)
            y = x - (2 * at - edits)
            while x < len(before) and y < len(after) and before[x] == after[y]:
                x, y = x + 1, y + 1
            front[at] = x
            if x >= len(before) and y >= len(after):
                return _trace_back(fronts, edits, len(before), len(after))
        fronts.append(front)
    removed = [Edit("-", at, 0) for at in range(len(before))]
    return removed + [Edit("+", len(before), at) for at in range(len(after))]


def _is_insertion(previous: array[int], edits: int, at: int) -> bool:
    """Whether the best way to this diagonal is an added line, rather than a removed one."""
    return at == 0 or (at != edits and previous[at - 1] < previous[at])


def _step_diagonal(fronts: list[array[int]], edits: int, at: int) -> int:
    if not edits:
        return 0
    previous = fronts[-1]
    return previous[at] if _is_insertion(previous, edits, at) else previous[at - 1] + 1


def _trace_back(fronts: list[array[int]], count: int, x: int, y: int) -> list[Edit]:
    """Back from the end to the start, along the points that were reached."""
    edit_script: list[Edit] = []
    for edits in range(count, 0, -1):
        previous, at = fronts[edits - 1], (x - y + edits) // 2
        is_insertion = _is_insertion(previous, edits, at)
        from_x = previous[at] if is_insertion else previous[at - 1]
        from_y = from_x - (2 * at - edits + (1 if is_insertion else -1))
        while x > from_x + (not is_insertion):
            x, y = x - 1, y - 1
            edit_script.append(Edit(" ", x, y))
        edit_script.append(Edit("+" if is_insertion else "-", from_x, from_y))
        x, y = from_x, from_y
    edit_script += [Edit(" ", at, at) for at in range(x - 1, -1, -1)]
    edit_script.reverse()
    return edit_script


def render_unified(before: TextLines, after: TextLines, edits: list[Edit], context: int) -> str:
    """The script as a unified diff, empty if nothing changed."""
    output = ["--- original", "+++ modified"]
    for first, last in _find_hunks(edits, context):
        hunk = edits[first:last]
        old = sum(edit.sign != "+" for edit in hunk)
        new = sum(edit.sign != "-" for edit in hunk)
        output.append(f"@@ -{_format_range(hunk[0].before, old)} +{_format_range(hunk[0].after, new)} @@")
        output += [edit.sign + (after[edit.after] if edit.sign == "+" else before[edit.before]) for edit in hunk]
    return "\n".join(output) if len(output) > 2 else ""


def _find_hunks(edits: list[Edit], context: int) -> Iterator[tuple[int, int]]:
    start = end = -1
    for at, edit in enumerate(edits):
        if edit.sign == " ":
            continue
        if start < 0:
            start = max(0, at - context)
        elif at - context > end:
            yield start, end
            start = at - context
        end = min(len(edits), at + context + 1)
    if start >= 0:
        yield start, end


def _format_range(start: int, length: int) -> str:
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"
