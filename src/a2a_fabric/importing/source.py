"""Source: the servers of a client's file, used as they stand, with nothing written anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.importing.entries import entries_of
from a2a_fabric.importing.secrets import References
from a2a_fabric.importing.servers import read_servers

_log = logging.getLogger(__name__)


class ImportedServers:
    def __init__(self, paths: Sequence[Path]) -> None:
        self.name = f"the servers of {', '.join(map(str, paths))}"
        self._paths = paths

    async def load(self) -> list[Manifest]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Manifest]:
        found = [read_servers(path) for path in self._paths]
        imported = entries_of(found, {}, References(hides_secrets=False, home=str(Path.home())))
        for remark in imported.remarks:
            _log.warning("%s", remark)
        return [msgspec.convert(entry, Manifest) for entry in imported.entries]

    async def watch(self, changed: object) -> None:
        """Read once; another `up` reads it again."""
