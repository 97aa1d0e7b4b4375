"""Runtime `fabric`: an agent of another node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.matrix import make
from tests.fixtures.node import PSK, running
from tests.matrix.agents.kind import Kind, Started
from tests.matrix.agents.listening import NOWHERE


class OtherNode(Kind):
    runtime = "fabric"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        config = {"node_id": "other", "breaker": {"failures": 100_000}, "health": {"failures": 100_000}}
        async with running(make("there"), config=config) as other:
            here = {"uri": other.url, "psk": PSK, "agent": "there"}
            yield Started(manifests=[self.manifest(here), self.away({"uri": NOWHERE, "agent": "there"})])
