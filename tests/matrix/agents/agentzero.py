"""Runtime `agentzero`: the FastA2A library as Agent Zero serves it, in an environment of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.calling import HERE
from tests.fixtures.peers import peer
from tests.matrix.agents.kind import DECLARED, Kind, Started
from tests.matrix.agents.listening import NOWHERE

TOKEN = "the-token"


class AgentZero(Kind):
    runtime = "agentzero"
    refusal = "UPSTREAM_ERROR"  # a task that failed is all that can be said

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with peer("acp", HERE / "agentzero_server.py") as url:
            endpoint = {"uri": url, "token": TOKEN}
            yield Started(manifests=[self.manifest(endpoint, capabilities=DECLARED), self.away({"uri": NOWHERE})])
