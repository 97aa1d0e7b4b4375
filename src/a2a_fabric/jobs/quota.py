"""Limits how many jobs of one owner may wait.

Between two counts every accepted job adds to the number, so the estimate is too
high rather than too low. The store counts again only when the estimate reaches the
limit or is old (other nodes accept jobs too); concurrent callers wait for that count."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from a2a_fabric.core.errors import RateLimited, StoreUnavailable
from a2a_fabric.core.store_calls import RETRY_SECONDS, call_store
from a2a_fabric.core.stores import JobStore

_RECOUNT_AFTER = 10.0  # seconds
_RECOUNT_AFTER_AT_LIMIT = 0.5
_RETRY_AFTER = 2.0
_MAX_OWNERS = 10_000


class _OwnerCount:
    __slots__ = ("at", "number", "turn")

    def __init__(self) -> None:
        self.number = 0
        self.at = float("-inf")
        self.turn = asyncio.Lock()


class JobQuota:
    def __init__(self, jobs: JobStore, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._limit = limit
        self._clock = clock
        self._counts: OrderedDict[str, _OwnerCount] = OrderedDict()

    async def take(self, owner: str) -> None:
        """Count one more waiting job of this owner. Raises RateLimited."""
        count = self._counts.get(owner)
        if count is None:
            count = self._add_owner(owner)
        if self._is_stale(count):
            async with count.turn:
                if self._is_stale(count):
                    with suppress(StoreUnavailable):  # writing the job will raise the same error
                        count.number = await call_store(
                            lambda: self._jobs.count_waiting(owner, self._limit), RETRY_SECONDS
                        )
                    count.at = self._clock()
        if count.number >= self._limit:
            raise RateLimited(
                f"{self._limit} jobs of this caller wait already, which is the limit; try again in {_RETRY_AFTER:g} s",
                _RETRY_AFTER,
            )
        count.number += 1

    def _add_owner(self, owner: str) -> _OwnerCount:
        count = self._counts[owner] = _OwnerCount()
        if len(self._counts) > _MAX_OWNERS:
            self._counts.popitem(last=False)
        return count

    def _is_stale(self, count: _OwnerCount) -> bool:
        age = self._clock() - count.at
        return age > _RECOUNT_AFTER or (count.number >= self._limit and age > _RECOUNT_AFTER_AT_LIMIT)
