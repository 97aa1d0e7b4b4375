"""Runtime `claude`: a program with the flags and the output of Claude Code; `make conformance` asks the real one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fixtures.agents.calling import HERE, is_alive
from tests.matrix.agents.kind import DECLARED, Kind, Started

OBJECT = {"output_schema": {"type": "object"}}


class Claude(Kind):
    """Where the operator declares an object, it is asked for by its schema."""

    runtime = "claude"
    refusal = "UPSTREAM_ERROR"  # it has words for what went wrong, but no kinds

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "CLAUDE.md").write_text("# Matrix\n\nDoes one thing of each kind.\n", "utf-8")
            common = {"path": folder, "env": {"CLAUDE_CONFIG_DIR": folder}, "max_concurrent": 32, "grace": 0.2}
            endpoint = {**common, "command": [sys.executable, "-I", "-S", str(HERE / "claude_program.py")]}
            declared = [{**each, "streaming": True, **OBJECT} for each in DECLARED]
            away = self.away({**common, "command": ["./no-such-program"]})
            yield Started(manifests=[self.manifest(endpoint, capabilities=declared), away])

    def has_stopped(self, note: Path) -> bool:
        """It is killed with its children, and leaves nothing but the numbers that they had."""
        return not any(is_alive(int(pid)) for pid in note.read_text().split())
