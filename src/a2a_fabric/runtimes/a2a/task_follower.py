"""Runs one call: sends the message, reads the replies, and follows the task until it has ended or needs input.

If a stream breaks, a connection is lost or the agent only acknowledges the task, the task is polled by its
id with growing delays. If the caller leaves, the task is cancelled. An agent that sends push
notifications is polled when one arrives, and otherwise rarely. A push only triggers a poll or reports
progress; the answer is always fetched from the agent itself. So a push that is lost, late, repeated or forged
changes no result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, suppress

import msgspec

from a2a_fabric.core.call import Emit
from a2a_fabric.core.callbacks import Callback
from a2a_fabric.core.errors import (
    AgentBusy,
    AgentOffline,
    BadInput,
    CallTimeout,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.protocols.a2a.decode import parse_push
from a2a_fabric.protocols.a2a.errors import PUSH_NOT_SUPPORTED, TASK_LOST_REASONS, UNSUPPORTED_REASONS, upstream_reason
from a2a_fabric.protocols.a2a.models import (
    FINAL_TASK_STATES,
    INTERRUPTED_TASK_STATES,
    RUNNING_TASK_STATES,
    A2AMessage,
    A2APushConfig,
    A2ATask,
    A2AUpdate,
    SendOptions,
    TaskArtifactUpdate,
    TaskStatusUpdate,
)
from a2a_fabric.runtimes.a2a.client import A2AClient, RequestOptions
from a2a_fabric.runtimes.a2a.reply_buffer import ReplyBuffer

_CONFIG_ID = "a2a-fabric"  # the same for every message to a task, so that a new address replaces the previous one
_TASK_ID_TIMEOUT = 5.0  # seconds to wait for the first push, if nothing else tells the task's id
_STOPPED_TASK_STATES = FINAL_TASK_STATES | INTERRUPTED_TASK_STATES


class PushBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Pushes that arrived together: progress to report, and whether the task has ended or needs input."""

    status_updates: list[TaskStatusUpdate]
    should_poll: bool
    is_done: bool


