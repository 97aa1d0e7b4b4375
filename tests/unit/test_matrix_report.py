"""The page of the matrix says what was seen, and nothing when not all of it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from tests.matrix.report import Cell, MatrixReport, Seen, property_of, rendered, shape_of

GOOD = Cell("web", "python", "reply", None, None, 4)
OTHERWISE = Cell("web", "tool", "reply", "it is late", "the answer alone", 4)
NEVER = Cell("cli", "tool", "reply", "it has no words", None, 4)
LAST = Cell("cli", "python", "reply", None, None, 4)


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def told(report: MatrixReport, cell: Cell, outcome: Literal["passed", "failed"] = "passed") -> None:
    report.pytest_runtest_logreport(
        pytest.TestReport("a test", ("file", 1, "name"), {}, outcome, None, "call", user_properties=[property_of(cell)])
    )


def finished(report: MatrixReport) -> list[str]:
    terminal: Any = Terminal()
    report.pytest_terminal_summary(terminal)
    return list(terminal.lines)


def test_a_whole_matrix_is_shown_and_written(tmp_path: Path) -> None:
    page = tmp_path / "matrix.md"
    report = MatrixReport(page)
    for cell in (GOOD, OTHERWISE, NEVER):
        told(report, cell)
    assert finished(report) == []
    assert not page.exists()
    told(report, LAST)
    (shown,) = finished(report)
    assert "| python | ✓ | ✓ |\n| tool | ✓ a | ✓ b |" in shown
    assert "- a: *reply*: impossible: it has no words" in shown
    assert "- b: *reply*: the answer alone (it is late)" in shown
    assert shape_of(page.read_text()) == (["cli", "web"], ["python", "tool"])


def test_what_failed_is_shown_but_never_published(tmp_path: Path) -> None:
    report = MatrixReport(tmp_path / "matrix.md")
    for cell in (GOOD, OTHERWISE, NEVER):
        told(report, cell)
    told(report, LAST, "failed")
    assert "| python | ✗ reply | ✓ |" in finished(report)[0]
    assert not (tmp_path / "matrix.md").exists()


def test_many_reasons_have_letters_enough() -> None:
    cells = [Cell("web", f"r{number}", "reply", f"reason {number:02}", None, 30) for number in range(30)]
    page = rendered(Seen(dict.fromkeys(cells)))
    assert "- z: *reply*: impossible: reason 25" in page
    assert "- ab: *reply*: impossible: reason 27" in page
