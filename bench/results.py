"""The results of runs, kept as JSON: the documentation and the chart are made from them, never written by hand.

Each group prints its tables; what it prints is recorded with the moment, the machine and the commit.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench import rig

KEPT = Path(__file__).with_name("results.json")


class Table(msgspec.Struct, tag=True):
    columns: list[str]
    rows: list[list[str]]

    def find(self, name: str, column: str, connections: int | None = None) -> float | None:
        """A figure by the name of its row, which begins its line, and its column."""
        for row in self.rows:
            if row[0] == name and (connections is None or row[1] == str(connections)) and column in self.columns:
                return parse_figure(row[self.columns.index(column)])
        return None

    def render(self) -> str:
        head, *rows = (f"| {' | '.join(cells)} |" for cells in (self.columns, *self.rows))
        return "\n".join([head, f"|{'---|' * len(self.columns)}", *rows])


class Note(msgspec.Struct, tag=True):
    text: str

    def render(self) -> str:
        return self.text


class Group(msgspec.Struct):
    """What one group has printed, and where."""

    measured_at: str
    machine: str
    commit: str
    effort: str
    blocks: list[Table | Note]

    def render(self) -> str:
        head = f"Measured {self.measured_at} on {self.machine}, commit {self.commit}{self.effort}."
        return "\n\n".join([head, *(block.render() for block in self.blocks)])

    def find(self, name: str, column: str, connections: int | None = None) -> float | None:
        for block in self.blocks:
            if isinstance(block, Table) and (figure := block.find(name, column, connections)) is not None:
                return figure
        return None


class Results(msgspec.Struct):
    groups: dict[str, Group] = {}

    def find(self, group: str, name: str, column: str, connections: int | None = None) -> float | None:
        """None if it was not measured."""
        return self.groups[group].find(name, column, connections) if group in self.groups else None


def parse_figure(cell: str) -> float | None:
    try:
        return float(cell.removesuffix("%").replace(",", "")) / (100 if cell.endswith("%") else 1)
    except ValueError:
        return None


def read_results(path: Path = KEPT) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()


def write_results(results: Results, path: Path = KEPT) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def describe_machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"gateway on one core, {rig.name()} on the other"
    )


class _Recorder(io.TextIOBase):
    """Passes on what is printed, and keeps it."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()


@contextmanager
def record(results: Results, group: str, effort: str) -> Iterator[None]:
    """Record what is printed meanwhile as the results of this group."""
    began = datetime.now(UTC)
    with redirect_stdout(_Recorder()) as recorder:
        yield
    moment = f"{began:%Y-%m-%d %H:%M} to {datetime.now(UTC):%H:%M} UTC"
    results.groups[group] = Group(moment, describe_machine(), _find_commit(), effort, parse_blocks(recorder.text))


def parse_blocks(text: str) -> list[Table | Note]:
    """The tables and the other paragraphs of what a group has printed."""
    blocks: list[Table | Note] = []
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        lines = paragraph.splitlines()
        if lines[0].startswith("| ") and len(lines) > 1:
            columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
            blocks.append(Table(columns, rows))
        else:
            blocks.append(Note(paragraph))
    return blocks


def _find_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=KEPT.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
