"""Looking again and again at work that tells nobody when it is done: often at first, then ever less often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from a2a_fabric.core.errors import AgentBusy, AgentOffline, CallTimeout, UpstreamInterrupted

LOOK_SECONDS = 30.0  # for one look
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0
_GROWTH = 1.5
_PAUSE_AFTER_FAILURE = 0.5
_FORGIVEN = 3  # failed looks in a row: a server may be slow or restarting, and its work go on

T = TypeVar("T")


async def polled(look: Callable[[], Awaitable[T]], is_over: Callable[[T], bool]) -> T:
    """What was seen when it was over; the caller's deadline is the only other end.

    The work has begun, so a server that is gone now does not mean that it never ran.
    """
    pause, failures = _FIRST_PAUSE, 0
    while True:
        try:
            seen = await look()
        except (AgentOffline, AgentBusy, UpstreamInterrupted, CallTimeout) as exc:
            failures += 1
            if failures > _FORGIVEN:
                raise UpstreamInterrupted(f"The agent was lost sight of: {exc.message}", **exc.details) from exc
            pause = max(pause, _PAUSE_AFTER_FAILURE)
        else:
            if is_over(seen):
                return seen
            failures = 0
        await asyncio.sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
