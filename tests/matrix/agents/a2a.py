"""Runtime `a2a`: agents made with the official SDK, over each binding, and one made with the SDK of version 0.3."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fixtures.agents.a2a_serving import serving, serving_v03
from tests.matrix.agents.kind import DECLARED, WORDS, Asked, Kind, Started
from tests.matrix.agents.listening import NOWHERE


class A2A(Kind):
    """A card has skills, but no schemas: those are the operator's."""

    runtime = "a2a"

    def __init__(self, name: str, binding: str) -> None:
        super().__init__(name)
        self._binding = binding

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with serving(self._binding) as served:
            yield self._told(served.url)

    def _told(self, url: str) -> Started:
        declared = [{**each, "streaming": True} for each in DECLARED]
        return Started(manifests=[self.manifest({"uri": url}, capabilities=declared), self.away({"uri": NOWHERE})])

    def counting(self, go_on: Path) -> Asked:
        """Words that were said are part of the answer."""
        asked = super().counting(go_on)
        return Asked(question=asked.question, answer={**asked.answer, "answer": "".join(WORDS)})


class OldA2A(A2A):
    """Version 0.3, as its own SDK spoke it."""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Started]:
        async with serving_v03(self._binding) as served:
            yield self._told(served.url)
