"""The user's state folder: the node's key, and which node runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

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
        """The node that this user started last, if it still runs."""
        try:
            node = msgspec.json.decode(self._node_file.read_bytes(), type=RunningNode)
        except (OSError, msgspec.DecodeError):
            return None
        return node if _is_running(node.pid) else None

    @contextmanager
    def announce(self, url: str) -> Iterator[None]:
        """Say that our node is there, as long as it is."""
        own_node = RunningNode(url=url, pid=os.getpid(), started_at=time.time())
        self._write(msgspec.json.encode(own_node))
        try:
            yield
        finally:
            if self.read_node() == own_node:  # a node started after ours has taken the place
                self._node_file.unlink(missing_ok=True)

    def _write(self, content: bytes) -> None:
        """Whole or not at all: a reader never sees half of it."""
        draft = self._node_file.with_name(f".node.{os.getpid()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(self._node_file)
        except OSError as exc:
            raise ConfigError(
                f"{self._node_file}: cannot be written: {exc.strerror}. Set FABRIC_HOME to a folder of yours"
            ) from exc


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
