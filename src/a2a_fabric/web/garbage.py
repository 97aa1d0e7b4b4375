"""Garbage collection in short pauses, however many objects a node has.

A pause of Python's collector is as long as the number of objects that it looks at, about 20,000 in 15 ms, and a
node with 10,000 agents has 200,000. So objects that have stayed for a while are frozen, which means that collections
leave them out. Nearly all objects are freed by their reference counts, frozen or not; only those that refer to each
other in a circle stay. Calls, lists, changes of agents and sessions leave no circles among frozen objects, and
manifests are not tracked at all; what leaves some, about thirty objects each, are long sessions that the SDK of MCP
served. When many may have gathered, all objects are looked at once, at a moment without requests. A busy node waits
with that until it must.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

from a2a_fabric.core.ports import load_module

_THRESHOLDS = (4000, 2, 1)  # so the collector looks at about 20,000 objects at a time
_MAX_OLD = 8000  # objects that are not frozen
_INTERVAL = 60.0  # seconds
_MAX_GROWTH = 500_000  # frozen objects since the last collection of all
_GROWTH_SHARE = 0.5  # of all that there were
_POLL_INTERVAL = 0.02
_MAX_WAIT = 10.0  # seconds, for a moment without requests
_MUST_COLLECT = 4  # times the growth after which it looks for such a moment


class GarbageCollection:
    def __init__(self, is_idle: Callable[[], bool], max_growth: int = _MAX_GROWTH, max_wait: float = _MAX_WAIT) -> None:
        """`is_idle`: whether no request is waiting for its reply; `max_wait` is for such a moment, in seconds."""
        self._is_idle = is_idle
        self._max_growth = max_growth
        self._max_wait = max_wait
        self._frozen = gc.get_freeze_count()

    async def run(self) -> None:
        """Exclude the objects of the start, then collect every minute: an idle node never reaches the thresholds."""
        self._freeze()
        thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._on_collection)
        gc.enable()  # a command that starts a node disables it until then
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                gc.collect()
                await self.collect_all_if_it_pays()
                await asyncio.to_thread(_return_free_memory)
        finally:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*thresholds)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(generation=2)) > _MAX_OLD:
            gc.freeze()

    async def collect_all_if_it_pays(self) -> None:
        """Look at all objects if many more are frozen than after the last time, and no request has to wait for it."""
        growth = gc.get_freeze_count() - self._frozen
        most = max(self._max_growth, _GROWTH_SHARE * self._frozen)
        if growth > most and (await self._wait_until_idle() or growth > _MUST_COLLECT * most):
            gc.unfreeze()
            gc.collect()
            self._freeze()

    async def _wait_until_idle(self) -> bool:
        """Whether such a moment came in time."""
        for _ in range(round(self._max_wait / _POLL_INTERVAL)):
            if self._is_idle():
                return True
            await asyncio.sleep(_POLL_INTERVAL)
        return False

    def _freeze(self) -> None:
        """Python puts off collections of old objects until a quarter as many were added as the last one looked at. So
        the last one has to be one that looked at few.
        """
        gc.freeze()
        gc.collect()
        self._frozen = gc.get_freeze_count()


def _return_free_memory() -> None:
    """glibc keeps memory that threads have freed; other C libraries return it by themselves."""
    trim = getattr(load_module("ctypes").CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
