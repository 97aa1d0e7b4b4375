"""The Fabric door as a WebSocket, with a real client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets

from a2a_fabric.agent import Agent
from tests.fixtures.node import PSK, WAIT_TIMEOUT, running
from tests.marks import requirement

agent = Agent("percy")
seen: dict[str, list[str]] = {"cancelled": []}


@agent.capability
async def plan(task: str) -> AsyncIterator[str]:
    for word in task.split():
        yield word


@agent.capability
async def wait(task: str) -> AsyncIterator[str]:
    yield "waiting"
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        seen["cancelled"].append(task)
        raise


@agent.capability
async def chatter(task: str) -> AsyncIterator[str]:
    """Talks in every turn of the loop until it is stopped."""
    try:
        while True:
            yield "word "
            await asyncio.sleep(0)
    finally:
        seen["cancelled"].append(task)


def _ask(request_id: int | str, capability: str, task: str) -> str:
    arguments = {"agent_id": "percy", "capability": capability, "task": task, "stream": True}
    return json.dumps({"id": request_id, "name": "fabric.call", "arguments": arguments})


async def _until_final(socket: Any, request_id: int | str | None) -> list[dict[str, Any]]:
    """The messages of one request, up to its end."""
    found = []
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            message = json.loads(await socket.recv())
            if message["id"] == request_id:
                found.append(message)
                if message["event"] == "final":
                    return found


def _connect(url: str, token: str | None = PSK) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return websockets.connect(url.replace("http", "ws") + "/mcp/call", additional_headers=headers)


@requirement("001-19")
async def test_events_and_the_final_result_arrive_in_order_under_the_requests_id() -> None:
    async with running(agent) as node, _connect(node.url) as socket:
        await socket.send(_ask(7, "plan", "one two three"))
        messages = await _until_final(socket, 7)
    assert [m["event"] for m in messages] == ["status", "token", "token", "token", "final"]
    assert [m["data"]["text"] for m in messages if m["event"] == "token"] == ["one", "two", "three"]
    assert messages[-1]["data"]["ok"] is True
    assert len({m["trace"]["trace_id"] for m in messages}) == 1


async def test_many_requests_share_a_connection_and_one_does_not_wait_for_another() -> None:
    async with running(agent) as node, _connect(node.url) as socket:
        await socket.send(_ask("slow", "wait", "on"))
        await socket.send(_ask("quick", "plan", "done"))
        assert (await _until_final(socket, "quick"))[-1]["data"]["result"] == {"answer": "done"}


async def test_a_cancel_message_ends_that_request_and_the_agents_work() -> None:
    async with running(agent) as node, _connect(node.url) as socket:
        await socket.send(_ask("a", "wait", "cancelled by message"))
        async with asyncio.timeout(WAIT_TIMEOUT):
            while json.loads(await socket.recv())["event"] != "token":
                pass
        await socket.send(json.dumps({"id": "a", "cancel": True}))
        final = (await _until_final(socket, "a"))[-1]
    assert final["data"]["ok"] is False
    assert "cancelled by message" in seen["cancelled"]


async def test_closing_the_connection_cancels_what_runs_on_it() -> None:
    async with running(agent) as node:
        async with _connect(node.url) as socket:
            await socket.send(_ask("a", "wait", "cancelled by closing"))
            async with asyncio.timeout(WAIT_TIMEOUT):
                while json.loads(await socket.recv())["event"] != "token":
                    pass
        async with asyncio.timeout(WAIT_TIMEOUT):
            while "cancelled by closing" not in seen["cancelled"]:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("rubbish", "not a Fabric call"),
        ("[]", "not a Fabric call"),
        ('{"name": 3}', "not a Fabric call"),
        ('{"name": "fabric.call", "arguments": []}', "must be an object"),
        ('{"name": "fabric.nothing"}', "Unknown operation"),
        ("[" * 100_000, "not a Fabric call"),
    ],
)
async def test_a_bad_message_gets_a_typed_error_and_the_connection_goes_on(message: str, says: str) -> None:
    async with running(agent) as node, _connect(node.url) as socket:
        await socket.send(message)
        final = (await _until_final(socket, None))[-1]
        assert final["data"]["error"]["code"] == "BAD_INPUT"
        assert says in final["data"]["error"]["message"]
        await socket.send(_ask(1, "plan", "still here"))
        assert (await _until_final(socket, 1))[-1]["data"]["ok"] is True


async def test_without_the_key_the_handshake_is_refused_with_401() -> None:
    async with running(agent) as node:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with _connect(node.url, token=None):
                pass
    assert refused.value.response.status_code == 401


async def test_an_id_that_is_still_running_cannot_be_used_twice() -> None:
    async with running(agent) as node, _connect(node.url) as socket:
        await socket.send(_ask("a", "wait", "x"))
        await socket.send(_ask("a", "wait", "y"))
        final = (await _until_final(socket, "a"))[-1]
    assert "still running" in final["data"]["error"]["message"]


async def test_a_client_that_hangs_up_in_the_middle_of_an_event_cancels_its_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen["cancelled"].clear()
    async with running(agent) as node:
        async with _connect(node.url) as socket:
            await socket.send(_ask(1, "chatter", "chattering"))
            async with asyncio.timeout(WAIT_TIMEOUT):
                while "word" not in await socket.recv():
                    pass
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not seen["cancelled"]:  # noqa: ASYNC110  # the agent sends no event
                await asyncio.sleep(0.01)
        assert (await node.ask("percy", "plan", "still here"))["ok"] is True
    assert "inside the gateway" not in caplog.text
