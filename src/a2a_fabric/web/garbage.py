"""Garbage collection in short pauses, however many objects a node has.

A pause of Python's collector is as long as the number of objects that it looks at, about 20,000 in 15 ms, and a
node with 10,000 agents has half a million. So objects that have stayed for a while are frozen, which means that
collections leave them out. Nearly all objects are freed by their reference counts, frozen or not; only those that
refer to each other in a circle stay. When many of them may have gathered, all objects are looked at once, if
possible at a moment without requests.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

_THRESHOLDS = (4000, 2, 1)  # so the collector looks at about 20,000 objects at a time
_MAX_OLD = 8000  # objects that are not frozen
_INTERVAL = 60.0  # seconds
_MAX_GROWTH = 500_000  # frozen objects since the last collection of all
_GROWTH_SHARE = 0.5  # of all that there were
_POLL_INTERVAL = 0.02
_POLLS = 500  # for a moment without requests


class GarbageCollection:
    def __init__(self, is_idle: Callable[[], bool]) -> None:
        """`is_idle`: whether no request is waiting for its reply."""
        self._is_idle = is_idle
        self._frozen = 0

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
                if gc.get_freeze_count() - self._frozen > max(_MAX_GROWTH, _GROWTH_SHARE * self._frozen):
                    await self._collect_all()
                await asyncio.to_thread(_return_free_memory)
        finally:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*thresholds)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(generation=2)) > _MAX_OLD:
            gc.freeze()

    async def _collect_all(self) -> None:
        for _ in range(_POLLS):
            if self._is_idle():
                break
            await asyncio.sleep(_POLL_INTERVAL)
        gc.unfreeze()
        gc.collect()
        self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._frozen = gc.get_freeze_count()


def _return_free_memory() -> None:
    """glibc keeps memory that threads have freed; other C libraries return it by themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
