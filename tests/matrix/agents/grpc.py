"""Runtime `grpc`: an agent that knows nothing of Fabric but the published proto."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.grpc_matrix import MatrixAgent
from tests.fixtures.agents.grpc_serving import NOWHERE, serving
from tests.matrix.agents.kind import Kind, Started


class GRPC(Kind):
    runtime = "grpc"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with serving(MatrixAgent()) as port:
            here = {"uri": f"grpc://127.0.0.1:{port}"}
            yield Started(manifests=[self.manifest(here), self.away({"uri": NOWHERE})])
