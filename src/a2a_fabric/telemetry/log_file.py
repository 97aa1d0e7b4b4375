"""The log file of a node: appends lines, rotates by size, and begins a new file when the old one was moved or removed.

Only the thread of the log writes to it, many lines with one system call. If the disk became full inside a line, the
next write begins with a line end, so that each line stays one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

_CHECK_EVERY: Final = 1.0  # seconds between two looks whether the file is still there


class LogFile:
    """Without `max_bytes` the file grows, until a program such as logrotate moves it. Raises OSError."""

    def __init__(self, path: Path, max_bytes: int | None = None, keep: int = 5) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._must_reopen = threading.Event()
        self._checked_at = time.monotonic()
        self._is_cut = False  # the last write ended inside a line
        self._descriptor = -1
        self._size = 0
        self._open()

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is buffered."""

    def request_reopen(self) -> None:
        """Begin a new file with the next line, if the file was moved. For signal handlers and other threads."""
        self._must_reopen.set()

    def write(self, text: str) -> int:
        """Raises OSError; then some of the lines may be written."""
        data = text.encode("utf-8", "replace")
        self._follow_path()
        if self._max_bytes is not None and self._would_exceed(len(data), self._max_bytes):
            self._rotate()
        if self._is_cut:
            data = b"\n" + data
        rest = memoryview(data)
        while rest:
            count = os.write(self._descriptor, rest)
            self._size += count
            rest = rest[count:]
            self._is_cut = len(rest) > 0  # until the next turn, or if that fails
        return len(text)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._descriptor).st_size
        self._is_cut = False

    def _follow_path(self) -> None:
        """Open the path again after a signal, or once it is seen to be another file, or none."""
        now = time.monotonic()
        is_asked = self._must_reopen.is_set()
        if not is_asked and now - self._checked_at < _CHECK_EVERY:
            return
        self._checked_at = now
        self._must_reopen.clear()
        if is_asked or not self._is_at_path():
            old = self._descriptor
            self._open()  # if that fails, the old file goes on
            os.close(old)

    def _would_exceed(self, count: int, max_bytes: int) -> bool:
        """Processes of one node share the file, so another one may have written to it, or rotated it already."""
        if not self._size or self._size + count <= max_bytes:
            return False
        self._checked_at = float("-inf")
        self._follow_path()
        self._size = os.fstat(self._descriptor).st_size
        return bool(self._size) and self._size + count > max_bytes

    def _is_at_path(self) -> bool:
        try:
            at_path, own = os.stat(self._path), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (at_path.st_dev, at_path.st_ino) == (own.st_dev, own.st_ino)

    def _rotate(self) -> None:
        """`log.1` is the newest of the old files; the oldest is overwritten. Without old files, the file is emptied."""
        if self._keep == 0:
            os.ftruncate(self._descriptor, 0)
            self._size = 0
            return
        for number in range(self._keep - 1, 0, -1):
            if self._numbered(number).exists():
                self._numbered(number).replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        old = self._descriptor
        self._open()
        os.close(old)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
