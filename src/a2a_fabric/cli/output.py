"""Results on stdout, remarks on stderr: JSON for programs, tables for people, plain columns for pipes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from a2a_fabric.core.errors import FabricError

_MIN_WIDTH = 14  # no shorter word is broken, as long as the terminal allows it
_STYLES = {
    **dict.fromkeys(("online", "ok", "completed"), "green"),
    **dict.fromkeys(("degraded", "input_required", "cancelled"), "yellow"),
    **dict.fromkeys(("offline", "failed", "timeout", "rejected"), "red"),
    **dict.fromkeys(("unknown", "off", "queued"), "dim"),
}


def print_json(value: Any) -> None:
    _write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    """One of many, each whole on its line."""
    _write(msgspec.json.encode(value).decode())


def print_line(text: str = "") -> None:
    _write(text)


def remark(text: str) -> None:
    """For the person at the terminal, never for the next program in the pipe."""
    typer.echo(text, err=True)


def build_failure(error: FabricError) -> dict[str, Any]:
    return {
        "ok": False,
        "trace": {"trace_id": error.trace_id} if error.trace_id else None,
        "result": None,
        "error": error.message,
        "error_code": error.code,
        "error_details": error.details,
    }


@contextmanager
def report_errors(*, as_json: bool) -> Iterator[None]:
    """With `as_json`, an error is a JSON object on stdout too."""
    try:
        yield
    except FabricError as error:
        if not as_json:
            raise
        print_json(build_failure(error))
        raise typer.Exit(1) from error


def print_result(data: dict[str, Any], shown_text: str = "", *, is_continuation: bool = False) -> None:
    """The answer, unless its words are on the screen already; then whatever else the agent said.

    With `is_rest` the words are those since the person came back: the answer may have begun before them.
    """
    remaining = dict(data)
    answer = remaining.get("answer")
    if isinstance(answer, str):
        del remaining["answer"]
        shown = shown_text.strip()
        if answer.strip() != shown and not (is_continuation and shown and answer.strip().endswith(shown)):
            _write(answer)
    for name, value in remaining.items():
        _write(f"{name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    rows = [[_join_lines(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        Console().print(_build_table(columns, rows))
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [[name.upper() for name in columns], *rows]:
        _write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line; what is empty is left out."""
    filled = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in filled), default=0)
    for name, value in filled:
        typer.secho(f"{name.ljust(width)}  ", bold=True, nl=False)
        typer.secho(value, fg=_STYLES.get(value) if _STYLES.get(value) != "dim" else None)


def _build_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, cells in enumerate(zip(columns, *rows, strict=True)):
        longest = max(len(word) for cell in cells for word in (cell.split() or [""]))
        table.add_column(cells[0].upper(), no_wrap=number == 0, overflow="fold", min_width=min(longest, _MIN_WIDTH))
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _write(text: str) -> None:
    typer.echo(text)
