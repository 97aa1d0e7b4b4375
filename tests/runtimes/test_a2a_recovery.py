"""Wires that are cut in the middle of a task: as long as the agent lives, its answer still arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.call import ignore_event
from a2a_fabric.core.errors import UpstreamInterrupted
from tests.fixtures.agents.a2a_serving import Served, serving
from tests.fixtures.agents.calling import Heard, call_of, until
from tests.runtimes.a2a_bench import LINES, NEW_LINES, Bench, card_at, wired_to

WAIT_TIMEOUT = 30.0
PATHS = {"jsonrpc": "/rpc", "http": "/rest", "grpc": ""}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3")) as found:
        yield found


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with asyncio.timeout(2 * WAIT_TIMEOUT), AsyncExitStack() as found:
        yield found


async def through_a_wire(stack: AsyncExitStack, served: Served, line: str, **more: Any) -> tuple[Any, Any]:
    binding = line.partition("-")[0]
    place = served.grpc if binding == "grpc" else served.url
    wire = await stack.enter_async_context(wired_to(int(place.rpartition(":")[2])))
    scheme = "grpc" if binding == "grpc" else "http"
    card = card_at(f"{scheme}://127.0.0.1:{wire.port}{PATHS[binding]}", line, **more)
    return wire, Bench(stack).runtime(card=card)


@pytest.mark.parametrize("line", LINES)
async def test_a_broken_stream_is_taken_up_again(
    stack: AsyncExitStack, served: Served, line: str, tmp_path: Path
) -> None:
    wire, agent = await through_a_wire(stack, served, line)
    heard, go_on = Heard(), tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on), stream=True), heard))
    await until(lambda: "token" in heard.kinds, WAIT_TIMEOUT)
    wire.cut()
    if "http" in line or "jsonrpc" in line:
        asked = len(served.requests)
        await until(lambda: len(served.requests) >= asked + 2, WAIT_TIMEOUT)  # how it stands, and for more
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}
    assert "".join(event.data["text"] for event in heard.events if event.kind == "token") == "half and half"


@pytest.mark.parametrize("line", NEW_LINES)
async def test_a_lost_reply_is_found_again_by_its_message(
    stack: AsyncExitStack, served: Served, line: str, tmp_path: Path
) -> None:
    wire, agent = await through_a_wire(stack, served, line)
    go_on = tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on)), ignore_event))
    await until(lambda: bool(served.executor.sent), WAIT_TIMEOUT)
    wire.cut()
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}
    assert len(served.executor.sent) == 1


@pytest.mark.parametrize("line", NEW_LINES)
async def test_a_lost_reply_is_searched_for_again_if_the_search_is_lost_too(
    stack: AsyncExitStack, served: Served, line: str, tmp_path: Path
) -> None:
    wire, agent = await through_a_wire(stack, served, line)
    go_on = tmp_path / "go_on"
    asking = asyncio.create_task(agent(call_of("wait", go_on=str(go_on)), ignore_event))
    await until(lambda: bool(served.executor.sent), WAIT_TIMEOUT)
    wire.cuts = 1
    wire.cut()
    go_on.touch()
    assert (await asking).data == {"answer": "half and half"}
    assert wire.cuts == 0
    assert len(served.executor.sent) == 1


@pytest.mark.parametrize("line", LINES)
async def test_an_agent_that_dies_in_the_middle_was_interrupted(
    stack: AsyncExitStack, line: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as life:
        served = await life.enter_async_context(serving("jsonrpc", "http", "grpc", versions=("1.0", "0.3")))
        agent, heard = Bench(stack).on(line, served.url), Heard()
        asking = asyncio.create_task(agent(call_of("wait", go_on=str(tmp_path / "never"), stream=True), heard))
        await until(lambda: "token" in heard.kinds, WAIT_TIMEOUT)
    with pytest.raises(UpstreamInterrupted, match=r"middle of its task|no longer knows"):
        await asking
