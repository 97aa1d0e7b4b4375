"""Whoever writes the same kind of thing at the same time shares one transaction, and so one flush to the disk.

One group is written at a time, and the next one gathers meanwhile. That keeps
the order in which things were asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout, FabricError
from a2a_fabric.core.store_errors import StoreBusy, StoreUnavailable

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

_ITEMS = 512
_BYTES = 8 << 20
_WAITING = 20_000
_PATIENCE = 60.0


class Group(Generic[I, A]):
    """`write` gets the items of one group, and gives an answer or an error for each, in order."""

    def __init__(self, place: str, write: Callable[[Sequence[I]], Awaitable[Sequence[A | FabricError]]]) -> None:
        self._place = place
        self._write = write
        self._queue: deque[tuple[I, int, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_open = True

    async def add(self, item: I, size: int = 0) -> A:
        """The item's answer, once its group is on disk. `size` in bytes keeps groups from growing too large."""
        if not self._is_open:
            raise StoreUnavailable(f"{self._place} is closed", store=self._place)
        if len(self._queue) >= _WAITING:
            raise StoreBusy(f"{self._place} has {_WAITING} writes waiting already; try again", store=self._place)
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue.append((item, size, future))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        try:
            with Deadline(_PATIENCE):
                return await future
        except CallTimeout as exc:
            raise StoreBusy(f"{self._place} did not write within {_PATIENCE:g} s", store=self._place) from exc

    async def aclose(self) -> None:
        self._is_open = False
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_PATIENCE)

    async def _work(self) -> None:
        try:
            while True:
                await asyncio.sleep(0)  # those who were just answered may ask again
                group = self._next()
                if not group:
                    return
                await self._settle(group)
        finally:
            self._task = None

    def _next(self) -> list[tuple[I, asyncio.Future[A]]]:
        group: list[tuple[I, asyncio.Future[A]]] = []
        room = _BYTES
        while self._queue and len(group) < _ITEMS and (room > 0 or not group):
            item, size, future = self._queue.popleft()
            if not future.done():  # a cancelled caller's work is not begun
                group.append((item, future))
                room -= size
        return group

    async def _settle(self, group: list[tuple[I, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._write([item for item, _ in group])
        except StoreUnavailable as exc:
            _tell(group, [exc] * len(group))
        except Exception as exc:
            if len(group) == 1:
                _tell(group, [exc])
                return
            for each in group:  # one of them spoils it for the others; each alone, then
                await self._settle([each])
        else:
            _tell(group, answers)


def _tell(group: Sequence[tuple[I, asyncio.Future[A]]], answers: Sequence[A | Exception]) -> None:
    for (_, future), answer in zip(group, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
