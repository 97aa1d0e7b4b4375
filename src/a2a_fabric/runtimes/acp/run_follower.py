"""Follows an ACP run from its start until it has ended or awaits a message, and emits its events.

The mode decides how: by event stream (the default), by polling, or by waiting for the reply. A run goes on
at the server if its stream breaks or falls silent, so it is then polled. A caller that leaves early
cancels the run; if the run's id is not known yet, the cancel is sent as soon as it is."""

from __future__ import annotations

import asyncio
from typing import Literal

from a2a_fabric.core.errors import BadInput, FabricError, UpstreamInterrupted
from a2a_fabric.core.events import Event, status
from a2a_fabric.core.pipeline import Emit, ignore_event
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import StreamedReply
from a2a_fabric.runtimes.acp.client import ACPAgentUnknown, ACPClient, ACPRunRequest, error_from_acp
from a2a_fabric.runtimes.acp.content import events_from_part
from a2a_fabric.runtimes.acp.models import ACPError, ACPMessagePart, ACPRun, ACPRunEvent
from a2a_fabric.runtimes.remote_work import BackgroundCancels, poll_until
from a2a_fabric.runtimes.upstream import decode_reply, read_bounded

_STOP_EVENTS = frozenset({"run.awaiting", "run.completed", "run.failed", "run.cancelled"})


class RunProgress:
    """The state of one run. `event_count` counts its events from the start, or is None if that is not known."""

    def __init__(self, emit: Emit) -> None:
        self.run_id: str | None = None
        self.run_id_set = asyncio.Event()  # set when `run_id` is known
        self.event_count: int | None = None
        self.activity_count = 0  # changes with every event
        self._emit = emit
        self._part_count = 0  # of the current message

    def set_run_id(self, run_id: str) -> None:
        self.run_id = run_id
        self.run_id_set.set()

    def stop_emitting(self) -> None:
        """The caller has left."""
        self._emit = ignore_event

    async def handle_event(self, event: ACPRunEvent) -> ACPRun | None:
        """The run, if it stopped with this event; else None. Raises FabricError for an error event."""
        self.activity_count += 1
        if self.event_count is not None:
            self.event_count += 1
        if event.run is not None:
            self.set_run_id(event.run.run_id)
            if event.type in _STOP_EVENTS:
                return event.run
        if event.type == "error":
            raise error_from_acp(event.error or ACPError())
        if event.type == "generic":
            await self._emit(_status_from_generic(event))
        else:
            await self._handle_message_event(event)
        return None

    async def _handle_message_event(self, event: ACPRunEvent) -> None:
        """Emits the parts of a message as they arrive, or all at its end if the server sends it as a whole."""
        if event.type == "message.created":
            self._part_count = 0
        elif event.type == "message.part" and event.part is not None:
            await self._emit_part(event.part)
        elif event.type == "message.completed" and event.message is not None and not self._part_count:
            for part in event.message.parts:
                await self._emit_part(part)

    async def _emit_part(self, part: ACPMessagePart) -> None:
        self._part_count += 1
        for each in events_from_part(part):
            await self._emit(each)


def _status_from_generic(event: ACPRunEvent) -> Event:
    """A generic event, which may hold any data of the agent."""
    content = event.generic if isinstance(event.generic, dict) else {"value": event.generic}
    message = content.get("message")
    return status("running", message if isinstance(message, str) else None, generic=content)


ACPRunMode = Literal["stream", "async", "sync"]

SILENCE_TIMEOUT = 5.0  # seconds without an event, after which the run is polled in case the stream missed its end

RunTask = asyncio.Task[ACPRun | None]


