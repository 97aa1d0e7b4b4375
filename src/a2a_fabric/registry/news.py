"""Word of changes, for those who keep a list of the agents elsewhere: who there is, and how each one is."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from a2a_fabric.core.trace import new_id


class News:
    """`revision` is another one after each change, and on another day in the life of the node."""

    def __init__(self) -> None:
        self._life = new_id()[:8]
        self._count = 0
        self._bell = asyncio.Event()
        self._is_over = False

    @property
    def revision(self) -> str:
        return f"{self._life}.{self._count}"

    def ring(self) -> None:
        """Something changed."""
        self._count += 1
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def wait(self, revision: str, timeout: float) -> None:
        """As long as this revision holds, but no longer than so many seconds."""
        if revision == self.revision and timeout > 0 and not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._bell.wait()

    def stop(self) -> None:
        """The node stops: nobody waits any longer."""
        self._is_over = True
        self._bell.set()
