"""The user's state folder: the node's key, and the address of the running node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from a2a_fabric.cli.files import replace_text
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.identity.keyfile import KeyFile


class RunningNode(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    pid: int
    started_at: float


class StateFolder:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = _find_folder(environ)
        self.key = KeyFile(self.folder / "key")
        self._node_file = self.folder / "node.json"

    def read_node(self) -> RunningNode | None:
        """The node that this user started last, if it is still running."""
        try:
            node = msgspec.json.decode(self._node_file.read_bytes(), type=RunningNode)
        except (OSError, msgspec.DecodeError):
            return None
        return node if _is_running(node.pid) else None

    @contextmanager
    def announce(self, url: str) -> Iterator[None]:
        """Record the address of this process's node for as long as the node runs."""
        own_node = RunningNode(url=url, pid=os.getpid(), started_at=time.time())
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(self._node_file, msgspec.json.encode(own_node).decode())
        except (OSError, ConfigError) as exc:
            reason = exc.message if isinstance(exc, ConfigError) else f"{self.folder}: {exc.strerror}"
            raise ConfigError(f"{reason}, or set FABRIC_HOME to a folder of yours") from exc
        try:
            yield
        finally:
            if self.read_node() == own_node:  # else a node that was started later has replaced it
                self._node_file.unlink(missing_ok=True)


def _find_folder(environ: Mapping[str, str]) -> Path:
    if environ.get("FABRIC_HOME"):
        return Path(environ["FABRIC_HOME"]).expanduser()
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "a2a-fabric"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
