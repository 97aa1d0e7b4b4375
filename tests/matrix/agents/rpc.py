"""Runtime `rpc`: an agent of document 002, which an operator has written down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.rpc import RPCAgent
from tests.matrix.agents.kind import DECLARED, REST, TEXT, Asked, Kind, Started
from tests.matrix.agents.listening import NOWHERE, listening


class RPC(Kind):
    runtime = "rpc"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        capabilities = [{**each, "streaming": each["name"] == "count"} for each in DECLARED]
        async with listening(RPCAgent()) as url:
            yield Started(
                manifests=[self.manifest({"uri": url}, capabilities=capabilities), self.away({"uri": NOWHERE})]
            )

    def free(self) -> Asked:
        """A task of the document has one input, in which words stand beside the rest."""
        return Asked(question=super().free().question, answer={"seen": {"task": TEXT, **REST}})
