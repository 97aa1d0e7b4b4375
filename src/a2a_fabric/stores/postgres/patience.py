"""Waiting a little for a server that is away: restarting, failing over, out of reach.

Callers wait up to the same number of seconds. Those who come when it has been
away for longer than that are told at once, after one attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from a2a_fabric.core.errors import FabricError
from a2a_fabric.stores.postgres.errors import Unsure, is_lost, is_refused, translate, unavailable

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

AT_FIRST = ". Is it running, and is the address right?"

log = logging.getLogger("a2a_fabric.stores.postgres")


class Patience:
    """`hope` is what a caller is told at the end: a node that runs tries again, a command that opens it does not."""

    def __init__(self, seconds: float, place: str, hope: str = "; it is tried again by itself") -> None:
        self._seconds = seconds
        self._place = place
        self._hope = hope
        self._away_since: float | None = None

    async def attempt(self, once: Callable[[], Awaitable[T]]) -> T:
        """Again and again until it works. Raises StoreError, and what the work itself raises as FabricError."""
        clock = asyncio.get_running_loop().time
        began_at, pause = clock(), _FIRST_PAUSE
        while True:
            try:
                answer = await once()
            except FabricError:
                raise
            except Exception as exc:
                self._note(exc, clock())
                if not self._may_wait(exc, began_at, clock()):
                    since = began_at if self._away_since is None else min(began_at, self._away_since)
                    raise unavailable(exc, self._place, clock() - since, self._hope) from exc
            else:
                self._note_return(clock())
                return answer
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _note(self, exc: Exception, now: float) -> None:
        """Raises what no patience helps against."""
        if is_refused(exc):
            return
        if not is_lost(exc):
            raise translate(exc, self._place) from exc
        if self._away_since is None:
            self._away_since = now
            log.warning("%s is away (%s); waiting for it", self._place, str(exc) or type(exc).__name__)

    def _note_return(self, now: float) -> None:
        if self._away_since is not None:
            log.warning("%s is back after %.3g s", self._place, now - self._away_since)
            self._away_since = None

    def _may_wait(self, exc: Exception, began_at: float, now: float) -> bool:
        if now - began_at >= self._seconds:
            return False
        is_news = self._away_since is None or now - self._away_since < self._seconds
        return is_news or isinstance(exc, Unsure)
