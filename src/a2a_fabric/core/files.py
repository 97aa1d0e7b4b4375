"""Files that other programs watch or change: replaced as a whole, and read again only when they have changed.

A file of the user is replaced, never rewritten in place: a node or client that watches it never reads a part of it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from a2a_fabric.core.errors import ConfigError

FileVersion = tuple[int, int, int]


def read_text(path: Path) -> str | None:
    """None if there is no such file. Raises ConfigError."""
    try:
        return path.read_bytes().decode("utf-8")  # line ends stay as they are
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Keep the permissions of a file that exists; `mode` is that of a new one. A symbolic link stays one.

    Raises ConfigError, and then nothing has changed.
    """
    check_writable(path)
    with report_write_errors(path):
        path = path.resolve()
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.touch(mode=mode)
        draft.write_bytes(text.encode())
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)


def check_writable(path: Path) -> None:
    """A new file would replace one that its owner has made read-only. Raises ConfigError."""
    with suppress(OSError):
        if not path.stat().st_mode & stat.S_IWUSR:
            raise ConfigError(f"{path}: the file is read-only. Nothing was changed; make it writable first")


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a ConfigError that names the file."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}. Check the path and its permissions") from exc


def read_file_version(path: Path | None) -> FileVersion | None:
    """None without a file."""
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
