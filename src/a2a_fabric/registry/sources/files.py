"""Source: `agents.yaml`, read at start and again whenever it changes.

The file holds a list of manifests, or the list under `agents:`. Changes are detected
by a stat four times a second, which works on every file system and with editors
that replace the file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from a2a_fabric.core.agent import Manifest
from a2a_fabric.registry.tool_choice import find_mistakes
from a2a_fabric.schemas.manifest_check import find_unbounded_schemas
from a2a_fabric.yamlfile import YAMLFile

_POLL_INTERVAL = 0.25


class AgentsFile:
    def __init__(self, path: Path, *, optional: bool = False) -> None:
        self.name = str(path)
        self.path = path
        self._optional = optional  # a default file may be missing
        self._last_stamp: tuple[int, int, int] | None = None
        self._manifests: dict[str, Manifest] = {}

    async def load(self) -> list[Manifest]:
        self._last_stamp = self._read_stamp()  # before reading: an edit meanwhile is noticed
        if self._optional and not self.path.exists():
            return []
        self._manifests = await asyncio.to_thread(self._read, self._manifests)
        return list(self._manifests.values())

    def _read(self, previous: dict[str, Manifest]) -> dict[str, Manifest]:
        """The manifests by id. An entry that did not change stays the same object, so that it costs no more work."""
        manifests = {manifest.agent_id: manifest for manifest in read_manifests(self.path)}
        for agent_id, manifest in manifests.items():
            known = previous.get(agent_id)
            if known is not None and known == manifest:
                manifests[agent_id] = known
        return manifests

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            stamp = self._read_stamp()
            if stamp != self._last_stamp:
                self._last_stamp = stamp
                await on_change()

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            file_stat = self.path.stat()
        except OSError:
            return None
        return file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino


def read_manifests(path: Path) -> list[Manifest]:
    """All manifests of a file; raises ConfigError naming file, line and key."""
    return _decode_manifests(YAMLFile.read(path))


def check_manifests(text: str, name: str) -> None:
    """Whether a file with this text could be read. Raises ConfigError."""
    _decode_manifests(YAMLFile(name, text))


def _decode_manifests(file: YAMLFile) -> list[Manifest]:
    key_path: tuple[str, ...] = ()
    entries: Any = file.value
    if isinstance(entries, dict):
        for key in entries:
            if key not in ("agents", "tools"):
                raise file.error(f"unknown key '{key}' (known: agents)", (key,))
        entries, key_path = entries.get("agents", []), ("agents",)
    manifests = file.decode(list[Manifest], [] if entries is None else entries, key_path)
    agent_ids: set[str] = set()
    for number, manifest in enumerate(manifests):
        if manifest.agent_id in agent_ids:
            raise file.error(f"agent '{manifest.agent_id}' is declared twice", (*key_path, number))
        agent_ids.add(manifest.agent_id)
        for tools_key, mistake in () if manifest.tools is None else find_mistakes(manifest.tools):
            raise file.error(mistake, (*key_path, number, "tools", tools_key))
        for capability, key, problem in find_unbounded_schemas(manifest):
            raise file.error(problem, (*key_path, number, "capabilities", capability, key))
    return manifests
