"""Readers that do not read: they cost next to nothing, and no other client notices them.

Each test opens streams of many megabytes on bare sockets and reads nothing but the first line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from a2a_fabric.agent import Agent
from tests.doors.directory_clients import post, rpc
from tests.doors.rest_bench import UNLIMITED, ended, events, percy, rest, said_to, sent, text, to
from tests.fixtures.agents.rpc import RPCAgent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node
from tests.matrix.agents.listening import listening

READERS = 12
DOORS = [{"kind": "fabric"}, {"kind": "directory"}, UNLIMITED]


def chatter() -> Agent:
    agent = Agent("chatter")

    @agent.capability
    async def talk(words: int) -> AsyncIterator[str]:
        for _ in range(words):
            yield "x" * 4000

    return agent


def memory() -> float:
    """Megabytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@asynccontextmanager
async def not_reading(node: Node, path: str, count: int = READERS) -> AsyncIterator[None]:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PSK}\r\n\r\n".encode()
    async with AsyncExitStack() as stack:
        for _ in range(count):
            reader, _ = await stack.enter_async_context(node.raw(head))
            async with asyncio.timeout(WAIT_TIMEOUT):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        yield


async def test_of_a_task() -> None:
    """Sixteen megabytes each, at every address where a task can be followed."""
    async with rest(chatter(), doors=DOORS) as node:
        body = {"id": "long", "agentId": "chatter", "input": {"words": 4000}}
        task = (await node.send("POST", "/v1/tasks", json=body)).json
        await ended(node, task["id"])
        given = {"taskId": "also-long", "action": "talk", "sender": "me", "input": {"words": 4000}}
        await post(node, "/a2a", rpc("a2a/task", given))
        before = memory()
        async with (
            not_reading(node, "/v1/tasks/long/events"),
            not_reading(node, "/stream?taskId=long", 4),
            not_reading(node, "/a2a/stream?taskId=also-long", 4),
        ):
            async with asyncio.timeout(WAIT_TIMEOUT), events(node, "/v1/tasks/long/events?after=1000") as told:
                assert [(await anext(told))[1] for _ in range(400)] == list(range(1001, 1401))
            assert memory() - before < 100  # of 320, if all of it were kept


async def test_of_a_conversation() -> None:
    """Twenty megabytes each, and what is said meanwhile reaches those who listen."""
    async with rest(percy(), doors=DOORS) as node:
        bob = {"recipient": {"id": "bob", "type": "client"}, "metadata": {"conversation_id": "long"}}
        for _ in range(40):
            await sent(node, {**bob, "parts": [text("x" * 500_000)]})
        before = memory()
        async with not_reading(node, "/v1/conversations/long/events"):
            path = "/v1/conversations/long/events?after=40"
            async with asyncio.timeout(WAIT_TIMEOUT), events(node, path) as told:
                message = await sent(node, to("percy", text("hi"), metadata={"conversation_id": "long"}))
                assert (await said_to(node, message))["parts"] == [text("HI")]
                heard = [(await anext(told))[2]["parts"] for _ in range(2)]
            assert heard == [[text("hi")], [text("HI")]]
            assert memory() - before < 100  # of 240


def entry(url: str, number: int) -> dict[str, Any]:
    names = [f"{each}-{'x' * 200}" for each in range(400)]
    return {"agentId": "often", "name": f"Number {number}", "capabilities": names, "endpoint": url}


async def test_of_the_directory() -> None:
    """An agent that registers again and again, with thirteen megabytes to tell each: none is kept for slow readers."""
    async with listening(RPCAgent()) as url, rest(doors=DOORS) as node:
        before = memory()
        async with not_reading(node, "/a2a/events?types=agent"):
            for number in range(160):
                _, reply = await post(node, "/a2a", rpc("a2a/register", entry(url, number)))
                assert reply["result"]["status"] == "registered"
            async with asyncio.timeout(WAIT_TIMEOUT), events(node, "/a2a/events?types=agent.unregistered") as told:
                await anext(told)
                await post(node, "/a2a", rpc("a2a/unregister", {"agentId": "often"}))
                assert (await anext(told))[0] == "agent.unregistered"
            assert memory() - before < 80  # of 156


async def test_a_list_of_what_is_large_comes_in_several_pages() -> None:
    """However many are asked for at once."""
    async with rest(percy(), doors=DOORS) as node:
        bob = {"recipient": {"id": "bob", "type": "client"}, "metadata": {"conversation_id": "long"}}
        for _ in range(24):
            await sent(node, {**bob, "parts": [text("x" * 1_000_000)]})
        for _ in range(12):
            body = {"agentId": "percy", "input": {"text": "x" * 1_000_000}}
            await ended(node, (await node.send("POST", "/v1/tasks", json=body)).json["id"])
        for path, key, count in (("/v1/conversations/long/messages?limit=1000", "messages", 24),
                                 ("/v1/tasks?limit=100", "tasks", 12)):  # fmt: skip
            seen: list[str] = []
            cursor = ""
            while True:
                reply = await node.send("GET", path + cursor)
                assert len(reply.body) < 24_000_000
                seen += [each["id"] for each in reply.json[key]]
                if reply.json["nextCursor"] is None:
                    break
                cursor = f"&cursor={reply.json['nextCursor']}"
            assert cursor
            assert len(seen) == len(set(seen)) == count
