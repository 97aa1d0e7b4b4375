"""Prints results on stdout and remarks on stderr: JSON for programs, text for people.

Tables are coloured and fitted to a terminal, and plain columns for pipes. The content parts of a result are listed, or
saved as files."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.result import Part, PartKind

if TYPE_CHECKING:
    from rich.table import Table

_MAX_NAMES = 24  # characters of a list of names
STYLES = {
    **dict.fromkeys(("online", "ok", "completed", "ready"), "green"),
    **dict.fromkeys(("degraded", "input_required", "cancelled", "not ready"), "yellow"),
    **dict.fromkeys(("offline", "failed", "timeout", "rejected", "crashed", "not answering"), "red"),
    **dict.fromkeys(("unknown", "off", "queued"), "dim"),
}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))
_SIZE_UNITS = ("bytes", "KB", "MB")
_MAX_NAME = 100
_EXTENSIONS: dict[PartKind, str] = {"text": ".txt", "image": ".png", "audio": ".wav", "video": ".mp4"}
_MIN_WIDTH = 14  # shorter words are not broken, as long as the terminal is wide enough
_COLUMN_GAP = 2


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    typer.echo(msgspec.json.encode(value).decode())


def print_line(text: str = "") -> None:
    typer.echo(text)


def remark(text: str) -> None:
    """Print a line for the person at the terminal, on stderr: never for the next program in a pipe."""
    typer.echo(text, err=True)


def format_age(timestamp: float | None) -> str:
    """`5 m ago`, or `in 5 m` for a time to come."""
    if timestamp is None:
        return ""
    seconds = time.time() - timestamp
    return f"in {format_duration(-seconds)}" if seconds < -1 else f"{format_duration(max(0.0, seconds))} ago"


def format_duration(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def replace_unprintable(text: str) -> str:
    """Names come from callers, and could move the cursor or set colours."""
    return "".join(char if char.isprintable() else "?" for char in text)


def clip_text(text: str, limit: int = 200) -> str:
    """The text on one line, shortened to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def shorten_names(names: Sequence[str], *, wide: bool = False) -> str:
    """All names if they are few or `wide`, else their count, so that a table fits a terminal of 80 columns."""
    text = ", ".join(names)
    return text if wide or len(text) <= _MAX_NAMES else f"{len(names)} in all"


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
    """Print the answer unless `shown_text`, which was streamed, is that answer; then the other fields of the result.

    With `is_continuation`, the shown text may be only the end of the answer.
    """
    remaining = dict(data)
    answer = remaining.get("answer")
    if isinstance(answer, str):
        del remaining["answer"]
        shown = shown_text.strip()
        if answer.strip() != shown and not (is_continuation and shown and answer.strip().endswith(shown)):
            typer.echo(answer)
    for name, value in remaining.items():
        typer.echo(f"{name}: {format_value(value)}")


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair on each line; empty values are left out."""
    filled = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in filled), default=0)
    for name, value in filled:
        typer.secho(f"{name.ljust(width)}  ", bold=True, nl=False)
        typer.secho(value, fg=STYLES.get(value) if STYLES.get(value) != "dim" else None)


def print_parts(parts: Sequence[Part]) -> None:
    """Print a line for each part: kind, media type, size, name."""
    for part in parts:
        columns = [part.kind, part.mime_type or "", part.url or format_size(part), part.name or ""]
        print_line("  ".join(_make_printable(each) for each in columns if each))


def format_size(part: Part) -> str:
    size = float(
        len(part.blob) * 3 // 4 - part.blob.count("=") if part.blob is not None else len(_decode_content(part))
    )
    for unit in _SIZE_UNITS:
        if size < 1000 or unit == _SIZE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == _SIZE_UNITS[0] else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable: the last unit has no upper bound")


def save_parts(parts: Sequence[Part], folder: Path) -> None:
    """Save each part as a new file. No file is overwritten, and none is written outside the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise typer.BadParameter(f"{folder}: {exc.strerror}", param_hint="--save") from exc
    for number, part in enumerate(parts, 1):
        _save_part(part, number, folder)


def _save_part(part: Part, number: int, folder: Path) -> None:
    if part.url is not None:
        remark(f"Part {number} is a link and was not saved: {_make_printable(part.url)}")
        return
    try:
        content = _decode_content(part)
        file = _write_new_file(folder, _choose_file_name(part, number), content)
    except (binascii.Error, OSError) as exc:
        remark(f"Part {number} cannot be saved: {_make_printable(str(exc))}")
        return
    remark(f"Saved {file}")


def _decode_content(part: Part) -> bytes:
    """Raises binascii.Error for bytes that are not base64."""
    if part.blob is not None:
        return base64.b64decode(part.blob, validate=True)
    if part.text is not None:
        return part.text.encode()
    return msgspec.json.format(msgspec.json.encode(part.data), indent=2)


def _write_new_file(folder: Path, name: str, content: bytes) -> Path:
    """Use this name, or the next free one like it. An existing symbolic link is not followed."""
    for attempt in count():
        stem, dot, ending = name.rpartition(".")
        free_name = name if not attempt else f"{stem}-{attempt}{dot}{ending}" if stem else f"{name}-{attempt}"
        try:
            with (folder / free_name).open("xb") as stream:
                stream.write(content)
        except FileExistsError:
            continue
        return folder / free_name
    raise AssertionError("unreachable: `count` never ends")


def _choose_file_name(part: Part, number: int) -> str:
    """The agent's own name for the part, reduced to a plain file name: no path, not hidden."""
    last = (part.name or "").replace("\\", "/").rpartition("/")[2]
    safe_name = "".join(each for each in last if each.isprintable() and each not in ':*?"<>|').strip(" .")
    if safe_name:
        return safe_name[-_MAX_NAME:].lstrip(" .") or f"part-{number}"
    media = (part.mime_type or "").partition(";")[0]
    guessed = mimetypes.guess_extension(media) if media else None
    usual = ".json" if part.data is not None else ".txt" if part.text is not None else ".bin"
    return f"part-{number}{guessed or _EXTENSIONS.get(part.kind) or usual}"


def _make_printable(text: str) -> str:
    """Remove control characters: agents choose these texts, and a terminal would obey them."""
    return "".join(each if each.isprintable() else " " for each in text)[:300]


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
