"""The io tools: read, write, list and search files inside one folder."""

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

from a2a_fabric.tools.computation import compute
from a2a_fabric.tools.regex import RegexPattern
from a2a_fabric.tools.sandbox import Sandbox, WalkEntry, open_regular, to_printable, walk
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, encode_utf8, find_encoding, run_in_thread, tool_error

_MAX_ENTRIES = 10_000
_MAX_MATCHES = 1_000
_MAX_LINE = 10_000
_MAX_SHOWN = 200

FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]
Glob = Annotated[str, Meta(max_length=256)]


class ReadArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="Relative to the folder of the tools.")]
    max_lines: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Only the first lines.")] = None
    encoding: Annotated[str, Meta(max_length=40, description="Of the file's text.")] = "utf-8"


class ReadResult(TypedDict):
    content: str
    line_count: int
    truncated: bool
    path: str
    size: int


async def _read_file(arguments: ReadArguments, toolbox: Toolbox) -> ReadResult:
    return await run_in_thread(_read_blocking, arguments, toolbox)


def _read_blocking(_: TimeLimit, arguments: ReadArguments, toolbox: Toolbox) -> ReadResult:
    encoding = find_encoding(arguments.encoding)
    if encoding is None:
        raise tool_error("DECODE_ERROR", f"Unknown text encoding {arguments.encoding!r}")
    with _translate_errors("READ_ERROR", arguments.path), toolbox.files.open_file(arguments.path) as descriptor:
        size = os.fstat(descriptor).st_size
        head = read_head(descriptor, toolbox.settings.io_max_bytes + 1)
    is_whole = len(head) <= toolbox.settings.io_max_bytes
    content = _decode(head[: toolbox.settings.io_max_bytes], encoding, arguments.path, is_whole=is_whole)
    lines = content.split("\n")
    count = len(lines) - (lines[-1] == "")
    if arguments.max_lines is not None and count > arguments.max_lines:
        is_whole, count = False, arguments.max_lines
        content = "\n".join([*lines[:count], ""])
    return {"content": content, "line_count": count, "truncated": not is_whole, "path": arguments.path, "size": size}