class RunFollower:
    def __init__(
        self,
        client: ACPClient,
        mode: ACPRunMode,
        background_cancels: BackgroundCancels,
        silence_timeout: float = SILENCE_TIMEOUT,
    ) -> None:
        self._client = client
        self._mode = mode
        self._background_cancels = background_cancels
        self._silence_timeout = silence_timeout

    async def follow(self, run_request: ACPRunRequest, progress: RunProgress) -> ACPRun:
        """Returns the run when it has stopped. Raises FabricError and ACPAgentUnknown."""
        task: RunTask = asyncio.ensure_future(self._start_run(run_request, progress))
        try:
            run = await self._await_task(task, progress)
            return run if run is not None and run.is_stopped else await self._poll_until_stopped(progress)
        except (BadInput, ACPAgentUnknown):  # no run was started
            raise
        except BaseException:
            progress.stop_emitting()
            if not self._background_cancels.start(self._cancel_run(task, progress)):
                task.cancel()
            raise

    async def _await_task(self, task: RunTask, progress: RunProgress) -> ACPRun | None:
        """The run; None if the stream ended early or missed the end, so that the run must be polled."""
        while not task.done():
            activity_count = progress.activity_count
            await asyncio.wait({task}, timeout=self._silence_timeout)
            if not task.done() and activity_count == progress.activity_count and await self._is_stopped(progress):
                await cancel_and_wait(task)
                return None
        try:
            return task.result()
        except UpstreamInterrupted:
            if progress.run_id is None:
                raise
            return None

    async def _poll_until_stopped(self, progress: RunProgress) -> ACPRun:
        if progress.run_id is None:
            raise UpstreamInterrupted("The agent's stream ended before it named its run")
        run = await poll_until(lambda: self._poll_once(progress), lambda run: run is not None and run.is_stopped)
        assert run is not None  # noqa: S101  # the condition of `poll_until`
        return run

    async def _cancel_run(self, task: RunTask, progress: RunProgress) -> None:
        id_waiter = asyncio.ensure_future(progress.run_id_set.wait())
        try:
            await asyncio.wait({task, id_waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(id_waiter, task)
        if progress.run_id is not None:
            await self._client.cancel_run(progress.run_id)

    async def _start_run(self, run_request: ACPRunRequest, progress: RunProgress) -> ACPRun | None:
        if self._mode == "stream":
            return await self._read_stream(run_request, progress)
        run = await self._client.start_run(run_request, self._mode)
        progress.set_run_id(run.run_id)
        return run

    async def _read_stream(self, run_request: ACPRunRequest, progress: RunProgress) -> ACPRun | None:
        async with self._client.stream_run(run_request) as reply:
            if run_id := reply.headers.get("run-id"):
                progress.set_run_id(run_id)
            if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return await self._read_events(reply, progress)
            run = decode_reply(await read_bounded(reply, self._client.api.reply_bytes), ACPRun)
            progress.set_run_id(run.run_id)
            return run

    async def _read_events(self, reply: StreamedReply, progress: RunProgress) -> ACPRun | None:
        events = sse.SSEParser(self._client.api.reply_bytes)
        async for chunk in reply.chunks():
            for data in events.feed(chunk):
                if (run := await progress.handle_event(decode_reply(data, ACPRunEvent))) is not None:
                    return run
        for data in events.flush():
            if (run := await progress.handle_event(decode_reply(data, ACPRunEvent))) is not None:
                return run
        return None

    async def _is_stopped(self, progress: RunProgress) -> bool:
        """Errors are ignored here, because the stream is still open."""
        if progress.run_id is None:
            return False
        try:
            return (await self._client.get_run(progress.run_id)).is_stopped
        except FabricError:
            return False

    async def _poll_once(self, progress: RunProgress) -> ACPRun | None:
        """The run if it has stopped, else None; events that the stream missed are emitted."""
        assert progress.run_id is not None  # noqa: S101  # checked by `_poll_until_stopped`
        if progress.event_count is None:
            return await self._client.get_run(progress.run_id)
        for event in (await self._client.list_events(progress.run_id))[progress.event_count :]:
            if (run := await progress.handle_event(event)) is not None:
                return run
        return None
