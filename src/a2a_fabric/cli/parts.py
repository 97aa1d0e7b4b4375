"""Attaches files to a call, and lists and saves the content parts of its result."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec
import typer

from a2a_fabric.cli.output import print_line, remark
from a2a_fabric.core.call import Attachment
from a2a_fabric.core.part import Part, PartKind

MAX_BYTES = 16 * 1024 * 1024  # of all files together; a node may accept less
_MAX_NAME = 100
_UNITS = ("bytes", "KB", "MB")
_EXTENSIONS: dict[PartKind, str] = {"text": ".txt", "image": ".png", "audio": ".wav", "video": ".mp4"}


def read_attachments(files: Sequence[Path]) -> list[Attachment]:
    """Read the files, and guess the media type of each from its name. Raises typer.BadParameter."""
    remaining = MAX_BYTES
    attachments = []
    for file in files:
        content = _read_file(file, remaining)
        remaining -= len(content)
        media, _ = mimetypes.guess_type(file.name)
        encoded = base64.b64encode(content).decode()
        attachments.append(Attachment(type="file", content=encoded, mime_type=media, name=file.name))
    return attachments


def _read_file(file: Path, limit: int) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as exc:
        raise typer.BadParameter(f"{file}: {exc.strerror}", param_hint="--attach") from exc
    if len(content) > limit:
        raise typer.BadParameter(f"the files have more than {MAX_BYTES} bytes together", param_hint="--attach")
    return content


def print_parts(parts: Sequence[Part]) -> None:
    """Print a line for each part: kind, media type, size, name."""
    for part in parts:
        columns = [part.kind, part.mime_type or "", part.url or format_size(part), part.name or ""]
        print_line("  ".join(_make_printable(each) for each in columns if each))


def format_size(part: Part) -> str:
    size = float(
        len(part.blob) * 3 // 4 - part.blob.count("=") if part.blob is not None else len(_decode_content(part))
    )
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == _UNITS[0] else f"{size:.1f} {unit}"
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
