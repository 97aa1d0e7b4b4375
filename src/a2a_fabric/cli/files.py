"""The file with the address of the node that runs, for commands on the same machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from a2a_fabric.client.local_node import RunningNode, StateFolder
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing.files import replace_text


@contextmanager
def announce_node(state: StateFolder, url: str, files: Iterable[Path] = ()) -> Iterator[None]:
    """Record the address of this process's node for as long as the node runs."""
    paths = tuple(sorted(str(file.resolve()) for file in files))
    own_node = RunningNode(url=url, pid=os.getpid(), started_at=time.time(), files=paths)
    try:
        state.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(state.node_file, msgspec.json.encode(own_node).decode())
    except (OSError, ConfigError) as exc:
        reason = exc.message if isinstance(exc, ConfigError) else f"{state.folder}: {exc.strerror}"
        raise ConfigError(f"{reason}, or set FABRIC_HOME to a folder of yours") from exc
    try:
        yield
    finally:
        if state.read_node() == own_node:  # else a node that was started later has replaced it
            state.node_file.unlink(missing_ok=True)
