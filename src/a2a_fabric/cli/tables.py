"""Prints tables: coloured and fitted to a terminal, plain columns for pipes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from a2a_fabric.cli.output import STYLES
from a2a_fabric.core.ports import load_module

if TYPE_CHECKING:
    from rich.table import Table

_MIN_WIDTH = 14  # shorter words are not broken, as long as the terminal is wide enough
_COLUMN_GAP = 2


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    if sys.stdout.isatty():
        console = load_module("rich.console").Console()  # only for a terminal, and never by a node
        console.print(_build_table(columns, rows, console.width))
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [[name.upper() for name in columns], *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _build_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """The first column is never broken; the others break long words if the terminal is too narrow for them."""
    text_type = load_module("rich.text").Text
    table: Table = load_module("rich.table").Table(box=None, pad_edge=False, header_style="bold")
    first, *others = zip(columns, *rows, strict=True)
    min_widths = [
        min(_MIN_WIDTH, max(len(word) for cell in cells for word in cell.split() or [""])) for cells in others
    ]
    available = width - max(map(len, first)) - _COLUMN_GAP * len(others)
    is_tight = sum(min_widths) > available
    while sum(min_widths) > max(available, len(others)):
        min_widths[min_widths.index(max(min_widths))] -= 1
    table.add_column(columns[0].upper(), no_wrap=True, overflow="fold")
    for name, min_width in zip(columns[1:], min_widths, strict=True):
        table.add_column(name.upper(), overflow="fold", min_width=min_width, width=min_width if is_tight else None)
    for row in rows:
        table.add_row(*(text_type(cell, style=STYLES.get(cell, "")) for cell in row))
    return table
