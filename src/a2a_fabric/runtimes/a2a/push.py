"""Push notifications: the address that an A2A agent sends them to, and the receiver that waits for them.

A push only triggers a poll or reports progress; the answer is always fetched from the agent itself. So a
push that is lost, late, repeated or forged changes no result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from a2a_fabric.core.callbacks import Callback
from a2a_fabric.core.errors import FabricError
from a2a_fabric.protocols.a2a.decode import parse_push
from a2a_fabric.protocols.a2a.errors import PUSH_NOT_SUPPORTED, upstream_reason
from a2a_fabric.protocols.a2a.models import A2APushConfig, A2ATask, A2AUpdate, TaskArtifactUpdate, TaskStatusUpdate
from a2a_fabric.protocols.a2a.states import FINAL_TASK_STATES, INTERRUPTED_TASK_STATES, RUNNING_TASK_STATES

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
