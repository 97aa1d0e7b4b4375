"""Replies as server-sent events: order, names, trace, final, back-pressure, keep-alive."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, check_envelope, check_trace, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLAN = {"agent_id": "percy", "capability": "plan", "task": "one two three"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def percy() -> Percy:
    return Percy()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(percy: Percy) -> AsyncIterator[Node]:
    async with running(percy.agent) as found:
        yield found


@requirement("000-22", "001-19", "001-21", "001-22", "001-23")
async def test_events_come_in_order_each_with_the_trace_and_final_last(node: Node) -> None:
    async with node.stream("fabric.call", PLAN) as stream:
        events = [event async for event in stream]
        assert stream.response.status == 200
        assert stream.response.content_type == "text/event-stream"
        assert "no-store" in stream.response.headers["cache-control"]
    assert [event["event"] for event in events] == [
        "status", "token", "token", "token", "tool_call", "progress", "final",
    ]  # fmt: skip
    assert [event["id"] for event in events] == list(range(1, 8))
    assert [event["data"].get("text") for event in events[1:4]] == ["one", "two", "three"]
    assert events[0]["data"]["status"] == "running"
    assert events[4]["data"]["arguments"] == {"expression": "6*7"}
    assert events[5]["data"]["percent"] == 50
    for event in events:
        check_trace(event["trace"])
        assert event["data"]["trace"] == event["trace"] == events[0]["trace"]


@requirement("001-22", "000-28")
async def test_final_holds_the_result_and_copies_the_answer_up(node: Node) -> None:
    final = (await node.events("percy", "plan", "one"))[-1]["data"]
    assert final["ok"] is True
    assert final["result"] == {"answer": "ONE", "citations": [{"title": "a book"}]}
    assert (final["answer"], final["citations"]) == ("ONE", [{"title": "a book"}])


@requirement("000-28")
@pytest.mark.parametrize("accept", ["application/json", "application/json; charset=utf-8", "application/*"])
async def test_a_client_that_takes_only_json_gets_one_reply(node: Node, accept: str) -> None:
    reply = await node.send(
        "POST",
        "/mcp/call",
        json={"name": "fabric.call", "arguments": {**PLAN, "stream": True}},
        headers={"Accept": accept},
    )
    assert reply.headers["content-type"] == "application/json"
    check_envelope(reply.json)
    assert reply.json["result"]["answer"] == "ONE TWO THREE"


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream", "application/json, text/event-stream", "text/*"])
async def test_a_client_that_takes_events_gets_them(node: Node, accept: str) -> None:
    async with node.stream("fabric.call", PLAN, Accept=accept) as stream:
        assert stream.response.content_type == "text/event-stream"


async def test_without_stream_no_caller_gets_events(node: Node) -> None:
    body = {"name": "fabric.call", "arguments": PLAN}
    reply = await node.send("POST", "/mcp/call", json=body, headers={"Accept": "text/event-stream"})
    assert reply.headers["content-type"] == "application/json"
    check_envelope(reply.json)


@requirement("000-22")
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("fabric.tool.math.calculate", {"expression": "6*7"}, 42),
        ("fabric.tool.call", {"tool_id": "math.calculate", "parameters": {"expression": "6*7"}}, 42),
    ],
)
async def test_a_tool_can_be_streamed(node: Node, name: str, arguments: dict[str, Any], answer: object) -> None:
    async with node.stream(name, arguments) as stream:
        events = [event async for event in stream]
    assert [event["event"] for event in events] == ["status", "final"]
    assert events[-1]["data"]["result"]["result"] == answer


async def test_a_capability_that_does_not_stream_still_ends_in_final(node: Node) -> None:
    events = await node.events("percy", "reason", "why?")
    assert [event["event"] for event in events] == ["status", "final"]
    assert events[-1]["data"]["answer"] == "why?"


async def test_an_agent_as_a_tool_streams(node: Node) -> None:
    async with node.stream("fabric.tool.agent.percy.plan", {"task": "one two"}) as stream:
        events = [event["event"] async for event in stream]
    assert events == ["status", "token", "token", "tool_call", "progress", "final"]


@requirement("001-22", "001-42")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"agent_id": "nobody", "capability": "plan"}, "AGENT_NOT_FOUND", "Agent 'nobody' not found"),
        ({"agent_id": "percy", "capability": "sing"}, "CAPABILITY_NOT_FOUND", "is not offered by agent 'percy'"),
        ({"agent_id": "percy", "capability": "plan", "context": {"task": 5}}, "BAD_INPUT", "task"),
        ({"agent_id": "percy", "capability": "fail"}, "UPSTREAM_ERROR", "broken by go"),
        ({"agent_id": "percy", "capability": "refuse"}, "BAD_INPUT", "rather not"),
        ({"agent_id": "percy", "capability": "wait_and_talk", "timeout_ms": 100}, "TIMEOUT", "within"),
        ({"agent_id": "percy", "capability": "odd", "task": "surrogate"}, "UPSTREAM_ERROR", "not JSON"),
        ({"agent_id": "percy", "capability": "odd", "task": "error"}, "BAD_INPUT", "half a character"),
    ],
)
async def test_a_failure_is_a_final_event_never_an_empty_body(
    node: Node, arguments: dict[str, Any], code: str, words: str
) -> None:
    async with node.stream("fabric.call", {"task": "go", **arguments}) as stream:
        events = [event async for event in stream]
    final = events[-1]
    assert final["event"] == "final"
    assert final["data"]["ok"] is False
    assert final["data"]["result"] is None
    assert final["data"]["error"]["code"] == code
    assert words in final["data"]["error"]["message"]
    assert "Traceback" not in str(final)
    check_trace(final["trace"])


async def test_a_bad_request_to_stream_is_a_plain_error(node: Node) -> None:
    for arguments, status in (({"agent_id": 5}, 200), ({**PLAN, "timeout_ms": 0}, 200)):
        async with node.stream("fabric.call", arguments) as stream:
            assert stream.response.status == status
            body = await stream.response.read()
            assert b"BAD_INPUT" in body
    async with node.stream("fabric.call", PLAN, Authorization="Bearer wrong") as stream:
        assert stream.response.status == 401
        check_envelope(json.loads(await stream.response.read()))


@requirement("000-18", "001-36")
async def test_a_stream_goes_on_with_the_callers_trace(node: Node) -> None:
    trace_id = str(uuid4())
    events = await node.events("percy", "plan", "one", trace={"trace_id": trace_id})
    assert {event["trace"]["trace_id"] for event in events} == {trace_id}


async def test_events_are_sent_when_they_happen_not_at_the_end(node: Node, percy: Percy) -> None:
    percy.cancelled.clear()
    given = {"agent_id": "percy", "capability": "wait_and_talk", "task": "go"}
    async with asyncio.timeout(WAIT_TIMEOUT), node.stream("fabric.call", given) as stream:
        async for event in stream:
            if event["event"] == "token":
                break
        assert not percy.cancelled.is_set()
    async with asyncio.timeout(WAIT_TIMEOUT):
        await percy.cancelled.wait()


async def open_streams(node: Node) -> float:
    text = (await node.send("GET", "/metrics")).body.decode()
    return float(next(line for line in text.splitlines() if line.startswith("fabric_active_streams ")).split()[1])


async def none_is_open(node: Node) -> None:
    async def is_so() -> bool:
        return await open_streams(node) == 0

    await eventually(is_so)


async def slow_reader(node: Node, capability: str, **more: Any) -> socket.socket:
    """A client that asks for a stream and then reads nothing."""
    arguments = {"agent_id": "percy", "capability": capability, "task": "go", "stream": True, **more}
    body = json.dumps({"name": "fabric.call", "arguments": arguments}).encode()
    head = f"POST /mcp/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PSK}\r\nContent-Length: {len(body)}\r\n\r\n"
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", node.port))
    await loop.sock_sendall(client, head.encode() + body)
    return client


async def test_a_slow_reader_holds_its_own_agent_and_no_other() -> None:
    percy = Percy()
    async with running(percy.agent) as node:
        client = await slow_reader(node, "chatter")
        seen = -1
        async with asyncio.timeout(WAIT_TIMEOUT):
            while percy.emitted == 0 or percy.emitted != seen:  # until it stands still
                seen = percy.emitted
                for _ in range(5):
                    assert (await node.events("percy", "plan", "one"))[-1]["data"]["ok"] is True
        assert percy.emitted * 16_384 < 8_000_000  # what the system's socket buffers hold, not 320 MB
        assert not percy.cancelled.is_set()
        received = 0
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while percy.emitted <= seen:  # reading lets the agent go on
                received += len(await loop.sock_recv(client, 1 << 20))
        client.close()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await percy.cancelled.wait()


async def test_a_reader_that_never_reads_is_given_up_after_its_call_has_ended() -> None:
    percy = Percy()
    config = {"doors": [{"kind": "fabric", "keep_alive": 0.1}]}
    async with running(percy.agent, config=config) as node:
        client = await slow_reader(node, "chatter", timeout_ms=300)
        async with asyncio.timeout(WAIT_TIMEOUT):
            await percy.cancelled.wait()  # by its deadline
        await none_is_open(node)
        client.close()


async def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    percy = Percy()
    async with running(percy.agent, config={"doors": [{"kind": "fabric", "keep_alive": 0.05}]}) as node:
        given = {"agent_id": "percy", "capability": "hold", "task": "go"}
        async with asyncio.timeout(WAIT_TIMEOUT), node.stream("fabric.call", given) as stream:
            events = []
            async for event in stream:
                events.append(event["event"])
                if event["event"] == "status":
                    while stream.comments < 3:
                        line = await stream.response.content.readline()
                        stream.comments += line.startswith(b":")
                    percy.may_go_on.set()
    assert events == ["status", "final"]


async def test_the_number_of_open_streams_is_counted(node: Node) -> None:
    given = {"agent_id": "percy", "capability": "wait_and_talk", "task": "go"}
    await none_is_open(node)  # of the tests before
    async with node.stream("fabric.call", given):
        assert await open_streams(node) == 1
    await none_is_open(node)
