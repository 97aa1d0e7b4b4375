"""Streams of the handshake era that break at `/mcp`, and are resumed with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from mcp_types import JSONRPCNotification, JSONRPCResponse

from a2a_fabric.agent import Agent
from a2a_fabric.doors.mcp import event_log
from a2a_fabric.doors.mcp.event_log import SessionEventLog
from tests.fixtures.mcp_raw import Session
from tests.fixtures.node import WAIT_TIMEOUT, Node, running

BEE = "the-key-of-the-bee-12345"
CALL = {"name": "slow_count", "arguments": {"to": 3}, "_meta": {"progressToken": 7}}
COUNTING = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": CALL}


class Slow:
    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    def agent(self) -> Agent:
        agent = Agent("slow")

        @agent.capability()
        async def count(to: int) -> AsyncIterator[str | dict[str, Any]]:
            yield "one"
            await self.may_go_on.wait()
            yield "two"
            yield {"counted": to}

        return agent


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@pytest.fixture
async def node(slow: Slow) -> AsyncIterator[Node]:
    async with running(slow.agent(), config={"auth": {"keys": [{"id": "bee", "key": BEE}]}}) as node:
        yield node


async def break_after_first_message(session: Session) -> str:
    """The id of the last event that was read before the connection broke."""
    event_id = ""
    async with session.post(COUNTING) as response:
        async for line in response.content:
            if line.startswith(b"id:"):
                event_id = line.decode().removeprefix("id:").strip()
            if b'"one"' in line:
                break
        response.close()
    return event_id


def resume(node: Node, session: Session, event_id: str) -> Any:
    headers = {**session.headers, "Last-Event-ID": event_id}
    return node.client.get(f"{node.url}/mcp", headers=headers, timeout=aiohttp.ClientTimeout(total=WAIT_TIMEOUT))


async def read_until_answer(response: Any) -> list[Any]:
    messages: list[Any] = []
    async for line in response.content:
        if line.startswith(b"data:") and line.strip() != b"data:":
            messages.append(json.loads(line[5:]))
            if "result" in messages[-1]:
                break
    return messages


async def test_the_reply_to_a_call_whose_stream_broke_is_fetched_by_resuming(node: Node, slow: Slow) -> None:
    async with Session(node) as session:
        event_id = await break_after_first_message(session)
        async with resume(node, session, event_id) as response:
            assert response.status == 200
            slow.may_go_on.set()
            messages = await read_until_answer(response)
        assert messages[-1]["id"] == 5
        assert "counted" in json.dumps(messages[-1]["result"]["structuredContent"])
        assert "one" not in json.dumps(messages[:-1])  # it was heard before


async def test_a_call_that_ended_without_a_listener_is_replayed_and_the_stream_ends(node: Node, slow: Slow) -> None:
    async with Session(node) as session:
        event_id = await break_after_first_message(session)
        slow.may_go_on.set()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while True:
                async with resume(node, session, event_id) as response:
                    messages = await read_until_answer(response)
                    if messages and "result" in messages[-1]:
                        await response.content.read()  # it has an end
                        return


@pytest.mark.parametrize("event_id", ["1", "nonsense", "x" * 500, "../../etc"])
async def test_an_event_id_that_is_unknown_is_an_empty_stream_and_never_500(node: Node, event_id: str) -> None:
    async with Session(node) as session, resume(node, session, event_id) as response:
        assert response.status == 200
        assert not await read_until_answer(response)


async def test_no_client_resumes_the_stream_of_another_session(node: Node, slow: Slow) -> None:
    async with Session(node) as session, Session(node, token=BEE) as other:
        event_id = await break_after_first_message(session)
        slow.may_go_on.set()
        async with resume(node, other, event_id) as response:
            assert not await read_until_answer(response)
        stolen = {**other.headers, "Mcp-Session-Id": session.headers["Mcp-Session-Id"], "Last-Event-ID": event_id}
        async with node.client.get(f"{node.url}/mcp", headers=stolen) as response:
            assert response.status == 404


async def test_a_log_is_bounded_in_events_and_bytes_alone_and_together() -> None:
    total = [0]
    log, other = SessionEventLog(total), SessionEventLog(total)
    note = JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "y" * 100_000})
    for _ in range(1000):
        await log.store_event("1", note)
    assert 0 < total[0] <= event_log.MAX_SESSION_BYTES
    for _ in range(10_000):
        await other.store_event("1", None)
    assert len(other._events) == event_log.MAX_EVENTS
    first = await other.store_event("2", None)
    await other.store_event("2", JSONRPCResponse(jsonrpc="2.0", id=2, result={}))
    heard: list[Any] = []

    async def hear(event: Any) -> None:
        heard.append(event.message)

    assert await other.replay_events_after(first, hear) is None
    assert [message.result for message in heard] == [{}]
    del log, other
    assert total == [0]