class PushReceiver:
    """Receives the pushes of one call. An agent that is silent for `silence_timeout` seconds is polled."""

    def __init__(self, callback: Callback, silence_timeout: float | None, *, emits_events: bool) -> None:
        # Some agents send the token in one header, some in the other.
        self.config = A2APushConfig(
            id=_CONFIG_ID, url=callback.url, token=callback.token, scheme="Bearer", credentials=callback.token
        )
        self.silence_timeout = silence_timeout
        self.is_registered = False  # whether the agent has the address
        self.are_lost: bool | None = None  # whether the task ended without a push; None: not known yet
        self._callback = callback
        self._emits_events = emits_events  # whether the caller wants events

    async def receive(self, task_id: str, timeout: float) -> AsyncGenerator[PushBatch, None]:
        """The pushes of this task, as they arrive, for so many seconds."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout
        while (remaining := ends_at - loop.time()) > 0:
            parsed = [parse_push(body) for body in await self._callback.receive(remaining)]
            pushes = [push for push in parsed if _may_concern(push, task_id)]
            if pushes:
                yield PushBatch(
                    status_updates=[
                        push
                        for push in pushes
                        if isinstance(push, TaskStatusUpdate) and push.status.state in RUNNING_TASK_STATES
                    ],
                    should_poll=any(self._should_poll(push) for push in pushes),
                    is_done=any(
                        isinstance(push, A2ATask | TaskStatusUpdate) and push.status.state in _STOPPED_TASK_STATES
                        for push in pushes
                    ),
                )

    async def wait_for_task_id(self) -> str:
        """The id in the first push; empty if none arrives in time."""
        pushes = map(parse_push, await self._callback.receive(_TASK_ID_TIMEOUT))
        return next((push.task_id for push in pushes if push is not None and push.task_id), "")

    def _should_poll(self, push: A2AUpdate | None) -> bool:
        if isinstance(push, TaskStatusUpdate):
            return push.status.state not in RUNNING_TASK_STATES
        return self._emits_events or not isinstance(push, TaskArtifactUpdate)


def _may_concern(push: A2AUpdate | None, task_id: str) -> bool:
    """A push that makes no sense may concern the task; one that names another task does not."""
    return push is None or push.task_id in ("", task_id)


def is_push_refusal(exc: FabricError) -> bool:
    """Whether the agent refused a message only because of its push configuration."""
    return upstream_reason(exc) == PUSH_NOT_SUPPORTED or "push notification" in exc.message.lower()


_FIRST_DELAY = 0.05  # seconds
_MAX_DELAY = 2.0
_DELAY_GROWTH = 1.5
_MAX_FAILURES = 6  # in a row; then the agent counts as lost
_MAX_TASK_SEARCHES = 4  # the agent may create the task a moment later
_POLL_TIMEOUT = 15.0  # for one request


def backoff_delays() -> Iterator[float]:
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(_MAX_DELAY, delay * _DELAY_GROWTH)


class TaskFollower:
    def __init__(
        self,
        client: A2AClient,
        message: A2AMessage,
        send_options: SendOptions,
        request_options: RequestOptions,
        buffer: ReplyBuffer,
        emit: Emit | None,
        push_receiver: PushReceiver | None = None,
    ) -> None:
        self.message = message
        self.buffer = buffer
        self.push_receiver = push_receiver  # None: no push notifications
        self.refuses_push = False
        self.cannot_list_tasks = False
        self._client = client
        self._send_options = send_options
        self._request_options = request_options
        self._poll_options = RequestOptions(
            headers=request_options.headers, timeout=min(_POLL_TIMEOUT, request_options.timeout)
        )
        self._emit = emit  # None: the caller wants no events
        self._can_subscribe = True
        self._first_reply: asyncio.Future[A2AUpdate | None] | None = None
        self._stream: AsyncGenerator[A2AUpdate, None] | None = None

    async def run(self, *, streaming: bool) -> None:
        """Returns when the task has ended or needs input. Raises FabricError."""
        await (self._run_streaming() if streaming else self._run_polling())
        if self.buffer.state == "completed" and not self.buffer.has_answer:
            with suppress(FabricError):  # then the answer is empty
                await self._add_reply(
                    await self._client.get(self.buffer.task_id, self._poll_options, with_history=True)
                )

    async def _run_streaming(self) -> None:
        try:
            self._stream = self._client.stream(self.message, self._send_options, self._request_options)
            await self._read_stream(self._stream, await self._await_first(anext(self._stream, None)))
        except UpstreamInterrupted:
            if not self.buffer.task_id:
                raise
        except (UpstreamRefused, BadInput) as exc:
            if upstream_reason(exc) not in UNSUPPORTED_REASONS or self.buffer.state != "unknown":
                raise
            await self._run_polling()  # the card announced streaming, but the agent does not support it
        if self.buffer.is_done:
            return
        if not self.buffer.task_id:
            raise UpstreamInterrupted("The agent's stream ended before its answer")
        await self._poll_until_done(0.0)

    async def _run_polling(self) -> None:
        self._can_subscribe = False
        try:
            await self._add_reply(await self._send())
            delay = (
                self.push_receiver.silence_timeout
                if self.push_receiver is not None and self.push_receiver.is_registered
                else None
            )
        except UpstreamInterrupted:
            delay = 0.0
            self.buffer.task_id = self.buffer.task_id or await self._find_task_id()
            if not self.buffer.task_id:
                raise
        if not self.buffer.is_done:
            if not self.buffer.task_id:
                raise UpstreamFailed("The agent's task has no id, so it cannot be polled")
            await self._poll_until_done(_FIRST_DELAY if delay is None else delay)

    async def _send(self) -> A2AUpdate:
        """Sends the message, with a push configuration unless the agent refuses that."""
        if self._send_options.blocking:
            return await self._client.send(self.message, self._send_options, self._request_options)
        send_options = self._send_options
        if self.push_receiver is not None:
            send_options = msgspec.structs.replace(send_options, push=self.push_receiver.config)
            self.push_receiver.is_registered = True
        try:
            reply = await self._await_first(self._client.send(self.message, send_options, self._request_options))
        except (UpstreamRefused, UpstreamFailed, BadInput) as exc:
            if self.push_receiver is None or not is_push_refusal(exc):
                raise
            self.push_receiver, self.refuses_push = None, True
            reply = await self._await_first(self._client.send(self.message, self._send_options, self._request_options))
        assert reply is not None  # noqa: S101  # only a stream may end without a reply
        return reply

    async def abandon(self) -> None:
        """Cancels the agent's task. Raises FabricError; the time limit is up to the caller."""
        try:
            if self._first_reply is not None and (reply := await self._first_reply) is not None:
                self.buffer.add(reply)
            task_id = self.buffer.task_id or await self._find_task_id()
            if task_id:
                await self._client.cancel(task_id, self._poll_options)
        finally:
            await self._close_stream()

    async def _close_stream(self) -> None:
        if self._first_reply is not None:
            await cancel_and_wait(self._first_reply)
        if self._stream is not None:
            await self._stream.aclose()

    async def _await_first(self, first: Awaitable[A2AUpdate | None]) -> A2AUpdate | None:
        """The first reply has the task's id, so it is awaited even if the caller leaves: `abandon` needs it."""
        self._first_reply = asyncio.ensure_future(first)
        reply = await asyncio.shield(self._first_reply)
        self._first_reply = None
        return reply

    async def _read_stream(self, stream: AsyncGenerator[A2AUpdate, None], first: A2AUpdate | None) -> None:
        async with aclosing(stream) as events:
            reply = first
            while reply is not None:
                await self._add_reply(reply)
                reply = await anext(events, None) if not self.buffer.is_done else None

    async def _add_reply(self, reply: A2AUpdate) -> None:
        events = self.buffer.add(reply)
        if self._emit is not None:
            for event in events:
                await self._emit(event)

    async def _poll_until_done(self, delay: float) -> None:
        """Polls the task until it has ended, and reads its stream in between if there is one."""
        failures, delays = 0, backoff_delays()
        while True:
            batch = await self._wait_for_push(delay)
            try:
                await self._add_reply(await self._client.get(self.buffer.task_id, self._poll_options))
                if not self.buffer.is_done and self._can_subscribe:
                    await self._subscribe()
                delay, failures = await self._next_delay(batch, delays), 0
            except (UpstreamInterrupted, AgentOffline, AgentBusy, CallTimeout) as exc:
                delay, failures = next(delays), failures + 1
                if failures >= _MAX_FAILURES:
                    raise UpstreamInterrupted(f"The agent was lost in the middle of its task: {exc.message}") from exc
            except (UpstreamRefused, BadInput) as exc:
                raise self._translate_lost_task(exc) from exc
            if self.buffer.is_done:
                if self.push_receiver is not None and self.push_receiver.is_registered:
                    self.push_receiver.are_lost = batch is None
                return

    async def _wait_for_push(self, seconds: float) -> PushBatch | None:
        """The next push that calls for a poll; None if none arrived in time."""
        if self.push_receiver is None or not self.push_receiver.is_registered:
            await asyncio.sleep(seconds)
            return None
        async with aclosing(self.push_receiver.receive(self.buffer.task_id, seconds)) as batches:
            async for batch in batches:
                for update in batch.status_updates:
                    await self._add_reply(update)
                if batch.is_done:
                    return batch
                if batch.should_poll:
                    await asyncio.sleep(_FIRST_DELAY)  # more pushes may follow at once
                    return batch
        return None

    async def _next_delay(self, batch: PushBatch | None, delays: Iterator[float]) -> float:
        """Seconds until the next poll; longer if the agent sends push notifications."""
        if self.buffer.is_done or self.push_receiver is None or self._can_subscribe:
            return next(delays)
        if not self.push_receiver.is_registered:
            return 0.0 if await self._register_push() else next(delays)  # a change just before is not pushed
        is_behind = batch is not None and batch.is_done  # the push came before the task had that state
        return next(delays) if is_behind else self.push_receiver.silence_timeout or next(delays)

    async def _register_push(self) -> bool:
        assert self.push_receiver is not None  # noqa: S101  # checked by the caller
        try:
            config = msgspec.structs.replace(self.push_receiver.config, task_id=self.buffer.task_id)
            await self._client.register_push(config, self._poll_options)
        except (UpstreamRefused, UpstreamFailed, BadInput) as exc:
            self.refuses_push = is_push_refusal(exc) or upstream_reason(exc) in UNSUPPORTED_REASONS
            self.push_receiver = None
            return False
        self.push_receiver.is_registered = True
        return True

    async def _subscribe(self) -> None:
        try:
            stream = self._client.subscribe(self.buffer.task_id, self._request_options)
            await self._read_stream(stream, await anext(stream, None))
        except (UpstreamRefused, UpstreamFailed, BadInput) as exc:
            # The task has ended meanwhile, or the agent cannot subscribe: the next poll will tell.
            self._can_subscribe = upstream_reason(exc) not in UNSUPPORTED_REASONS

    def _translate_lost_task(self, exc: FabricError) -> FabricError:
        if upstream_reason(exc) not in TASK_LOST_REASONS:
            return exc
        return UpstreamInterrupted("The agent no longer knows its task", **exc.details)

    async def _find_task_id(self) -> str:
        """The id of the task that our message started, if its reply was lost; empty if there is none."""
        if self._client.dialect != "1.0":
            return (
                await self.push_receiver.wait_for_task_id()
                if self.push_receiver is not None and self.push_receiver.is_registered
                else ""
            )
        delays = backoff_delays()
        for number in range(_MAX_TASK_SEARCHES):
            if number:
                await asyncio.sleep(4 * next(delays))
            try:
                tasks = await self._client.list_tasks(self.message.context_id, self._poll_options)
            except (UpstreamInterrupted, AgentOffline, AgentBusy):
                continue  # the connection may come back
            except FabricError as exc:
                self.cannot_list_tasks = upstream_reason(exc) in UNSUPPORTED_REASONS
                return ""
            for task in tasks:
                if any(message.id == self.message.id for message in task.history):
                    return task.id
        return ""
