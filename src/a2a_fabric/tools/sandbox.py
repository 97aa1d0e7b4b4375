"""File access inside one folder, with no path out of it.

Paths are opened one component at a time, each relative to the one before and never
through a symbolic link, so that no change made meanwhile can lead outside. Only
regular files are opened: a FIFO or a device would block, so it is refused."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from a2a_fabric.core.errors import FabricError
from a2a_fabric.tools.toolkit import TimeLimit, tool_error

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAX_DEPTH = 64
_MAX_NAMES = 100_000


class WalkEntry(NamedTuple):
    """An entry found by `walk`: its path below the start, the folder that holds it, and its status."""

    path: str
    folder: int
    name: str
    stat: os.stat_result


class Sandbox:
    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """A descriptor of the folder; raises ACCESS_DENIED or DIR_NOT_FOUND."""
        with self._open_path(_split_path(path), path, create=False) as descriptor:
            yield descriptor

    def resolve_folder(self, path: str) -> Path:
        """The absolute path of an existing folder inside, for programs that need one."""
        with self.open_folder(path):
            return self.root.joinpath(*_split_path(path))

    @contextmanager
    def open_file(self, path: str) -> Iterator[int]:
        """A descriptor of a regular file; raises ACCESS_DENIED or FILE_NOT_FOUND."""
        *parents, name = _split_file_path(path)
        try:
            with (
                self._open_path(parents, path, create=False) as folder,
                open_regular(folder, name, os.O_RDONLY) as descriptor,
            ):
                yield descriptor
        except (FileNotFoundError, IsADirectoryError) as exc:
            raise tool_error("FILE_NOT_FOUND", f"There is no file {path!r}") from exc

    def append_file(self, path: str, content: bytes, limit: int) -> None:
        *parents, name = _split_file_path(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with self._open_path(parents, path, create=True) as folder, open_regular(folder, name, flags) as descriptor:
            if os.fstat(descriptor).st_size + len(content) > limit:
                raise tool_error("ACCESS_DENIED", f"{path!r} would grow beyond {limit} bytes (tools.io_max_bytes)")
            _write_all(descriptor, content)

    def replace_file(self, path: str, content: bytes) -> None:
        """Readers see the old content or the new, never a part of it."""
        *parents, name = _split_file_path(path)
        with self._open_path(parents, path, create=True) as folder:
            mode = _read_mode(folder, name)
            draft = f".{secrets.token_hex(8)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(draft, flags, 0o644, dir_fd=folder)
            try:
                with _close_after(descriptor):
                    os.fchmod(descriptor, mode)
                    _write_all(descriptor, content)
                    os.fsync(descriptor)
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(draft, dir_fd=folder)
                raise

    @contextmanager
    def _open_path(self, parts: list[str], path: str, *, create: bool) -> Iterator[int]:
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise tool_error("DIR_NOT_FOUND", "The folder of tools.io_root does not exist: make it") from exc
        try:
            for name in parts:
                child = _open_child(descriptor, name, path, create=create)
                os.close(descriptor)
                descriptor = child
            yield descriptor
        finally:
            os.close(descriptor)


def walk(
    folder: int, time_limit: TimeLimit, *, recursive: bool, prefix: str = "", depth: int = 0
) -> Iterator[WalkEntry]:
    """All entries below an open folder in order of name; links are listed but never followed."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, _MAX_NAMES))
    for name in names:
        time_limit.check()
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # deleted since the folder was read
            continue
        path = prefix + name
        yield WalkEntry(path, folder, name, status)
        if recursive and depth < _MAX_DEPTH and stat.S_ISDIR(status.st_mode):
            yield from _walk_into(folder, name, time_limit, path, depth)


def _walk_into(folder: int, name: str, time_limit: TimeLimit, path: str, depth: int) -> Iterator[WalkEntry]:
    try:
        inner = _open_child(folder, name, path, create=False)
    except (FabricError, OSError):  # it may not be read, or is no longer a folder: it is listed without its content
        return
    with _close_after(inner):
        yield from walk(inner, time_limit, recursive=True, prefix=f"{path}/", depth=depth + 1)


@contextmanager
def open_regular(folder: int, name: str, flags: int) -> Iterator[int]:
    """A regular file in an open folder. Raises ACCESS_DENIED for links, pipes and devices, OSError for the rest."""
    try:
        _require_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), name)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    with _close_after(os.open(name, flags | _FILE_FLAGS, 0o644, dir_fd=folder)) as descriptor:
        _require_regular(os.fstat(descriptor), name)
        yield descriptor


def to_printable(name: str) -> str:
    """A file name as text, even if its bytes are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


@contextmanager
def _close_after(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _split_path(path: str) -> list[str]:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise tool_error("ACCESS_DENIED", f"{path[:200]!r} leads out of the folder of the tools; give a relative path")
    return list(pure.parts)


def _split_file_path(path: str) -> list[str]:
    parts = _split_path(path)
    if not parts:
        raise tool_error("FILE_NOT_FOUND", f"{path!r} names a folder, not a file")
    return parts


def _open_child(folder: int, name: str, path: str, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError as exc:
        if not create:
            raise tool_error("DIR_NOT_FOUND", f"There is no folder {name!r} on the way to {path!r}") from exc
    except OSError as exc:
        if exc.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise _build_link_error(name) from exc
        raise tool_error("DIR_NOT_FOUND", f"{name!r} on the way to {path!r} is not a folder") from exc
    os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, _FOLDER_FLAGS, dir_fd=folder)


def _require_regular(status: os.stat_result, name: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _build_link_error(name)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise tool_error("ACCESS_DENIED", f"{name!r} is a device, a pipe or a socket; only plain files are opened")


def _build_link_error(name: str) -> FabricError:
    return tool_error("ACCESS_DENIED", f"{name!r} is a symbolic link; the tools do not follow links")


def _read_mode(folder: int, name: str) -> int:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    _require_regular(status, name)
    return stat.S_IMODE(status.st_mode) & 0o777


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
