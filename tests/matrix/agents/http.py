"""Runtime `http`: an agent that only ever answers with JSON, one that also sends events, and an API with a document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fixtures.agents.matrix import make
from tests.fixtures.agents.plain_http import app
from tests.fixtures.apis.matrix import app as api
from tests.matrix.agents.kind import DECLARED, Kind, Started
from tests.matrix.agents.listening import NOWHERE, listening


class PlainHTTP(Kind):
    """Another author's agent, which the manifest describes."""

    runtime = "http"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with listening(app) as url:
            yield Started(manifests=[self.manifest({"uri": url}, capabilities=DECLARED), self.away({"uri": NOWHERE})])


class EventHTTP(Kind):
    """An agent of our library, which describes itself."""

    runtime = "http"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with listening(make(self.name).app) as url:
            yield Started(manifests=[self.manifest({"uri": url}), self.away({"uri": NOWHERE})])


class DescribedHTTP(Kind):
    """Another author's API, which its OpenAPI document describes."""

    runtime = "http"

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with listening(api) as url:
            there, nowhere = {"openapi": f"{url}/openapi.json"}, {"openapi": f"{NOWHERE}openapi.json"}
            yield Started(manifests=[self.manifest(there), self.away(nowhere)])