def read_head(descriptor: int, limit: int) -> bytes:
    parts, remaining = [], limit
    while remaining and (part := os.read(descriptor, min(remaining, 1 << 20))):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def _decode(content: bytes, encoding: str, path: str, *, is_whole: bool) -> str:
    """Decode text. If the content was cut inside a character, that character is left out."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(content, final=is_whole)
    except UnicodeError as exc:
        raise tool_error("DECODE_ERROR", f"{path!r} is not text in {encoding}: {exc}"[:300]) from exc


class WriteArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="Relative to the folder of the tools; missing folders are made.")]
    content: Annotated[str, Meta(description="Written as UTF-8.")]
    append: Annotated[bool, Meta(description="Add to the file instead of replacing it.")] = False


class WriteResult(TypedDict):
    bytes_written: int
    path: str
    append: bool


async def _write_file(arguments: WriteArguments, toolbox: Toolbox) -> WriteResult:
    return await run_in_thread(_write_blocking, arguments, toolbox)


def _write_blocking(_: TimeLimit, arguments: WriteArguments, toolbox: Toolbox) -> WriteResult:
    content = encode_utf8(arguments.content, "DECODE_ERROR")
    limit = toolbox.settings.io_max_bytes
    if len(content) > limit:
        raise tool_error("ACCESS_DENIED", f"The content is larger than {limit} bytes (tools.io_max_bytes)")
    with _translate_errors("WRITE_ERROR", arguments.path):
        if arguments.append:
            toolbox.files.append_file(arguments.path, content, limit)
        else:
            toolbox.files.replace_file(arguments.path, content)
    return {"bytes_written": len(content), "path": arguments.path, "append": arguments.append}


class ListFolderArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="Relative to the folder of the tools.")] = "."
    recursive: Annotated[bool, Meta(description="Folders within folders too.")] = False
    pattern: Annotated[Glob | None, Meta(description="Only names like this, for example `*.py`.")] = None


class FolderEntry(TypedDict):
    name: str
    type: Literal["file", "directory"]
    size: int | None
    modified: str


class ListFolderResult(TypedDict):
    path: str
    entries: list[FolderEntry]
    count: int


async def _list_directory(arguments: ListFolderArguments, toolbox: Toolbox) -> ListFolderResult:
    return await run_in_thread(_list_blocking, arguments, toolbox)


def _list_blocking(time_limit: TimeLimit, arguments: ListFolderArguments, toolbox: Toolbox) -> ListFolderResult:
    entries: list[FolderEntry] = []
    with _translate_errors("LIST_ERROR", arguments.path), toolbox.files.open_folder(arguments.path) as folder:
        for entry in walk(folder, time_limit, recursive=arguments.recursive):
            if not (_is_regular(entry) or stat.S_ISDIR(entry.stat.st_mode)) or not _matches_glob(
                entry, arguments.pattern
            ):
                continue
            if len(entries) == _MAX_ENTRIES:
                raise tool_error("LIST_ERROR", f"More than {_MAX_ENTRIES} entries; narrow it by path or pattern")
            entries.append(_build_entry(entry))
    return {"path": arguments.path, "entries": entries, "count": len(entries)}


def _build_entry(walk_entry: WalkEntry) -> FolderEntry:
    is_file = stat.S_ISREG(walk_entry.stat.st_mode)
    return {
        "name": to_printable(walk_entry.path),
        "type": "file" if is_file else "directory",
        "size": walk_entry.stat.st_size if is_file else None,
        "modified": datetime.fromtimestamp(walk_entry.stat.st_mtime, UTC).isoformat(),
    }


class SearchFilesArguments(ToolArguments, frozen=True, kw_only=True):
    path: Annotated[FilePath, Meta(description="The folder to search, relative to the folder of the tools.")] = "."
    pattern: Annotated[str, Meta(max_length=1000, description="RE2 regular expression, matched line by line.")]
    file_pattern: Annotated[Glob | None, Meta(description="Only files with names like this, for example `*.py`.")] = (
        None
    )


class FileMatch(TypedDict):
    file: str
    line: int
    matches: list[str]
    text: str


class SearchFilesResult(TypedDict):
    matches: list[FileMatch]
    count: int
    truncated: bool


async def _search_files(arguments: SearchFilesArguments, toolbox: Toolbox) -> SearchFilesResult:
    max_bytes = toolbox.settings.io_max_bytes
    return await compute(toolbox.computations, max_bytes, _search_blocking, arguments, toolbox.files, max_bytes)


def _search_blocking(
    time_limit: TimeLimit, arguments: SearchFilesArguments, files: Sandbox, max_bytes: int
) -> SearchFilesResult:
    pattern = RegexPattern(arguments.pattern)
    matches: list[FileMatch] = []
    with _translate_errors("SEARCH_ERROR", arguments.path), files.open_folder(arguments.path) as folder:
        for entry in walk(folder, time_limit, recursive=True):
            if not _is_regular(entry) or not _matches_glob(entry, arguments.file_pattern):
                continue
            for match in _find_matches(entry, pattern, max_bytes, time_limit):
                if len(matches) == _MAX_MATCHES:
                    return {"matches": matches, "count": len(matches), "truncated": True}
                matches.append(match)
    return {"matches": matches, "count": len(matches), "truncated": False}


def _find_matches(entry: WalkEntry, pattern: RegexPattern, limit: int, time_limit: TimeLimit) -> Iterator[FileMatch]:
    try:
        with open_regular(entry.folder, entry.name, os.O_RDONLY) as descriptor:
            content = read_head(descriptor, limit)
    except OSError:  # the file is gone or may not be read; the others are still searched
        return
    if b"\0" in content[:8192]:
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        time_limit.check()
        line = line[:_MAX_LINE]
        spans = [each[0] for each in pattern.find_matches(line, time_limit)]
        if spans:
            texts = [line[start : min(end, start + _MAX_SHOWN)].decode("utf-8", "replace") for start, end in spans[:20]]
            text = line.decode("utf-8", "replace").strip()[:_MAX_SHOWN]
            yield {"file": to_printable(entry.path), "line": number, "matches": texts, "text": text}


def _is_regular(entry: WalkEntry) -> bool:
    return stat.S_ISREG(entry.stat.st_mode)


def _matches_glob(entry: WalkEntry, pattern: str | None) -> bool:
    return pattern is None or fnmatch.fnmatchcase(entry.name, pattern)


@contextmanager
def _translate_errors(code: str, path: str) -> Iterator[None]:
    """Report errors of the file system in our own words; the original ones would show where the folder is."""
    try:
        yield
    except IsADirectoryError as exc:
        raise tool_error("FILE_NOT_FOUND", f"{path!r} is a folder, not a file") from exc
    except OSError as exc:
        raise tool_error(code, f"{path!r}: {exc.strerror}") from exc


TOOLS = (
    BuiltinTool(
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
    BuiltinTool(
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
    BuiltinTool(
        tool_id="io.list_directory",
        capability="list",
        category="io",
        display_name="List a folder",
        description="The files and folders in a folder; links and devices are left out.",
        arguments=ListFolderArguments,
        result=ListFolderResult,
        handler=_list_directory,
        deterministic=False,
        side_effects="reads",
    ),
    BuiltinTool(
        tool_id="io.search_files",
        capability="search",
        category="io",
        display_name="Search in files",
        description="Lines that match a regular expression, in all text files of a folder and those below.",
        arguments=SearchFilesArguments,
        result=SearchFilesResult,
        handler=_search_files,
        deterministic=False,
        side_effects="reads",
    ),
)
