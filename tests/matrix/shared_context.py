"""Something that stays open while many tests use it, opened and closed by one task, as the MCP SDK wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedContext(Generic[T]):
    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._opening = opening
        self._over = asyncio.Event()
        self._ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._holding: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Opened on first use; raises what opening raised."""
        if self._holding is None:
            self._holding = asyncio.create_task(self._hold())
        return await asyncio.shield(self._ready)

    async def aclose(self) -> None:
        self._over.set()
        if self._holding is not None:
            await self._holding

    async def _hold(self) -> None:
        try:
            async with self._opening() as opened:
                self._ready.set_result(opened)
                await self._over.wait()
        except Exception as exc:
            if self._ready.done():
                raise
            self._ready.set_exception(exc)
