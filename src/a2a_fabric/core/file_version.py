"""What changes when a file does, so that parts of the node that follow a file read it again only then."""

from __future__ import annotations

import os
from pathlib import Path

FileVersion = tuple[int, int, int]


def read_file_version(path: Path | None) -> FileVersion | None:
    """None without a file."""
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
