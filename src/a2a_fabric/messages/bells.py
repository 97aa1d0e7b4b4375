"""Bells of conversations: whoever follows one in this process is woken by whoever writes into it here.

What other nodes write is looked for once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOOK_EVERY = 1.0


class Bells:
    def __init__(self) -> None:
        self.is_over = False
        self._followed: dict[str, set[asyncio.Event]] = {}

    @property
    def followers(self) -> int:
        return sum(map(len, self._followed.values()))

    def ring(self, name: str) -> None:
        for bell in self._followed.get(name, ()):
            bell.set()

    def stop(self) -> None:
        """No new requests will come: whoever only waits goes."""
        self.is_over = True
        for name in self._followed:
            self.ring(name)

    @contextmanager
    def at(self, name: str) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        self._followed.setdefault(name, set()).add(bell)
        try:
            yield bell
        finally:
            self._followed[name].discard(bell)
            if not self._followed[name]:
                del self._followed[name]


async def rung(bell: asyncio.Event) -> None:
    """Until it rings, or it is time to look."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_EVERY):
            await bell.wait()
    bell.clear()
