"""Push notifications: the address that an A2A agent sends them to, and the receiver that waits for them.

A push only triggers a poll or reports progress; the answer is always fetched from the agent itself. So a
push that is lost, late, repeated or forged changes no result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from a2a_fabric.core.callbacks import Callback
from a2a_fabric.core.errors import FabricError
from a2a_fabric.protocols.a2a.parts import Dialect
from a2a_fabric.protocols.a2a.replies import (
    FINAL_STATES,
    INTERRUPTED_STATES,
    A2AArtifactUpdate,
    A2AReply,
    A2AStatusUpdate,
    A2AWireState,
)
from a2a_fabric.runtimes.a2a.errors import PUSH_NOT_SUPPORTED, upstream_reason
from a2a_fabric.runtimes.a2a.reply_decoding import parse_push

_CONFIG_ID = "a2a-fabric"  # the same for all messages to a task, so that the newest address takes the place of the last
_TASK_ID_TIMEOUT = 5.0  # seconds, for the name of a task of which we know nothing else
_RUNNING_STATES: frozenset[A2AWireState] = frozenset({"submitted", "working"})


class PushTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agent should send its news. Some agents show the token by one header, some by the other."""

    url: str
    token: str

    def render(self, dialect: Dialect) -> dict[str, Any]:
        schemes = {"scheme": "Bearer"} if dialect == "1.0" else {"schemes": ["Bearer"]}
        return {
            "id": _CONFIG_ID,
            "url": self.url,
            "token": self.token,
            "authentication": {**schemes, "credentials": self.token},
        }


def render_push_request(target: PushTarget, task_id: str, dialect: Dialect) -> dict[str, Any]:
    """What asks for it afterwards, as the protos have it."""
    config = target.render(dialect)
    if dialect == "1.0":
        return {"taskId": task_id, **config}
    parent = f"tasks/{task_id}"
    name = f"{parent}/pushNotificationConfigs/{_CONFIG_ID}"
    return {"parent": parent, "configId": _CONFIG_ID, "config": {"name": name, "pushNotificationConfig": config}}


class PushBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What came at once: words on the way, whether there is something to see, whether the task has ended or asks."""

    status_updates: list[A2AStatusUpdate]
    should_poll: bool
    is_done: bool


class PushReceiver:
    """Of one call. `patience` is how long an agent that is silent is left alone; None: not at all."""

    def __init__(self, callback: Callback, silence_timeout: float | None, *, emits_events: bool) -> None:
        self.target = PushTarget(url=callback.url, token=callback.token)
        self.silence_timeout = silence_timeout
        self.is_registered = False  # whether the agent knows of the place
        self.are_lost: bool | None = None  # whether the task ended without a word, once we know
        self._callback = callback
        self._emits_events = emits_events  # whether anybody listens on the way

    async def receive(self, task_id: str, timeout: float) -> AsyncGenerator[PushBatch, None]:
        """Of this task, as they come, for so many seconds."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout
        while (remaining := ends_at - loop.time()) > 0:
            parsed = [parse_push(body) for body in await self._callback.receive(remaining)]
            replies = [reply for reply in parsed if _may_concern(reply, task_id)]
            if replies:
                yield PushBatch(
                    status_updates=[
                        reply
                        for reply in replies
                        if isinstance(reply, A2AStatusUpdate) and reply.state in _RUNNING_STATES
                    ],
                    should_poll=any(self._should_poll(reply) for reply in replies),
                    is_done=any(
                        getattr(reply, "state", None) in FINAL_STATES | INTERRUPTED_STATES for reply in replies
                    ),
                )

    async def wait_for_task_id(self) -> str:
        """Of the first push, if it comes soon."""
        for body in await self._callback.receive(_TASK_ID_TIMEOUT):
            reply = parse_push(body)
            if reply is not None and (name := getattr(reply, "task_id", "")):
                return str(name)
        return ""

    def _should_poll(self, reply: A2AReply | None) -> bool:
        if isinstance(reply, A2AStatusUpdate):
            return reply.state not in _RUNNING_STATES
        return self._emits_events or not isinstance(
            reply, A2AArtifactUpdate
        )  # a piece of the answer interests only who listens


def _may_concern(reply: A2AReply | None, task_id: str) -> bool:
    """What cannot be understood may well be; what names another task is not."""
    return getattr(reply, "task_id", "") in ("", task_id)


def is_push_refusal(exc: FabricError) -> bool:
    """Whether a message was refused only because of the address that came with it."""
    return upstream_reason(exc) == PUSH_NOT_SUPPORTED or "push notification" in exc.message.lower()
