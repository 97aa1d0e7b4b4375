"""The modules that runtimes are made of: imported beside the event loop, before the first of their kind is built.

Some bring a library that takes a second to import. Whoever needs it waits, and nobody else does.
One is imported at a time, in the order in which they were needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import NotReached

_LONGEST = 60.0


class Loading:
    """`kind_of` says what an agent needs, `load` imports it; both may raise."""

    def __init__(self, kind_of: Callable[[Manifest], str], load: Callable[[str], object]) -> None:
        self._kind_of = kind_of
        self._load = load
        self._ready: set[str] = set()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def is_ready_for(self, manifest: Manifest) -> bool:
        """Whether there is nothing to wait for. Raises what `kind_of` does."""
        return self._kind_of(manifest) in self._ready

    async def ready_for(self, manifest: Manifest) -> None:
        await self.ready(self._kind_of(manifest))

    async def ready(self, kind: str) -> None:
        """Raises what `load` does, or AgentOffline if it takes too long."""
        if kind in self._ready:
            return
        task = self._under_way.get(kind)
        if task is None:
            task = self._under_way[kind] = asyncio.ensure_future(self._loaded(kind))
            task.add_done_callback(_heard)
        try:
            async with asyncio.timeout(_LONGEST):
                await asyncio.shield(task)
        except TimeoutError as exc:
            raise NotReached(f"the runtime '{kind}' is still being loaded") from exc

    async def aclose(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loaded(self, kind: str) -> None:
        try:
            async with self._turn:
                await asyncio.to_thread(self._load, kind)
            self._ready.add(kind)
        finally:
            del self._under_way[kind]


def _heard(task: asyncio.Task[None]) -> None:
    """Whoever waited may be gone by the time that it fails."""
    if not task.cancelled():
        task.exception()
