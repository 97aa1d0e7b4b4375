"""What came of the matrix, as a table: printed when all of it has run, and written to `docs/matrix.md`.

Tests say which cell they are about in a property; it reaches this place also from
other processes, where nothing of the matrix is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CELL = "matrix"
PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"

_OPENING = """# The matrix

Every door works with every runtime. The tests check each pair with a real client of the door's protocol in front of a
node and a real agent of the runtime's protocol behind it. They write this page from what they saw (`make matrix`;
`make test` runs a seventh of them).

The columns are doors: `a2a-…` the bindings of A2A, `fabric…` the Fabric wire (plain, event stream, WebSocket), `client`
the Python client, `mcp-legacy` and `mcp-2026` the two eras of MCP, `mcp-agent-…` one agent alone at `/agents/ID/mcp`.
The rows are runtimes. Each ✓ stands for all of the following; a letter leads to a difference and its reason below the
table.

"""
_MEANINGS = {
    "reply": "typed arguments and the answer arrive unchanged",
    "words": "a task in words becomes the argument that it is meant for",
    "free form": "a capability without a schema gets task and context unchanged",
    "stream": "the agent's text arrives piece by piece, while the agent works",
    "typed error": "a refusal of the agent arrives with its code and its reason",
    "timeout": "the call ends when its time is up, and so does the agent's work",
    "cancel": "when the client disconnects, the agent's work ends",
    "failing": "when the agent breaks, a declared fallback answers, and the answer says so",
    "standing in": "the agent answers, as a declared fallback, for one that cannot be reached",
    "content": "text, image, audio, video, file, json, function_call and function_result travel both ways",
}


@dataclass(frozen=True)
class Cell:
    """`why` is set where the pair cannot do it; `instead` if something else is seen there."""

    door: str
    runtime: str
    aspect: str
    why: str | None
    instead: str | None
    of: int  # how many cells there are in all


@dataclass
class Seen:
    """The cells that ran, in order, and those that went wrong."""

    cells: dict[Cell, None] = field(default_factory=dict)
    failed: set[Cell] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return bool(self.cells) and len(self.cells) == max(cell.of for cell in self.cells)

    def names(self, which: str) -> list[str]:
        """By the alphabet: tests end in no certain order."""
        return sorted({getattr(cell, which) for cell in self.cells})


class MatrixReport:
    def __init__(self, page: Path | None = PAGE) -> None:
        self.seen = Seen()
        self._page = page

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, told in report.user_properties:
            if name == CELL and isinstance(told, list | tuple):
                cell = Cell(*told)
                if report.failed:
                    self.seen.failed.add(cell)
                if report.when == "call":
                    self.seen.cells[cell] = None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.seen.is_complete:
            return
        page = rendered(self.seen)
        terminalreporter.write_line(page[page.index("| ") :])
        if self._page is not None and not self.seen.failed:
            self._page.write_text(page, "utf-8")


def rendered(seen: Seen) -> str:
    notes = _Notes(seen)
    doors, runtimes = seen.names("door"), seen.names("runtime")
    meanings = [f"- **{name}**: {text}\n" for name, text in _MEANINGS.items()]
    head = [f"| | {' | '.join(doors)} |\n", f"|---|{'---|' * len(doors)}\n"]
    rows = [f"| {name} | {' | '.join(_told(seen, notes, door, name) for door in doors)} |\n" for name in runtimes]
    return "".join([_OPENING, *meanings, "\n", *head, *rows, "\n", *notes.lines()])


def shape_of(page: str) -> tuple[list[str], list[str]]:
    """The doors and the runtimes of a page."""
    rows = [[word.strip() for word in line.strip("| ").split("|")] for line in page.splitlines() if line[:2] == "| "]
    return rows[0], [row[0] for row in rows[1:]]


def _told(seen: Seen, notes: _Notes, door: str, runtime: str) -> str:
    here = [cell for cell in seen.cells if (cell.door, cell.runtime) == (door, runtime)]
    wrong = [cell.aspect for cell in here if cell in seen.failed]
    if wrong:
        return f"✗ {', '.join(sorted(wrong))}"
    letters = sorted({notes.letter(cell) for cell in here if cell.why is not None}, key=lambda one: (len(one), one))
    return f"✓ {' '.join(letters)}".rstrip()


class _Notes:
    """A letter for each reason."""

    def __init__(self, seen: Seen) -> None:
        self._aspects: dict[tuple[str, str], set[str]] = {}
        for cell in seen.cells:
            if cell.why is not None:
                self._aspects.setdefault((cell.why, cell.instead or ""), set()).add(cell.aspect)
        self._order = sorted(self._aspects, key=lambda key: (sorted(self._aspects[key]), key))

    def letter(self, cell: Cell) -> str:
        return _letter(self._order.index((cell.why or "", cell.instead or "")))

    def lines(self) -> list[str]:
        return [self._line(number, key) for number, key in enumerate(self._order)]

    def _line(self, number: int, key: tuple[str, str]) -> str:
        why, instead = key
        seen = f"{instead} ({why})" if instead else f"impossible: {why}"
        return f"- {_letter(number)}: *{', '.join(sorted(self._aspects[key]))}*: {seen}\n"


def _letter(number: int) -> str:
    """a, b, … z, aa, ab…"""
    last = chr(ord("a") + number % 26)
    return last if number < 26 else chr(ord("a") + number // 26 - 1) + last


def property_of(cell: Cell) -> tuple[str, Any]:
    return CELL, [cell.door, cell.runtime, cell.aspect, cell.why, cell.instead, cell.of]
