"""An `agents.yaml` read as text and written whole, for commands that add to it."""

from __future__ import annotations

import os
from pathlib import Path

from a2a_fabric.core.errors import ConfigError


def read(path: Path) -> str:
    """Empty if there is none. Raises ConfigError."""
    try:
        return path.read_text("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def write(path: Path, text: str) -> None:
    """Whole or not at all: a node that watches the file never sees half of it. Raises ConfigError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, "utf-8")
        draft.replace(path)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
