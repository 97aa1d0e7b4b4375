"""Work that an agent does for a caller: polled until it is done, cancelled in the background, bounded in its output.

Polling starts fast and slows down. A cancellation is sent after its caller has left, so nothing waits for it.
A stream that grows beyond the node's limit is refused. The context ids that agents gave to our conversations are
kept in memory, for the most recent conversations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from a2a_fabric.core.call import Call, derive_conversation_id
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    CallTimeout,
    FabricError,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.result import Event

_log = logging.getLogger(__name__)

POLL_TIMEOUT = 30.0  # for one request
CANCEL_TIMEOUT = 5.0  # for one cancellation
_FIRST_PAUSE = 0.02
_MAX_PAUSE = 2.0
_GROWTH = 1.5
_PAUSE_AFTER_FAILURE = 0.5
_MAX_FAILURES = 5  # in a row: a server may be slow or restarting while its work goes on
_MAX_CANCELS = 256  # at a time, to one agent

T = TypeVar("T")


class PollPace(msgspec.Struct, frozen=True, kw_only=True):
    """The pauses between two polls, in seconds: the first, growing to the longest."""

    first: float = _FIRST_PAUSE
    longest: float = _MAX_PAUSE


DEFAULT_PACE = PollPace()


def _no_request(state: object) -> None:
    return None


async def poll_until(
    fetch: Callable[[], Awaitable[T]],
    is_done: Callable[[T], bool],
    *,
    pace: PollPace = DEFAULT_PACE,
    requested_pause: Callable[[T], float | None] = _no_request,
) -> T:
    """The state with which the work ended. Otherwise only the caller's deadline ends the loop.

    `requested_pause` reads from a state when the agent wants to be asked again; `fetch` may name the same as
    `retry_after` in the details of its error. The work has begun, so a server that is gone now raises
    UpstreamInterrupted, never AgentOffline.
    """
    pause, failures = pace.first, 0
    while True:
        try:
            state = await fetch()
        except (AgentOffline, AgentBusy, UpstreamInterrupted, CallTimeout) as exc:
            failures += 1
            if failures > _MAX_FAILURES:
                raise UpstreamInterrupted(f"Lost contact with the agent: {exc.message}", **exc.details) from exc
            wait = exc.details.get("retry_after") or max(pause, _PAUSE_AFTER_FAILURE)
        else:
            if is_done(state):
                return state
            failures = 0
            wait = requested_pause(state) or pause
        await asyncio.sleep(wait)
        pause = min(pause * _GROWTH, pace.longest)


class BackgroundCancels:
    """Cancellations of one agent's work that are being sent."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: Coroutine[Any, Any, object]) -> bool:
        """Send the request even if the caller is cancelled. False if there are too many: then it is not sent."""
        if len(self._tasks) >= _MAX_CANCELS:
            request.close()
            _log.warning("%s: a cancellation was not sent, because too many are being sent", self._agent_id)
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
            _log.info("%s: a cancellation could not be delivered: %s", self._agent_id, exc)

    async def aclose(self) -> None:
        """Wait for those that are being sent, which is not long."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class OutputLimit:
    """Bounds the text of one stream: an agent that never stops is stopped."""

    def __init__(self, limit: int) -> None:
        self._remaining = limit

    def add(self, text: str) -> None:
        """Raises UpstreamRefused when the limit is exceeded."""
        self._remaining -= len(text)
        if self._remaining < 0:
            raise _too_large()

    def check(self, event: Event) -> Event:
        """The same event. Raises UpstreamRefused."""
        if event.kind == "token":
            self.add(str(event.data.get("text", "")))
        return event


def _too_large() -> UpstreamRefused:
    return UpstreamRefused("The agent's stream is larger than this node takes")


class StreamText(OutputLimit):
    """The same limit for a stream whose text becomes the answer, and is kept."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._remaining -= len(text)
        if self._remaining < 0:
            raise _too_large()
        self._parts.append(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)


_MAX_CONTEXTS = 10_000


class ContextIds:
    def __init__(self, max_contexts: int = _MAX_CONTEXTS) -> None:
        self._max_contexts = max_contexts
        self._contexts: dict[str, str] = {}  # the most recently used one is last

    def find(self, call: Call) -> str:
        """Empty if the conversation has no context id yet."""
        key = derive_conversation_id(call)
        return self._contexts.get(key, "") if key is not None else ""

    def remember(self, call: Call, context_id: str) -> None:
        key = derive_conversation_id(call)
        if key is None or not context_id:
            return
        self._contexts.pop(key, None)
        self._contexts[key] = context_id
        if len(self._contexts) > self._max_contexts:
            del self._contexts[next(iter(self._contexts))]

    def forget(self, call: Call) -> None:
        key = derive_conversation_id(call)
        if key is not None:
            self._contexts.pop(key, None)
