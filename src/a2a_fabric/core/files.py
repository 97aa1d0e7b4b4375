"""Files that other programs watch or change: replaced as a whole, and read again only when they have changed.

A file of the user is replaced, never rewritten in place: a node or client that watches it never reads a part of it. It
may hold secrets, so neither a draft nor a copy of it is ever open to more users than the file itself."""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from a2a_fabric.core.errors import ConfigError, Conflict

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FileVersion = tuple[int, int, int]
_LOCK_SECONDS, _LOCK_PAUSE = 10.0, 0.02


def read_text(path: Path) -> str | None:
    """None if there is no such file. Raises ConfigError."""
    try:
        return path.read_bytes().decode("utf-8")  # line ends stay as they are
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Keep the owner and the permissions of a file that exists; `mode` is that of a new one. A symbolic link stays one.

    Raises ConfigError, and then nothing has changed.
    """
    check_writable(path)
    with report_write_errors(path):
        path = path.resolve()
        _write(path, text.encode(), path, mode)


def copy_file(source: Path, target: Path) -> None:
    """The copy has the owner and the permissions of the original. Raises OSError."""
    _write(target, source.read_bytes(), source, 0o600)


def _write(path: Path, content: bytes, original: Path, mode: int) -> None:
    """Replace a file by one with the owner and the permissions of the original; `mode` counts if there is none."""
    status = _find_status(original)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(draft, flags, mode if status is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            if status is not None:
                _give_access(descriptor, status)
            file.write(content)
            file.flush()
            os.fsync(
                descriptor
            )  # before the name points to it: after a power failure it is the old file or the new one
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _find_status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _give_access(descriptor: int, original: os.stat_result) -> None:
    """The owner and the permissions of another file. What may not be given is left out, never replaced by more."""
    if sys.platform == "win32":
        return
    try:
        os.fchown(descriptor, original.st_uid, original.st_gid)
    except OSError:  # only root gives a file away; a group may be one of the user's
        with suppress(OSError):
            os.fchown(descriptor, -1, original.st_gid)
    mode = stat.S_IMODE(original.st_mode)
    if os.fstat(descriptor).st_gid != original.st_gid:
        mode &= ~stat.S_IRWXG  # they were meant for another group
    os.fchmod(descriptor, mode)


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """One change at a time to the files beside this one, also of other processes: hold it from reading to writing.

    The folder is locked and not the file, which is replaced by each change. Raises Conflict, ConfigError.
    """
    if fcntl is None:
        yield
        return
    with report_write_errors(path):
        descriptor = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        ends_at = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > ends_at:
                raise Conflict(f"Another process has been changing {path} for {_LOCK_SECONDS:g} s. Try again later")
            time.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True


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
