"""Source: `agents.yaml`, read at start and again whenever it changes.

The file holds a bare list of manifests, or the list under `agents:`. Changes are
noticed by looking at the file four times a second, which costs nothing, works on
every file system, and survives editors that replace the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.schemas.joining import find_unbounded
from a2a_fabric.yamlfile import YAMLFile

_LOOK_EVERY = 0.25


class AgentsFile:
    def __init__(self, path: Path, *, optional: bool = False) -> None:
        self.name = str(path)
        self._path = path
        self._optional = optional  # a default file that nobody wrote is no error
        self._seen: tuple[int, int, int] | None = None

    async def load(self) -> list[Manifest]:
        self._seen = self._mark()  # before reading: an edit meanwhile is noticed
        if self._optional and not self._path.exists():
            return []
        return await asyncio.to_thread(read_manifests, self._path)

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = self._mark()
            if now != self._seen:
                self._seen = now
                await changed()

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_manifests(path: Path) -> list[Manifest]:
    """All manifests of a file; raises ConfigError naming file, line and key."""
    file = YAMLFile.read(path)
    at: tuple[str, ...] = ()
    entries: Any = file.value
    if isinstance(entries, dict):
        for key in entries:
            if key not in ("agents", "tools"):
                raise file.error(f"unknown key '{key}' (known: agents)", (key,))
        entries, at = entries.get("agents", []), ("agents",)
    manifests = file.decode(list[Manifest], [] if entries is None else entries, at)
    seen: set[str] = set()
    for number, manifest in enumerate(manifests):
        if manifest.agent_id in seen:
            raise file.error(f"agent '{manifest.agent_id}' is declared twice", (*at, number))
        seen.add(manifest.agent_id)
        for capability, key, problem in find_unbounded(manifest):
            raise file.error(problem, (*at, number, "capabilities", capability, key))
    return manifests
