"""What the tests of the A2A runtime share: a place to build runtimes, and a wire that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.result import Answer, Answers, Result
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.runtimes.a2a import build
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from a2a_fabric.runtimes.context import RuntimeContext

LINES = [f"{binding}-{version}" for version in ("1.0", "0.3") for binding in ("jsonrpc", "http", "grpc")]
NEW_LINES = LINES[:3]
NAMES = {"jsonrpc": "JSONRPC", "http": "HTTP+JSON", "grpc": "GRPC"}


class Bench:
    """Builds runtimes, and closes them."""

    def __init__(
        self,
        stack: AsyncExitStack,
        *,
        guard: Guard | None = None,
        reply_bytes: int = 1_000_000,
        callbacks: Callbacks | None = None,
    ) -> None:
        self._stack = stack
        http = OutboundClient(guard) if guard is not None else OutboundClient()
        stack.push_async_callback(http.aclose)
        callbacks = callbacks or Callbacks()
        self.context = RuntimeContext(
            http=http, base=Path(), guard=guard, reply_bytes=reply_bytes, callbacks=callbacks
        )  # fmt: skip

    def runtime(self, *capabilities: Capability, **endpoint: Any) -> A2ARuntime:
        runtime = build(Manifest(agent_id="tested", endpoint=endpoint, capabilities=capabilities), self.context)
        self._stack.push_async_callback(runtime.aclose)
        return runtime

    def on(self, line: str, url: str, **endpoint: Any) -> A2ARuntime:
        """Speaks to the agent there in this way and no other."""
        binding, _, version = line.partition("-")
        return self.runtime(uri=url, binding=binding, version=version, **endpoint)


def our_tasks() -> list[str]:
    """Tasks of the runtime and its client; the agents of these tests live in the same loop and have their own."""
    shown = (repr(task) for task in asyncio.all_tasks())
    return [task for task in shown if "/a2a_fabric/" in task or "_wrap_awaitable" in task]


def card_at(url: str, line: str, *, streaming: bool = True, **more: Any) -> dict[str, Any]:
    """A card to be registered."""
    binding, _, version = line.partition("-")
    interface = {"url": url, "protocolBinding": NAMES[binding], "protocolVersion": version}
    card = {"name": "Registered", "capabilities": {"streaming": streaming}, "supportedInterfaces": [interface]}
    return {**card, "skills": [{"id": "act", "name": "Act"}], **more}


def answering(call: Call, result: Result, answer: Answer) -> Call:
    assert result.asked is not None, result
    key = next(iter(result.asked.questions))
    return replace(call, answers=Answers(continuation=result.asked.continuation, answers={key: answer}))


class Wire:
    """Passes everything on to another port of this machine, until it is cut."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.is_mute = False  # then nothing comes back
        self.cuts = 0  # that many connections break as soon as something is said on them
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """All connections break; new ones can be made."""
        for writer in self._open:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cuts:
            self.cuts -= 1
            await reader.read(1)
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, back}
        for passing in (_passed(reader, back), _passed(there, writer, lambda: self.is_mute)):
            task = asyncio.create_task(passing)
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def aclose(self) -> None:
        self.cut()
        await asyncio.gather(*self._passing)


async def _passed(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_mute: Callable[[], bool] = lambda: False
) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65536):
            if not is_mute():
                sink.write(data)
                await sink.drain()
    sink.close()


@asynccontextmanager
async def wired_to(port: int) -> AsyncIterator[Wire]:
    wire = Wire(port)
    server = await asyncio.start_server(wire.connected, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        await wire.aclose()
        await server.wait_closed()
