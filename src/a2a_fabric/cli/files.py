"""The file with the address of the node that runs, for commands on the same machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from a2a_fabric.client.local_node import RunningNode, StateFolder, read_birth
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.importing.files import replace_text


@contextmanager
def announce_node(
    state: StateFolder, url: str, files: Iterable[Path] = (), name: str | None = None, log: str | None = None
) -> Iterator[None]:
    """Record the address of this process's node for as long as the node runs. `name`: else that of its folder."""
    pid = os.getpid()
    own_node = RunningNode(
        url=url,
        pid=pid,
        started_at=time.time(),
        files=tuple(sorted(str(file.resolve()) for file in files)),
        name=name or state.choose_name(default_name(Path.cwd())),
        folder=str(Path.cwd()),
        log=log,
        born=read_birth(pid),
    )
    entry = state.nodes / f"{own_node.name}.json"
    try:
        state.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.nodes.mkdir(mode=0o700, exist_ok=True)
        text = msgspec.json.encode(own_node).decode()
        replace_text(state.node_file, text)
        replace_text(entry, text)
    except (OSError, ConfigError) as exc:
        reason = exc.message if isinstance(exc, ConfigError) else f"{state.folder}: {exc.strerror}"
        raise ConfigError(f"{reason}, or set FABRIC_HOME to a folder of yours") from exc
    try:
        yield
    finally:
        if state.read_node() == own_node:  # else a node that was started later has replaced it
            state.node_file.unlink(missing_ok=True)
        if state.read_entry(own_node.name) == own_node:
            entry.unlink(missing_ok=True)


def default_name(folder: Path) -> str:
    """The name of a node that was started in a folder: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-")[:64] or "node"
