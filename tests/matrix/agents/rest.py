"""Runtime `rest`: an agent on a platform of document 004."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.rest import AGENT, RestPlatform
from tests.matrix.agents.kind import DECLARED, REST, TEXT, Asked, Kind, Started
from tests.matrix.agents.listening import NOWHERE, listening


class Rest(Kind):
    runtime = "rest"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        capabilities = [{**each, "streaming": each["name"] == "count"} for each in DECLARED]
        async with listening(RestPlatform()) as url:
            endpoint = {"uri": f"{url}/v1", "agent": AGENT}
            away = self.away({"uri": NOWHERE})
            yield Started(manifests=[self.manifest(endpoint, capabilities=capabilities), away])

    def free(self) -> Asked:
        """A task of the document has one input, in which words stand beside the rest."""
        return Asked(question=super().free().question, answer={"seen": {"task": TEXT, **REST}})
