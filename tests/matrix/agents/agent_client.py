"""Runtime `agent-client`: a program made with that protocol's own SDK, which is spoken to in words."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.agents.calling import HERE
from tests.matrix.agents.kind import DECLARED, WORDS, Asked, Kind, Started

ANSWERED_WITH_JSON = ("echo", "free")
MISSING = {"command": ["./no-such-program"]}


class AgentClient(Kind):
    """Its words are the answer, unless the operator says that they hold an object."""

    runtime = "agent-client"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        endpoint = {"command": [sys.executable, str(HERE / "agent_client_matrix.py")]}
        declared = [{**each, "streaming": True, **_answered(each["name"])} for each in DECLARED]
        away = self.away(MISSING)
        yield Started(manifests=[self.manifest(endpoint, capabilities=declared), away])

    def counting(self, go_on: Path) -> Asked:
        return Asked(question=super().counting(go_on).question, answer={"answer": "".join(WORDS)})


def _answered(name: str) -> dict[str, Any]:
    return {"output_schema": {"type": "object"}} if name in ANSWERED_WITH_JSON else {}
