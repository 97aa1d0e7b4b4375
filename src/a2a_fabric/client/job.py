"""`JobHandle`: follow a job, wait for it, answer it, cancel it.

The node stores the job's log, so a broken connection loses nothing: `events`
reconnects with the last event number it has and continues there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from a2a_fabric.client.wire import CallResult, NodeUnreachable, StreamEvent, encode_request
from a2a_fabric.core.errors import CallTimeout, FabricError, RateLimited, StoreUnavailable, UpstreamInterrupted

_CONNECTION_SECONDS = 300.0  # then a new connection continues the stream
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0


class NodeConnection(NamedTuple):
    """The client's methods that a handle uses to reach its node."""

    query: Callable[..., Awaitable[dict[str, Any]]]
    send: Callable[[str, dict[str, Any], float], Awaitable[CallResult]]
    stream_events: Callable[[bytes, float, float], AsyncGenerator[StreamEvent]]


class JobHandle:
    """`reconnect_timeout` is how long, in seconds, `events` tries to reach a node that is gone."""

    def __init__(self, node: NodeConnection, job_id: str, reconnect_timeout: float = 60.0) -> None:
        self.job_id = job_id
        self._node = node
        self._reconnect_timeout = reconnect_timeout

    async def status(self) -> dict[str, Any]:
        return await self._node.query("fabric.job.status", job_id=self.job_id)

    async def events(self, after: int = 0) -> AsyncGenerator[StreamEvent]:
        """The events after a number, each once, in order; the last one is `final`. A failed job raises its error.

        Leaving early does not affect the job.
        """
        broken_at: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                async with aclosing(self._open_stream(after)) as events:
                    async for event in events:
                        broken_at, pause = None, _FIRST_PAUSE
                        after = event.number or after
                        yield event
                return
            except FabricError as error:
                if not _is_connection_error(error):
                    raise
                broken_at = broken_at or time.monotonic()
                if time.monotonic() - broken_at > self._reconnect_timeout:
                    raise
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, _MAX_PAUSE)

    async def result(self, timeout: float | None = None) -> CallResult:
        """Wait for the end. Raises the job's error, or CallTimeout after `timeout` seconds; then the job continues.

        If the agent asks a question first, the result has a `job_id` and holds the question.
        """
        try:
            async with asyncio.timeout(timeout), aclosing(self.events(_AFTER_LAST)) as events:
                async for event in events:
                    if event.kind == "final":
                        return event.result
        except TimeoutError as exc:
            raise CallTimeout(timeout or 0.0, job_id=self.job_id) from exc
        raise AssertionError("a stream ends with `final`")

    async def cancel(self) -> dict[str, Any]:
        return await self._node.query("fabric.job.cancel", job_id=self.job_id)

    async def answer(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Answer each question by its key: `{"name": {"content": ...}}`."""
        arguments = {"job_id": self.job_id, "answers": answers}
        return (await self._node.send("fabric.job.answer", arguments, self._reconnect_timeout)).data

    async def retry(self) -> JobHandle:
        """The same call again, as a new job. Raises Conflict while this one has not ended."""
        response = await self._node.send("fabric.job.retry", {"job_id": self.job_id}, self._reconnect_timeout)
        return JobHandle(self._node, str(response.data["job_id"]), self._reconnect_timeout)

    def _open_stream(self, after: int) -> AsyncGenerator[StreamEvent]:
        body = encode_request("fabric.job.stream", {"job_id": self.job_id, "after": after})
        return self._node.stream_events(body, _CONNECTION_SECONDS, _CONNECTION_SECONDS)


_AFTER_LAST = 10**14  # beyond every log, so that only `final` is sent


def _is_connection_error(error: FabricError) -> bool:
    """Whether the connection to the job failed, rather than the job."""
    if isinstance(error, StoreUnavailable | NodeUnreachable | RateLimited):
        return True
    return error.trace_id is None and isinstance(error, UpstreamInterrupted | CallTimeout)
