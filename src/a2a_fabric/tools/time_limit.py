"""Blocking work in a thread with a time limit: it stops when the limit is over or the caller no longer waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from a2a_fabric.core.threads import run_in_worker_thread
from a2a_fabric.tools.errors import tool_error

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_LIMIT = 10.0


class TimeLimit:
    """Handed to the work; a thread cannot be stopped from outside, so loops ask it now and then."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout

    def check(self) -> None:
        if time.monotonic() > self._deadline:
            raise tool_error("TIMEOUT", f"The tool gave up after {self.timeout:g} s; ask for less")

    def end(self) -> None:
        self._deadline = 0.0


async def run_in_thread(function: Callable[Concatenate[TimeLimit, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    time_limit = TimeLimit(DEFAULT_LIMIT)
    try:
        return await run_in_worker_thread(function, time_limit, *args, **kwargs)
    finally:
        time_limit.end()
