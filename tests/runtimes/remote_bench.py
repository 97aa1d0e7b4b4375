"""What tests of runtimes over HTTP need: a client, runtimes that are closed in the end, calls with everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import (
    Call,
    Emit,
    Handler,
    Input,
    Principal,
    ResponseForm,
    Target,
    attachment_from_part,
    ignore_event,
)
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Answer, Answers, Part, Result
from a2a_fabric.core.tasks import enforce_deadline
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes.context import RuntimeContext

AGENT = "tested"
WAIT_TIMEOUT = 30.0

Build = Callable[[Manifest, RuntimeContext], Runtime]


class Remote:
    """A runtime as the node has it: with a deadline around its calls."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._handler: Handler = enforce_deadline(runtime)

    async def ask(self, capability: str, task: str = "", emit: Emit = ignore_event, **more: Any) -> Result:
        return await self.send(call_for(capability, task, **more), emit)

    async def send(self, call: Call, emit: Emit = ignore_event) -> Result:
        async with asyncio.timeout(2 * WAIT_TIMEOUT):
            return await self._handler(call, emit)


class Bench:
    """Builds them; they share a client, as the runtimes of a node do."""

    def __init__(self, stack: AsyncExitStack, build: Build, base: Path, *, reply_bytes: int = 1024 * 1024) -> None:
        http = self._http = OutboundClient()
        stack.push_async_callback(http.aclose)
        self._stack = stack
        self._build = build
        self._context = RuntimeContext(http=http, base=base, reply_bytes=reply_bytes)

    def __call__(self, *capabilities: Capability, **endpoint: Any) -> Remote:
        manifest = Manifest(agent_id=AGENT, endpoint=endpoint, capabilities=capabilities)
        runtime = self._build(manifest, self._context)
        self._stack.push_async_callback(runtime.aclose)
        return Remote(runtime)

    async def until_seen(self, url: str, words: bytes) -> None:
        """Look at a page, bounded, until these words are on it."""
        async with asyncio.timeout(WAIT_TIMEOUT):
            while words not in (await self._http.request("GET", url, timeout=WAIT_TIMEOUT, limit=1024 * 1024)).body:  # noqa: ASYNC110  # pages send no events
                await asyncio.sleep(0.01)


def call_for(
    capability: str,
    task: str = "",
    *,
    parts: tuple[Part, ...] = (),
    conversation: str | None = None,
    who: str = "percy",
    stream: bool = False,
    timeout: float = WAIT_TIMEOUT,
    **context: Any,
) -> Call:
    return Call(
        trace=new_trace(),
        auth=Principal(mode="psk", principal_id=who),
        target=Target(agent_id=AGENT, capability=capability, timeout_ms=int(timeout * 1000)),
        input=Input(task=task, context=context, attachments=tuple(attachment_from_part(part) for part in parts)),
        response=ResponseForm(stream=stream),
        conversation_id=conversation or msgspec.UNSET,
    )


def answering(call: Call, asked: Result, content: Any, **more: Any) -> Call:
    """The same call again, with the answer to what was asked."""
    assert asked.asked is not None, asked
    answers = {key: Answer(content=content, **more) for key in asked.asked.questions}
    return msgspec.structs.replace(
        call, answers=Answers(continuation=asked.asked.continuation, answers=answers), trace=new_trace()
    )
