"""The difference of two texts by lines: shortest edit script (Myers), shown as a unified diff.

The search for the shortest script is cut off at a fixed number of edits; beyond
that the part in question counts as replaced, which is longer but just as true.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from a2a_fabric.tools.work import Patience

_MAX_EDITS = 1500

Lines = Sequence[str]


class Edit(NamedTuple):
    """One line of the script: its sign (space, minus or plus) and where it stands in both texts."""

    sign: str
    before: int
    after: int


def lines_of(original: str, modified: str) -> tuple[list[str], list[str]]:
    """Both texts as lines. A final newline that both have, or the only one that is not empty, adds no line."""
    ended = all(text.endswith("\n") or not text for text in (original, modified))
    return _lines(original, ended=ended), _lines(modified, ended=ended)


def _lines(text: str, *, ended: bool) -> list[str]:
    if not text:
        return []
    lines = text.split("\n")
    return lines[:-1] if ended else lines


def script(before: Lines, after: Lines, patience: Patience) -> list[Edit]:
    start = 0
    shortest = min(len(before), len(after))
    while start < shortest and before[start] == after[start]:
        start += 1
    tail = 0
    while tail < shortest - start and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle = _shortest(before[start : len(before) - tail], after[start : len(after) - tail], patience)
    edits = [Edit(" ", at, at) for at in range(start)]
    edits += [Edit(sign, x + start, y + start) for sign, x, y in middle]
    return edits + [Edit(" ", len(before) - at, len(after) - at) for at in range(tail, 0, -1)]


def _shortest(before: Lines, after: Lines, patience: Patience) -> list[Edit]:
    """Search forward: how far each diagonal gets with 0, 1, 2… edits, until one gets to the end."""
    reached: list[array[int]] = []
    for edits in range(min(len(before) + len(after), _MAX_EDITS) + 1):
        patience.check()
        front = array("i", bytes(4 * (edits + 1)))
        for at in range(edits + 1):
            x = _stepped(reached, edits, at)
            y = x - (2 * at - edits)
            while x < len(before) and y < len(after) and before[x] == after[y]:
                x, y = x + 1, y + 1
            front[at] = x
            if x >= len(before) and y >= len(after):
                return _traced(reached, edits, len(before), len(after))
        reached.append(front)
    removed = [Edit("-", at, 0) for at in range(len(before))]
    return removed + [Edit("+", len(before), at) for at in range(len(after))]


def _is_down(previous: array[int], edits: int, at: int) -> bool:
    """Whether the best way to this diagonal is an added line, rather than a removed one."""
    return at == 0 or (at != edits and previous[at - 1] < previous[at])


def _stepped(reached: list[array[int]], edits: int, at: int) -> int:
    if not edits:
        return 0
    previous = reached[-1]
    return previous[at] if _is_down(previous, edits, at) else previous[at - 1] + 1


def _traced(reached: list[array[int]], count: int, x: int, y: int) -> list[Edit]:
    """Back from the end to the start, along the points that were reached."""
    script: list[Edit] = []
    for edits in range(count, 0, -1):
        previous, at = reached[edits - 1], (x - y + edits) // 2
        down = _is_down(previous, edits, at)
        from_x = previous[at] if down else previous[at - 1]
        from_y = from_x - (2 * at - edits + (1 if down else -1))
        while x > from_x + (not down):
            x, y = x - 1, y - 1
            script.append(Edit(" ", x, y))
        script.append(Edit("+" if down else "-", from_x, from_y))
        x, y = from_x, from_y
    script += [Edit(" ", at, at) for at in range(x - 1, -1, -1)]
    script.reverse()
    return script


def unified(before: Lines, after: Lines, edits: list[Edit], context: int) -> str:
    """The script as a unified diff, empty if nothing changed."""
    shown = ["--- original", "+++ modified"]
    for first, last in _hunks(edits, context):
        hunk = edits[first:last]
        old = sum(edit.sign != "+" for edit in hunk)
        new = sum(edit.sign != "-" for edit in hunk)
        shown.append(f"@@ -{_range(hunk[0].before, old)} +{_range(hunk[0].after, new)} @@")
        shown += [edit.sign + (after[edit.after] if edit.sign == "+" else before[edit.before]) for edit in hunk]
    return "\n".join(shown) if len(shown) > 2 else ""


def _hunks(edits: list[Edit], context: int) -> Iterator[tuple[int, int]]:
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


def _range(start: int, length: int) -> str:
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"
