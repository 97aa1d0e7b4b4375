"""The node's own key in a file that only its user can read: created once, then reused.

A file that other users can read is refused, because its key may have leaked."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from a2a_fabric.core.errors import ConfigError

_MAX_BYTES = 4096


def find_state_folder(environ: Mapping[str, str]) -> Path:
    """Where the user's nodes keep their keys, and say where they listen."""
    if environ.get("FABRIC_HOME"):
        return Path(environ["FABRIC_HOME"]).expanduser()
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "a2a-fabric"


class KeyFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str | None:
        """The key; None if there is no file yet. Raises ConfigError if other users could read or write the file."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise ConfigError(f"{self.path}: cannot be read: {exc.strerror}") from exc
        with open(handle, "rb") as file:
            self._check(os.fstat(file.fileno()))
            key = file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
        if not key:
            raise ConfigError(f"{self.path}: the file holds no key. Delete it, and the node creates a new one")
        return key

    def create(self) -> str:
        """Create a key. The file appears complete or not at all; if another process was faster, its key is returned."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
            with suppress(FileExistsError):
                os.link(draft, self.path)
        except OSError as exc:
            raise ConfigError(f"{self.path}: cannot be written: {exc.strerror}") from exc
        finally:
            draft.unlink(missing_ok=True)
        key = self.read()
        assert key is not None  # noqa: S101  # this or another process just created it
        return key

    def _check(self, status: os.stat_result) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"{self.path}: other users can read this key (mode {mode:04o}). "
                f"Delete it to get a new one, or run: chmod 600 {self.path}"
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{self.path}: the file belongs to another user")
