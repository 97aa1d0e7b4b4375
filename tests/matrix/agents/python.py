"""Runtime `python`: an agent in the node's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.matrix import make
from tests.matrix.agents.kind import STAND_IN, Kind, Started


class Python(Kind):
    runtime = "python"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        agent = make(self.name, fallbacks=[STAND_IN])
        yield Started(agents=[agent], manifests=[self.away({"uri": "python:nobody_wrote_this:agent"})])
