"""Readers of A2A streams that do not read: they cost next to nothing, and no other client notices them.

As in `test_slow_readers`, on bare sockets of which nothing but the first line is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Emit
from a2a_fabric.core.job import JobFilter
from a2a_fabric.core.result import token
from tests.doors.a2a_clients import frames, message, rpc
from tests.doors.test_slow_readers import memory
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running

PLACE = "/agents/chatter"
WORD = "x" * 4000


class Chatter:
    """Says so many long words; `talk` then waits until it may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    def agent(self) -> Agent:
        agent = Agent("chatter")

        @agent.capability
        async def talk(words: int) -> AsyncIterator[str]:
            for _ in range(words):
                yield WORD
            await self.may_end.wait()

        @agent.capability
        async def mutter(words: int, emit: Emit) -> str:
            """The answer is short, whatever was said on the way."""
            for _ in range(words):
                await emit(token(WORD))
            return "done"

        return agent


@asynccontextmanager
async def chatting(folder: Path) -> AsyncIterator[tuple[Node, Chatter]]:
    chatter = Chatter()
    config = {"doors": [{"kind": "a2a"}], "store": f"sqlite:{folder / 'fabric.db'}"}
    async with running(chatter.agent(), config=config) as node:
        try:
            yield node, chatter
        finally:
            chatter.may_end.set()


def asking(words: int, skill: str) -> dict[str, Any]:
    return {"message": message({"data": {"words": words}}, skill=skill)}


def posting(path: str, body: Any, *more: str) -> bytes:
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {PSK}", "A2A-Version: 1.0"]
    head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*head, *more, "", ""]).encode() + data


def over_rpc(method: str, params: Any) -> bytes:
    return posting(PLACE, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


@asynccontextmanager
async def not_reading(node: Node, *requests: bytes) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for each in requests:
            reader, _ = await stack.enter_async_context(node.raw(each))
            async with asyncio.timeout(WAIT_TIMEOUT):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        yield


async def said(node: Node, task_id: str, words: int) -> None:
    """Once all its words are in the log."""

    async def is_so() -> bool:
        job = await node.fabric.store.jobs.get(task_id)
        return job is not None and job.events > words

    await eventually(is_so)


async def all_done(node: Node, count: int) -> None:
    request = JobFilter(agent_id="chatter", states=("completed",))

    async def are_so() -> bool:
        return len((await node.fabric.store.jobs.list(request)).jobs) == count

    await eventually(are_so)


@asynccontextmanager
async def reading(node: Node, request: bytes) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """The words of the answer, as a client puts them together that reads to the end."""
    async with node.raw(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)) as (reader, _):
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert b"200" in await reader.readuntil(b"\r\n\r\n")

        async def words() -> str:
            async with asyncio.timeout(WAIT_TIMEOUT):
                return put_together(frames(_dechunked(await reader.read())))

        yield words


def put_together(told: list[tuple[int | None, dict[str, Any]]]) -> str:
    words: list[str] = []
    events = [each.get("result", each) for _, each in told]
    for event in events:
        for artifact in event.get("task", {}).get("artifacts", []):
            words = [part["text"] for part in artifact["parts"]]
        if "artifactUpdate" in event:
            update = event["artifactUpdate"]
            words = [*(words if update.get("append") else []), *(part["text"] for part in update["artifact"]["parts"])]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    return "".join(words)


def _dechunked(body: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


async def test_of_a_message(tmp_path: Path) -> None:
    """Twelve megabytes for each of ten, which none of them takes; others are answered meanwhile."""
    async with chatting(tmp_path) as (node, _):
        before = memory()
        requests = [over_rpc("SendStreamingMessage", asking(3000, "mutter")) for _ in range(5)]
        requests += [posting(f"{PLACE}/message:stream", asking(3000, "mutter")) for _ in range(5)]
        async with not_reading(node, *requests):
            await all_done(node, 10)
            assert memory() - before < 110  # half of it is for the tasks themselves, with or without readers
            async with reading(node, over_rpc("SendStreamingMessage", asking(3, "mutter"))) as words:
                assert await words() == "done"


async def test_of_a_task(tmp_path: Path) -> None:
    """Sixteen megabytes that were said already, to a dozen who follow it; those who read get all of them.

    So it is with a dozen who come back after its end.
    """
    async with chatting(tmp_path) as (node, chatter):
        params = {**asking(4000, "talk"), "configuration": {"returnImmediately": True}}
        task = (await rpc(node, "SendMessage", params, agent="chatter"))["result"]["task"]
        await said(node, task["id"], 4000)
        before = memory()
        ways = [over_rpc("SubscribeToTask", {"id": task["id"]}), posting(f"{PLACE}/tasks/{task['id']}:subscribe", {})]
        async with not_reading(node, *ways * 6):
            assert memory() - before < 50
            async with reading(node, ways[0]) as one, reading(node, ways[1]) as other:
                chatter.may_end.set()
                assert await one() == await other() == WORD * 4000
        back = f"Last-Event-ID: {4000 - 100}"
        way = posting(f"{PLACE}/tasks/{task['id']}:subscribe", {}, back)
        before = memory()
        async with not_reading(node, *[way] * 12), reading(node, way) as words:
            assert 99 <= len(await words()) / len(WORD) <= 110
            assert memory() - before < 50


@pytest.mark.parametrize("has", [2, 4, 7])
async def test_a_client_that_comes_back_after_the_end_gets_the_rest_and_nothing_twice(tmp_path: Path, has: int) -> None:
    async with chatting(tmp_path) as (node, chatter):
        chatter.may_end.set()
        task = (await rpc(node, "SendMessage", asking(5, "talk"), agent="chatter"))["result"]["task"]
        way = posting(f"{PLACE}/tasks/{task['id']}:subscribe", {}, f"Last-Event-ID: {has}")
        async with reading(node, way) as words:
            assert await words() == WORD * 5
