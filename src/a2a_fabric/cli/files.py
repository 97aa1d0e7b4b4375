"""Reads and replaces files of the user: configurations of MCP clients, agents.yaml, the node's own state.

A file is replaced as a whole, so a node or client that watches it never reads a part of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2a_fabric.core.errors import ConfigError


def read_text(path: Path) -> str | None:
    """None if there is no such file. Raises ConfigError."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Keep the permissions of a file that exists; `mode` is that of a new one. Raises ConfigError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with report_write_errors(path):
        draft.touch(mode=mode)
        draft.write_text(text, "utf-8")
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a ConfigError that names the file."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}. Check the path and its permissions") from exc
