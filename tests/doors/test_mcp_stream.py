"""Events while a tool runs, as progress and log messages; a client that cancels or leaves ends the agent's work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Event, progress, token
from a2a_fabric.doors.mcp.results import McpEventWriter
from tests.fixtures.mcp_client import MODES, client, socket_client
from tests.fixtures.mcp_raw import Session, modern
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

Connect = Callable[..., AbstractAsyncContextManager[Client]]

ways = pytest.mark.parametrize("connect", [client, socket_client])
eras = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
async def percy() -> Percy:
    return Percy()


@pytest.fixture
async def node(percy: Percy) -> AsyncIterator[Node]:
    async with running(percy.agent) as found:
        yield found


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT):
        await event.wait()


@requirement("001-23", "001-52")
@ways
@eras
async def test_events_arrive_in_order_as_progress(node: Node, connect: Connect, mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    sentence = "one two three four five six seven eight nine ten"
    async with connect(node, mode) as connected:
        result = await connected.call_tool("percy_plan", {"task": sentence}, progress_callback=listen)
    assert result.structured_content["answer"] == sentence.upper()
    messages = [message for _, _, message in heard]
    assert messages == ["running", *sentence.split(), "calls math.calculate", "half way"]
    steps = [done for done, _, _ in heard]
    assert steps == sorted(set(steps)), "progress must rise"
    assert heard[-1][:2] == (50.0, 100.0)


@requirement("001-23")
@ways
@eras
async def test_who_asks_for_logs_gets_the_events_as_log_messages(node: Node, connect: Connect, mode: str) -> None:
    heard: list[types.LoggingMessageNotificationParams] = []

    async def listen(params: types.LoggingMessageNotificationParams) -> None:
        heard.append(params)

    async with connect(node, mode, logging_callback=listen, log_level="info") as connected:
        if mode == "legacy":
            await connected.session.send_request(
                types.SetLevelRequest(params=types.SetLevelRequestParams(level="info")), types.EmptyResult
            )
        result = await connected.call_tool("percy_plan", {"task": "a b"})
    assert [note.data["event"] for note in heard] == ["status", "token", "token", "tool_call", "progress"]
    assert [note.data["data"].get("text") for note in heard[1:3]] == ["a", "b"]
    trace_id = (result.meta or {})["a2a-fabric/trace"]["trace_id"]
    assert {note.data["trace"]["trace_id"] for note in heard} == {trace_id}
    assert {(note.level, note.logger) for note in heard} == {("info", "a2a-fabric")}


@eras
@pytest.mark.parametrize("level", [None, "warning"])
async def test_who_asks_for_nothing_hears_nothing(node: Node, percy: Percy, mode: str, level: Any) -> None:
    heard: list[Any] = []

    async def listen(params: types.LoggingMessageNotificationParams) -> None:
        heard.append(params)

    async with client(node, mode, logging_callback=listen, log_level=level) as connected:
        if mode == "legacy" and level:
            await connected.session.send_request(
                types.SetLevelRequest(params=types.SetLevelRequestParams(level=level)), types.EmptyResult
            )
        await connected.call_tool("percy_plan", {"task": "a b"})
        await connected.call_tool("percy_reason", {"task": "a b"})
    assert heard == []
    assert percy.calls[0].response.stream is False


@requirement("001-23")
async def test_the_first_words_come_before_the_answer_exists(node: Node, percy: Percy) -> None:
    first = asyncio.Event()

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        if message == "waiting":
            first.set()

    async with client(node) as connected:
        calling = asyncio.ensure_future(
            connected.call_tool("percy_wait_and_talk", {"task": "x"}, progress_callback=listen)
        )
        await soon(first)
        assert not calling.done()
        calling.cancel()
        await soon(percy.cancelled)
        await asyncio.gather(calling, return_exceptions=True)


@ways
@eras
@pytest.mark.parametrize("capability", ["wait", "wait_and_talk"])
async def test_cancelling_reaches_the_agent(
    node: Node, percy: Percy, connect: Connect, mode: str, capability: str
) -> None:
    async def listen(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with connect(node, mode) as connected:
        calling = asyncio.ensure_future(
            connected.call_tool(f"percy_{capability}", {"task": "x"}, progress_callback=listen)
        )
        await soon(percy.started)
        calling.cancel()
        await soon(percy.cancelled)
        await asyncio.gather(calling, return_exceptions=True)
        again = await connected.call_tool("percy_reason", {"task": "still here"})
        assert again.structured_content["answer"] == "still here"


@ways
@eras
async def test_a_client_that_goes_away_cancels_what_it_asked_for(
    node: Node, percy: Percy, connect: Connect, mode: str
) -> None:
    calling: asyncio.Future[Any] | None = None
    async with connect(node, mode) as connected:
        calling = asyncio.ensure_future(connected.call_tool("percy_wait", {"task": "x"}))
        await soon(percy.started)
    await soon(percy.cancelled)
    assert calling is not None
    with pytest.raises(MCPError):
        await calling


async def test_a_stream_that_is_hung_up_cancels_in_the_stateless_era(node: Node, percy: Percy) -> None:
    head, body = modern("tools/call", {"name": "percy_wait", "arguments": {"task": "x"}})
    asking = asyncio.ensure_future(node.client.post(node.url + "/mcp", json=body, headers=head))
    await soon(percy.started)
    asking.cancel()
    await soon(percy.cancelled)


WAIT: dict[str, Any] = {"name": "percy_wait", "arguments": {"task": "x"}}
WAITING = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": WAIT}
WITH_PROGRESS = {**WAITING, "params": {**WAIT, "_meta": {"progressToken": 7}}}


async def test_a_stream_that_is_hung_up_cancels_in_the_handshake_era(node: Node, percy: Percy) -> None:
    async with Session(node) as session:
        asking = asyncio.ensure_future(session.answer(WAITING))
        await soon(percy.started)
        asking.cancel()
        await soon(percy.cancelled)


async def test_a_stream_that_breaks_in_the_handshake_era_cancels_nothing_until_the_session_ends(
    node: Node, percy: Percy
) -> None:
    async with Session(node) as session:
        async with session.post(WITH_PROGRESS) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            await soon(percy.started)
            response.close()
        await asyncio.sleep(0.5)
        assert not percy.cancelled.is_set()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        async with session.post(cancel) as accepted:
            assert accepted.status == 202
        await soon(percy.cancelled)


@pytest.mark.parametrize("request_", ["plain", "with progress"])
async def test_the_handshake_era_answers_a_cancelled_request(node: Node, percy: Percy, request_: str) -> None:
    async with Session(node) as session:
        asking = asyncio.ensure_future(session.answer(WAITING if request_ == "plain" else WITH_PROGRESS))
        await soon(percy.started)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        async with session.post(cancel) as accepted:
            assert accepted.status == 202
        async with asyncio.timeout(WAIT_TIMEOUT):
            answer = await asking
        await soon(percy.cancelled)
        assert answer["error"]["code"] == -32800


async def test_a_cancelled_request_is_answered_after_the_node_has_begun_to_ping(node: Node, percy: Percy) -> None:
    async with Session(node) as session, asyncio.timeout(WAIT_TIMEOUT):
        asking = asyncio.ensure_future(session.answer(WAITING))
        await percy.started.wait()
        [reply] = node.fabric.doors[1].hot["/mcp"]._find_fast_path({}, None)._ping_timers._expires_at  # type: ignore[attr-defined]
        reply.expire()  # as after 15 seconds
        await reply._ping_task
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        async with session.post(cancel) as accepted:
            assert accepted.status == 202
        assert (await asking)["error"]["code"] == -32800


@ways
@eras
async def test_a_client_may_close_as_soon_as_it_has_cancelled(
    node: Node, percy: Percy, connect: Connect, mode: str
) -> None:
    for _ in range(3):
        percy.started.clear()
        async with connect(node, mode) as connected:
            calling = asyncio.ensure_future(connected.call_tool("percy_wait", {"task": "x"}))
            await soon(percy.started)
            calling.cancel()
            await asyncio.wait({calling})
        assert calling.cancelled()
        await soon(percy.cancelled)
        percy.cancelled.clear()


async def test_no_stream_is_counted_after_it_ended(node: Node, percy: Percy) -> None:
    async def listen(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with client(node) as connected:
        await connected.call_tool("percy_plan", {"task": "a"}, progress_callback=listen)

    async def none() -> bool:
        return "fabric_active_streams 0.0" in (await node.send("GET", "/metrics")).body.decode()

    await eventually(none)


def told(writer: McpEventWriter, *events: Event) -> list[dict[str, Any]]:
    trace = new_trace()
    return [params for event in events for _, params in writer.to_notifications(event, trace)]


def test_progress_rises_whatever_the_agent_says() -> None:
    said = [progress(30), token("a"), progress(20), progress(30), token("b"), progress(100), token("c"), progress(100)]
    steps = [each["progress"] for each in told(McpEventWriter("t", None), *said)]
    assert steps == sorted(set(steps))
    assert steps[0] == 30.0
    assert steps[5] == 100.0


def test_progress_never_passes_a_total_that_is_named() -> None:
    for params in told(McpEventWriter("t", None), progress(100), token("a"), progress(100), token("b")):
        assert params["progress"] <= params.get("total", float("inf"))


def test_what_json_cannot_hold_is_told_in_words() -> None:
    odd = [token("half \ud800"), Event("artifact", {"name": "x", "bytes": {1, 2}}), Event("status", {"n": 10**60})]
    for params in told(McpEventWriter(7, "info"), *odd):
        json.dumps(params).encode("utf-8")
        assert "\ud800" not in json.dumps(params, ensure_ascii=False)
