"""Runtime `acp`: a server of that protocol's own SDK, in an environment of its own; its agents are the capabilities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.calling import HERE
from tests.fixtures.peers import peer
from tests.matrix.agents.kind import DECLARED, Kind, Started
from tests.matrix.agents.listening import NOWHERE


class ACP(Kind):
    """Its agents publish what they are for, but no schemas: those are the operator's."""

    runtime = "acp"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        declared = [{**each, "streaming": True} for each in DECLARED]
        async with peer("acp", HERE / "acp_server.py") as url:
            yield Started(manifests=[self.manifest({"uri": url}, capabilities=declared), self.away({"uri": NOWHERE})])
