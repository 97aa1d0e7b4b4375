"""Callers whose listener breaks in the middle of a call: the fault is theirs alone, and the agent is told to stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Event
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.runtimes import rest, rpc
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http import runtime
from tests.fixtures.agents.a2a_serving import serving
from tests.fixtures.agents.calling import call_of, until
from tests.fixtures.agents.rest import RestPlatform
from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.apis.later import Later
from tests.matrix.agents.listening import listening
from tests.runtimes.a2a_bench import LINES, Bench

WAIT_TIMEOUT = 30.0
BREAKS: list[Exception] = [OSError("the pipe is broken"), StoreError("the log is full"), ValueError("no such thing")]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as found:
        yield found


def breaking(why: Exception, when: Callable[[], bool] = lambda: True) -> Emit:
    """An emitter that fails with the first event, as soon as the agent is at work."""

    async def emit(event: Event) -> None:
        await until(when, WAIT_TIMEOUT)
        raise why

    return emit


def context_of(stack: AsyncExitStack) -> RuntimeContext:
    http = OutboundClient()
    stack.push_async_callback(http.aclose)
    return RuntimeContext(http=http, base=Path())


def counting(url: str, **endpoint: Any) -> Manifest:
    capability = Capability(name="count", streaming=True)
    return Manifest(agent_id="tested", endpoint={"uri": url, **endpoint}, capabilities=(capability,))


@pytest.mark.parametrize("why", BREAKS, ids=lambda why: type(why).__name__)
async def test_an_a2a_agent_is_told(stack: AsyncExitStack, tmp_path: Path, why: Exception) -> None:
    served = await stack.enter_async_context(serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3")))
    for line in LINES:
        note, agent = tmp_path / line, Bench(stack).on(line, served.url)
        with pytest.raises(type(why)) as raised:
            await agent(call_of("sleep", note=str(note), stream=True), breaking(why, note.exists))
        assert raised.value is why
        await until(lambda note=note: note.read_text() == "cancelled", WAIT_TIMEOUT)  # type: ignore[misc]  # bound at once


async def broken_off(agent: Runtime, why: Exception, stack: AsyncExitStack, tmp_path: Path) -> None:
    """The listener breaks off with this error, and the call ends with the very same."""
    stack.push_async_callback(agent.aclose)
    go_on = tmp_path / "go_on"
    stack.callback(go_on.touch)
    with pytest.raises(type(why)) as raised:
        await agent(call_of("count", words=["one"], go_on=str(go_on), stream=True), breaking(why))
    assert raised.value is why


@pytest.mark.parametrize("why", BREAKS, ids=lambda why: type(why).__name__)
async def test_an_rpc_agent_is_told(stack: AsyncExitStack, tmp_path: Path, why: Exception) -> None:
    peer = RPCAgent()
    url = await stack.enter_async_context(listening(peer))
    agent = rpc.build(counting(url), context_of(stack))
    await broken_off(agent, why, stack, tmp_path)
    await until(lambda: [each["method"] for each in peer.requests] == ["a2a/stream", "a2a/cancel"], WAIT_TIMEOUT)


@pytest.mark.parametrize("why", BREAKS, ids=lambda why: type(why).__name__)
async def test_a_rest_agent_is_told(stack: AsyncExitStack, tmp_path: Path, why: Exception) -> None:
    platform = RestPlatform()
    url = await stack.enter_async_context(listening(platform))
    agent = rest.build(counting(f"{url}/v1/agents/worker"), context_of(stack))
    await broken_off(agent, why, stack, tmp_path)
    await until(platform.deleted.is_set, WAIT_TIMEOUT)


@pytest.mark.parametrize("why", BREAKS, ids=lambda why: type(why).__name__)
async def test_an_api_that_answers_later_is_told(stack: AsyncExitStack, why: Exception) -> None:
    later = Later()
    url = await stack.enter_async_context(listening(later.app))
    poll = {"until": "state == 'succeeded'", "location": "links.self", "progress": "/percent", "cancel": "DELETE"}
    agent = runtime.build(counting(f"{url}/start/state", poll={**poll, "every_ms": 10}), context_of(stack))
    stack.push_async_callback(agent.aclose)
    with pytest.raises(type(why)) as raised:
        await agent(call_of("count", stream=True), breaking(why))
    assert raised.value is why
    await until(lambda: later.cancelled == ["DELETE /jobs/state"], WAIT_TIMEOUT)


class Endless:
    """An agent of our own that would never stop by itself, in every colour."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.agent = Agent("endless")
        for function in (self.waiting, self.hasty, self.plain, self.telling):
            self.agent.capability(function)

    async def waiting(self) -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "and "
                await asyncio.sleep(0.001)
        finally:
            self.ended.append("waiting")

    async def hasty(self) -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "and "
        finally:
            self.ended.append("hasty")

    def plain(self) -> Iterator[str]:
        try:
            while True:
                yield "and "
                time.sleep(0.001)
        finally:
            self.ended.append("plain")

    async def telling(self, emit: Any) -> str:
        try:
            while True:
                await emit("and ")
        finally:
            self.ended.append("telling")


NAMES = ["waiting", "hasty", "plain", "telling"]


@pytest.mark.parametrize("why", BREAKS, ids=lambda why: type(why).__name__)
@pytest.mark.parametrize("name", NAMES)
async def test_python_code_is_closed_at_once_and_not_blamed(name: str, why: Exception) -> None:
    endless = Endless()
    with pytest.raises(type(why)) as raised:
        await endless.agent(call_of(name, stream=True), breaking(why))
    assert raised.value is why
    assert endless.ended == [name]


@pytest.mark.parametrize("name", NAMES)
async def test_code_that_never_waits_still_learns_that_its_caller_has_left(stack: AsyncExitStack, name: str) -> None:
    endless = Endless()

    async def emit(event: Event) -> None:
        """Takes everything at once."""

    asking = asyncio.create_task(endless.agent(call_of(name, stream=True), emit))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert endless.ended in ([name], [])  # cancelled before it began


async def test_code_that_is_left_in_the_midst_of_a_step_is_closed_after_it() -> None:
    agent, inside, go_on, ended = Agent("slow"), threading.Event(), threading.Event(), threading.Event()

    @agent.capability
    def step() -> Iterator[str]:
        try:
            inside.set()
            go_on.wait(WAIT_TIMEOUT)
            yield "one"
        finally:
            ended.set()

    asking = asyncio.create_task(agent(call_of("step", stream=True), breaking(ValueError())))
    await until(inside.is_set, WAIT_TIMEOUT)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError) as left:
        await asking
    assert not ended.is_set()
    go_on.set()
    await until(ended.is_set, WAIT_TIMEOUT)
    assert left.tb is not None  # it still holds on to all that was under way


@pytest.mark.parametrize("name", NAMES)
async def test_a_served_agent_is_closed_when_the_connection_is(stack: AsyncExitStack, name: str) -> None:
    endless = Endless()
    url = await stack.enter_async_context(listening(endless.agent.app))
    client = await stack.enter_async_context(aiohttp.ClientSession())
    call = {"name": name, "arguments": {}}
    async with client.post(url, json=call, headers={"accept": "text/event-stream"}) as reply:
        assert await reply.content.readline()
        reply.close()
    await until(lambda: endless.ended == [name], WAIT_TIMEOUT)
