"""Runtime `process`: a program that stays, over JSON lines, and a program that is started for each call."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fixtures.agents.calling import HERE, is_alive
from tests.matrix.agents.kind import DECLARED, Kind, Started

MISSING = {"command": ["./no-such-program"]}


class JSONLines(Kind):
    runtime = "process"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        endpoint = {"command": [sys.executable, str(HERE / "matrix.py"), "--stdio"]}
        yield Started(manifests=[self.manifest(endpoint), self.away(MISSING)])


class OneShot(Kind):
    runtime = "process"
    refusal = "UPSTREAM_ERROR"  # all that an exit code can say

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        command = [sys.executable, "-I", "-S", str(HERE / "oneshot_program.py")]
        endpoint = {"command": command, "protocol": "oneshot", "max_concurrent": 32}
        missing = {**MISSING, "protocol": "oneshot"}
        yield Started(manifests=[self.manifest(endpoint, capabilities=DECLARED), self.away(missing)])

    def has_stopped(self, note: Path) -> bool:
        """It is killed, and leaves nothing but the number that it had."""
        return not is_alive(int(note.read_text()))
