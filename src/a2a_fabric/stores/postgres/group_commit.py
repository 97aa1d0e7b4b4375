"""Group commit: writes of one kind that come at the same time share one transaction and one flush to the disk.

One group is written at a time while the next one collects, so the order of the
requests is kept. A caller gets its result only after its group was committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from a2a_fabric.core.deadline import Deadline
from a2a_fabric.core.errors import CallTimeout, FabricError, StoreBusy, StoreUnavailable
from a2a_fabric.stores.changes import set_outcome

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

_MAX_ITEMS = 512
_MAX_BYTES = 8 << 20
_MAX_WAITING = 20_000
_TIMEOUT = 60.0


class GroupCommit(Generic[I, A]):
    """`write` gets the items of one group and returns a result or an error for each, in order."""

    def __init__(self, safe_address: str, write: Callable[[Sequence[I]], Awaitable[Sequence[A | FabricError]]]) -> None:
        self._safe_address = safe_address
        self._write = write
        self._queue: deque[tuple[I, int, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_open = True

    async def add(self, item: I, size: int = 0) -> A:
        """The item's result, once its group is on disk. `size` in bytes keeps groups from growing too large."""
        if not self._is_open:
            raise StoreUnavailable(f"{self._safe_address} is closed", store=self._safe_address)
        if len(self._queue) >= _MAX_WAITING:
            raise StoreBusy(
                f"{self._safe_address} has {_MAX_WAITING} writes waiting already; try again", store=self._safe_address
            )
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue.append((item, size, future))
        if self._task is None:
            self._task = asyncio.create_task(self._write_groups())
        try:
            with Deadline(_TIMEOUT):
                return await future
        except CallTimeout as exc:
            raise StoreBusy(
                f"{self._safe_address} did not write within {_TIMEOUT:g} s", store=self._safe_address
            ) from exc

    async def aclose(self) -> None:
        self._is_open = False
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_TIMEOUT)

    async def _write_groups(self) -> None:
        try:
            while True:
                await asyncio.sleep(0)  # callers that just got a result may add their next item
                group = self._take_group()
                if not group:
                    return
                await self._write_group(group)
        finally:
            self._task = None

    def _take_group(self) -> list[tuple[I, asyncio.Future[A]]]:
        group: list[tuple[I, asyncio.Future[A]]] = []
        budget = _MAX_BYTES
        while self._queue and len(group) < _MAX_ITEMS and (budget > 0 or not group):
            item, size, future = self._queue.popleft()
            if not future.done():  # a cancelled caller's work is not begun
                group.append((item, future))
                budget -= size
        return group

    async def _write_group(self, group: list[tuple[I, asyncio.Future[A]]]) -> None:
        results: Sequence[A | Exception]
        try:
            results = await self._write([item for item, _ in group])
        except StoreUnavailable as exc:
            results = [exc] * len(group)
        except Exception as exc:
            if len(group) > 1:  # nothing was written; alone, only the item that fails is lost
                for each in group:
                    await self._write_group([each])
                return
            results = [exc]
        for (_, future), result in zip(group, results, strict=True):
            set_outcome(future, result)
