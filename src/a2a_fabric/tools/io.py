"""Tools: files, inside one folder."""

from __future__ import annotations

import codecs
import fnmatch
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from a2a_fabric.tools.encodings import known_encoding, utf8
from a2a_fabric.tools.regex import Pattern
from a2a_fabric.tools.sandbox import Found, opened, printable, walk
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import Patience, in_thread

_MAX_ENTRIES = 10_000
_MAX_MATCHES = 1_000
_MAX_LINE = 10_000
_SHOWN = 200

FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]
Glob = Annotated[str, Meta(max_length=256)]


class ReadArguments(Arguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="Relative to the folder of the tools.")]
    max_lines: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Only the first lines.")] = None
    encoding: Annotated[str, Meta(max_length=40, description="Of the file's text.")] = "utf-8"


class ReadResult(TypedDict):
    content: str
    line_count: int
    truncated: bool
    path: str
    size: int


async def _read_file(given: ReadArguments, toolbox: Toolbox) -> ReadResult:
    return await in_thread(_read, given, toolbox)


def _read(_: Patience, given: ReadArguments, toolbox: Toolbox) -> ReadResult:
    encoding = known_encoding(given.encoding)
    if encoding is None:
        raise tool_error("DECODE_ERROR", f"Unknown text encoding {given.encoding!r}")
    with _failing_as("READ_ERROR", given.path), toolbox.files.read(given.path) as descriptor:
        size = os.fstat(descriptor).st_size
        head = read_head(descriptor, toolbox.settings.io_max_bytes + 1)
    whole = len(head) <= toolbox.settings.io_max_bytes
    content = _decoded(head[: toolbox.settings.io_max_bytes], encoding, given.path, whole=whole)
    lines = content.split("\n")
    count = len(lines) - (lines[-1] == "")
    if given.max_lines is not None and count > given.max_lines:
        whole, count = False, given.max_lines
        content = "\n".join([*lines[:count], ""])
    return {"content": content, "line_count": count, "truncated": not whole, "path": given.path, "size": size}


