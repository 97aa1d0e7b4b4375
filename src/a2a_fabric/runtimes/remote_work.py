"""Work that runs at an agent: polled until it is done, cancelled in the background, bounded in its output.

Polling starts fast and slows down. A cancellation is sent after its caller has left, so nobody
waits for it. A stream that grows beyond the node's limit is refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.events import Event

POLL_TIMEOUT = 30.0  # for one look
_FIRST_PAUSE = 0.02
_MAX_PAUSE = 2.0
_GROWTH = 1.5
_PAUSE_AFTER_FAILURE = 0.5
_MAX_FAILURES = 3  # failed looks in a row: a server may be slow or restarting, and its work go on

T = TypeVar("T")


async def poll_until(fetch: Callable[[], Awaitable[T]], is_done: Callable[[T], bool]) -> T:
    """What was seen when it was over; the caller's deadline is the only other end.

    The work has begun, so a server that is gone now does not mean that it never ran.
    """
    pause, failures = _FIRST_PAUSE, 0
    while True:
        try:
            state = await fetch()
        except (AgentOffline, AgentBusy, UpstreamInterrupted, CallTimeout) as exc:
            failures += 1
            if failures > _MAX_FAILURES:
                raise UpstreamInterrupted(f"The agent was lost sight of: {exc.message}", **exc.details) from exc
            pause = max(pause, _PAUSE_AFTER_FAILURE)
        else:
            if is_done(state):
                return state
            failures = 0
        await asyncio.sleep(pause)
        pause = min(pause * _GROWTH, _MAX_PAUSE)


_log = logging.getLogger(__name__)

CANCEL_TIMEOUT = 5.0  # for one farewell
_MAX_CANCELS = 256  # at a time, to one agent


class BackgroundCancels:
    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: Coroutine[Any, Any, object]) -> bool:
        """Send it, whatever becomes of the caller. False: there are too many, and it is not sent."""
        if len(self._tasks) >= _MAX_CANCELS:
            request.close()
            _log.warning("%s: too many calls are being cancelled; one is not told", self._agent_id)
            return False
        task = asyncio.get_running_loop().create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _run(self, request: Coroutine[Any, Any, object]) -> None:
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await request
        except (FabricError, TimeoutError) as exc:
            _log.info("%s could not be told that its work is cancelled: %s", self._agent_id, exc)

    async def aclose(self) -> None:
        """Those under way are short; they are heard out."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class OutputLimit:
    """For the words of a stream, up to a limit: an agent that never stops is stopped."""

    __slots__ = ("_remaining",)

    def __init__(self, limit: int) -> None:
        self._remaining = limit

    def check(self, event: Event) -> Event:
        """Raises UpstreamRefused when there is none left."""
        if event.kind == "token":
            self._remaining -= len(str(event.data.get("text", "")))
            if self._remaining < 0:
                raise UpstreamRefused("The agent's stream is larger than this node takes")
        return event
