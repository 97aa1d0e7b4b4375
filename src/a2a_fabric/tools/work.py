"""Blocking work in a thread, with an end: nothing that a tool starts goes on when nobody waits for it any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from a2a_fabric.core.threads import in_worker_thread
from a2a_fabric.tools.errors import tool_error

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 10.0


class Patience:
    """Handed to the work; a thread cannot be stopped from outside, so loops ask it now and then."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._until = time.monotonic() + timeout

    def check(self) -> None:
        if time.monotonic() > self._until:
            raise tool_error("TIMEOUT", f"The tool gave up after {self.timeout:g} s; ask for less")

    def end(self) -> None:
        self._until = 0.0


async def in_thread(function: Callable[Concatenate[Patience, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    patience = Patience(LIMIT)
    try:
        return await in_worker_thread(function, patience, *args, **kwargs)
    finally:
        patience.end()