def read_head(descriptor: int, limit: int) -> bytes:
    parts, left = [], limit
    while left and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _decoded(content: bytes, encoding: str, path: str, *, whole: bool) -> str:
    """A cut may go through a character: then that one is left out."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(content, final=whole)
    except UnicodeError as exc:
        raise tool_error("DECODE_ERROR", f"{path!r} is not text in {encoding}: {exc}"[:300]) from exc


class WriteArguments(Arguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="Relative to the folder of the tools; missing folders are made.")]
    content: Annotated[str, Meta(description="Written as UTF-8.")]
    append: Annotated[bool, Meta(description="Add to the file instead of replacing it.")] = False


class WriteResult(TypedDict):
    bytes_written: int
    path: str
    append: bool


async def _write_file(given: WriteArguments, toolbox: Toolbox) -> WriteResult:
    return await in_thread(_write, given, toolbox)


def _write(_: Patience, given: WriteArguments, toolbox: Toolbox) -> WriteResult:
    content = utf8(given.content, "DECODE_ERROR")
    limit = toolbox.settings.io_max_bytes
    if len(content) > limit:
        raise tool_error("ACCESS_DENIED", f"The content is larger than {limit} bytes (tools.io_max_bytes)")
    with _failing_as("WRITE_ERROR", given.path):
        if given.append:
            toolbox.files.append(given.path, content, limit)
        else:
            toolbox.files.replace(given.path, content)
    return {"bytes_written": len(content), "path": given.path, "append": given.append}


class ListArguments(Arguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="Relative to the folder of the tools.")] = "."
    recursive: Annotated[bool, Meta(description="Folders within folders too.")] = False
    pattern: Annotated[Glob | None, Meta(description="Only names like this, for example `*.py`.")] = None


class Entry(TypedDict):
    name: str
    type: Literal["file", "directory"]
    size: int | None
    modified: str


class ListResult(TypedDict):
    path: str
    entries: list[Entry]
    count: int


async def _list_directory(given: ListArguments, toolbox: Toolbox) -> ListResult:
    return await in_thread(_list, given, toolbox)


def _list(patience: Patience, given: ListArguments, toolbox: Toolbox) -> ListResult:
    entries: list[Entry] = []
    with _failing_as("LIST_ERROR", given.path), toolbox.files.folder(given.path) as folder:
        for found in walk(folder, patience, deep=given.recursive):
            if not (_is_plain(found) or stat.S_ISDIR(found.stat.st_mode)) or not _is_like(found, given.pattern):
                continue
            if len(entries) == _MAX_ENTRIES:
                raise tool_error("LIST_ERROR", f"More than {_MAX_ENTRIES} entries; narrow it by path or pattern")
            entries.append(_entry(found))
    return {"path": given.path, "entries": entries, "count": len(entries)}


def _entry(found: Found) -> Entry:
    is_file = stat.S_ISREG(found.stat.st_mode)
    return {
        "name": printable(found.path),
        "type": "file" if is_file else "directory",
        "size": found.stat.st_size if is_file else None,
        "modified": datetime.fromtimestamp(found.stat.st_mtime, UTC).isoformat(),
    }


class SearchArguments(Arguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="The folder to search, relative to the folder of the tools.")] = "."
    pattern: Annotated[str, Meta(max_length=1000, description="RE2 regular expression, matched line by line.")]
    file_pattern: Annotated[Glob | None, Meta(description="Only files with names like this, for example `*.py`.")] = (
        None
    )


class Match(TypedDict):
    file: str
    line: int
    matches: list[str]
    text: str


class SearchResult(TypedDict):
    matches: list[Match]
    count: int
    truncated: bool


async def _search_files(given: SearchArguments, toolbox: Toolbox) -> SearchResult:
    return await in_thread(_search, given, toolbox)


def _search(patience: Patience, given: SearchArguments, toolbox: Toolbox) -> SearchResult:
    pattern = Pattern(given.pattern)
    matches: list[Match] = []
    with _failing_as("SEARCH_ERROR", given.path), toolbox.files.folder(given.path) as folder:
        for found in walk(folder, patience, deep=True):
            if not _is_plain(found) or not _is_like(found, given.file_pattern):
                continue
            for match in _matches_in(found, pattern, toolbox.settings.io_max_bytes, patience):
                if len(matches) == _MAX_MATCHES:
                    return {"matches": matches, "count": len(matches), "truncated": True}
                matches.append(match)
    return {"matches": matches, "count": len(matches), "truncated": False}


def _matches_in(found: Found, pattern: Pattern, limit: int, patience: Patience) -> Iterator[Match]:
    try:
        with opened(found.folder, found.name, os.O_RDONLY) as descriptor:
            content = read_head(descriptor, limit)
    except OSError:  # gone or not ours to read: the other files still count
        return
    if b"\0" in content[:8192]:
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        patience.check()
        line = line[:_MAX_LINE]
        spans = [each[0] for each in pattern.matches(line, patience)]
        if spans:
            texts = [line[start : min(end, start + _SHOWN)].decode("utf-8", "replace") for start, end in spans[:20]]
            text = line.decode("utf-8", "replace").strip()[:_SHOWN]
            yield {"file": printable(found.path), "line": number, "matches": texts, "text": text}


def _is_plain(found: Found) -> bool:
    return stat.S_ISREG(found.stat.st_mode)


def _is_like(found: Found, pattern: str | None) -> bool:
    return pattern is None or fnmatch.fnmatchcase(found.name, pattern)


@contextmanager
def _failing_as(code: str, path: str) -> Iterator[None]:
    """What the file system says, in our words; its own would show where the folder lies."""
    try:
        yield
    except IsADirectoryError as exc:
        raise tool_error("FILE_NOT_FOUND", f"{path!r} is a folder, not a file") from exc
    except OSError as exc:
        raise tool_error(code, f"{path!r}: {exc.strerror}") from exc


TOOLS = (
    Tool(
        tool_id="io.read_file",
        capability="read",
        category="io",
        display_name="Read a file",
        description="The text of a file, whole or its first lines.",
        arguments=ReadArguments,
        result=ReadResult,
        handler=_read_file,
        deterministic=False,
        side_effects="reads",
    ),
    Tool(
        tool_id="io.write_file",
        capability="write",
        category="io",
        display_name="Write a file",
        description="Writes or appends a text to a file.",
        arguments=WriteArguments,
        result=WriteResult,
        handler=_write_file,
        deterministic=False,
        side_effects="writes",
        setting="io_write",
    ),
    Tool(
        tool_id="io.list_directory",
        capability="list",
        category="io",
        display_name="List a folder",
        description="The files and folders in a folder; links and devices are left out.",
        arguments=ListArguments,
        result=ListResult,
        handler=_list_directory,
        deterministic=False,
        side_effects="reads",
    ),
    Tool(
        tool_id="io.search_files",
        capability="search",
        category="io",
        display_name="Search in files",
        description="Lines that match a regular expression, in all text files of a folder and those below.",
        arguments=SearchArguments,
        result=SearchResult,
        handler=_search_files,
        deterministic=False,
        side_effects="reads",
    ),
)
