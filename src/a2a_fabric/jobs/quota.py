"""No more waiting jobs of one principal than policy allows, without counting them for each.

Between two counts every job that is accepted adds to the number, so it is rather
too high than too low. Only when it reaches the limit, or has grown old (other nodes
accept jobs too), are they counted again; whoever comes meanwhile waits for that count.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.store_errors import StoreUnavailable
from a2a_fabric.core.stores import Jobs
from a2a_fabric.jobs.patience import BRIEFLY, once

_OLD = 10.0  # seconds
_OLD_AT_THE_LIMIT = 0.5
_RETRY_AFTER = 2.0
_OWNERS_REMEMBERED = 10_000


class _Count:
    __slots__ = ("at", "number", "turn")

    def __init__(self) -> None:
        self.number = 0
        self.at = float("-inf")
        self.turn = asyncio.Lock()


class Quota:
    def __init__(self, jobs: Jobs, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._most = most
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    async def take(self, owner: str) -> None:
        """One more job of this owner's may wait. Raises RateLimited."""
        count = self._counts.get(owner)
        if count is None:
            count = self._remembered(owner)
        if self._is_old(count):
            async with count.turn:
                if self._is_old(count):
                    await self._recount(owner, count)
        if count.number >= self._most:
            raise RateLimited(
                f"{self._most} jobs of this caller wait already, which is the limit; try again in {_RETRY_AFTER:g} s",
                _RETRY_AFTER,
            )
        count.number += 1

    def _remembered(self, owner: str) -> _Count:
        count = self._counts[owner] = _Count()
        if len(self._counts) > _OWNERS_REMEMBERED:
            self._counts.popitem(last=False)
        return count

    def _is_old(self, count: _Count) -> bool:
        age = self._clock() - count.at
        return age > _OLD or (count.number >= self._most and age > _OLD_AT_THE_LIMIT)

    async def _recount(self, owner: str, count: _Count) -> None:
        with suppress(StoreUnavailable):  # it will say so itself when the job is to be written
            count.number = await once(lambda: self._jobs.waiting(owner, self._most), BRIEFLY)
        count.at = self._clock()
