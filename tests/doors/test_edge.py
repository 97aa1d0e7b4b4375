"""All HTTP doors answer alike where the request itself is concerned, and every request leaves one line in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from msgspec.structs import replace

from a2a_fabric import plugins
from a2a_fabric.core.call import Principal
from a2a_fabric.core.ports import DoorPlugin
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.identity.resolver import Credentials
from tests.doors.a2a_agents import percy
from tests.doors.test_json_bodies import BODIES, HEADERS
from tests.fixtures.mcp_raw import modern
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, Reply, eventually, running

on_a_node = pytest.mark.asyncio(loop_scope="module")

KINDS = ("fabric", "mcp", "a2a", "directory", "rest", "discovery")
PATHS = list(BODIES)
PAGES = [
    "/health", "/mcp/health", "/mcp/list_agents", "/mcp/agent/percy", "/monitoring/status", "/metrics", "/v1/agents",
    "/v1/tasks", "/openapi.json", "/docs", "/a2a/agents", "/a2a/agents/percy", "/.well-known/ai-catalog.json",
    "/.well-known/agent.json", "/.well-known/agent-card.json", "/agents/percy/.well-known/agent-card.json",
    "/search?q=x", "/mcp/server-card", "/nowhere", "/v1/nowhere",
]  # fmt: skip
BREAKING_KEY = "the-key-that-breaks-the-door"
TRACE_ID = "0af76519-16cd-43dd-8448-eb211c80319c"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def break_door(kind: str, patch: pytest.MonkeyPatch) -> str:
    """The same door, except that one caller makes it raise an unexpected error."""
    plugin = plugins.load_door(kind)

    def build(settings: Any, context: DoorContext) -> Door:
        def identify(credentials: Credentials) -> Principal:
            if credentials.bearer == BREAKING_KEY:
                raise LookupError("a mistake of ours")
            return context.identify(credentials)

        door: Door = plugin.build(settings, replace(context, identify=identify))
        return door

    # Not with `add_plugin`, which is for good: other tests of this process read the list of known doors.
    broken = DoorPlugin(settings=plugin.settings, build=build)
    patch.setitem(plugins._ADDED["doors"], f"breaking-{kind}", broken)
    return f"breaking-{kind}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config={"doors": [{"kind": kind} for kind in KINDS]}) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def breaking_node() -> AsyncIterator[Node]:
    with pytest.MonkeyPatch.context() as patch:
        doors = [{"kind": break_door(kind, patch)} for kind in KINDS]
        async with running(percy(), config={"doors": doors}) as node:
            yield node


def log_lines(node: Node, trace_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
    return [line for line in lines if line.get("trace_id") == trace_id and line.get("event") == "request"]


async def read_log(node: Node, trace_id: str) -> dict[str, Any]:
    """The log line of a request; there is only one."""

    async def is_written() -> bool:
        return bool(log_lines(node, trace_id))

    await eventually(is_written)
    [line] = log_lines(node, trace_id)
    return line


async def check_refusal(node: Node, reply: Reply, status: int) -> dict[str, Any]:
    assert reply.status == status, reply.body
    line = await read_log(node, reply.headers["x-trace-id"])
    assert (line["http_status"], line["status"]) == (status, "failed")
    return line


async def post(node: Node, path: str, **more: Any) -> Reply:
    headers = {**HEADERS, **more.pop("headers", {})}
    return await node.send("POST", path, data=json.dumps(BODIES[path]), headers=headers, **more)


@on_a_node
@pytest.mark.parametrize("path", PATHS)
async def test_another_method_is_405_and_the_reply_names_the_right_ones(node: Node, path: str) -> None:
    reply = await node.send("PATCH", path, headers=HEADERS)
    assert reply.status == 405
    assert "POST" in reply.headers["allow"] or path in ("/", "/agents/percy")  # other doors answer GET there
    assert reply.headers["x-trace-id"]


@on_a_node
@pytest.mark.parametrize("path", PATHS)
async def test_another_content_type_is_415(node: Node, path: str) -> None:
    await check_refusal(node, await post(node, path, headers={"Content-Type": "text/plain"}), 415)


@on_a_node
@pytest.mark.parametrize("path", PATHS)
async def test_a_body_over_the_limit_is_413_before_it_arrives(node: Node, path: str) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {PSK}", "Content-Length: 100000000"]
    lines += [f"{name}: {value}" for name, value in HEADERS.items()]
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw("\r\n".join([*lines, "", ""]).encode()) as (reader, _):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 413 ")
    assert "x-trace-id: " in head


@on_a_node
@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_without_credentials_is_401(node: Node, path: str) -> None:
    reply = await post(node, path, token=None)
    assert (await check_refusal(node, reply, 401))["error_code"] == "AUTH_DENIED"
    assert reply.headers["www-authenticate"].startswith("Bearer ")


@on_a_node
@pytest.mark.parametrize("path", PATHS)
async def test_an_unexpected_exception_is_500_with_the_trace_that_the_log_has(
    breaking_node: Node, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reply = await post(breaking_node, path, token=BREAKING_KEY)
    assert (await check_refusal(breaking_node, reply, 500))["error_code"] == "INTERNAL_ERROR"
    assert b"a mistake of ours" not in reply.body
    assert any(record.exc_info and "a mistake of ours" in str(record.exc_info[1]) for record in caplog.records)


@on_a_node
@pytest.mark.parametrize("path", PAGES)
async def test_every_page_has_a_trace_id(node: Node, path: str) -> None:
    assert (await node.send("GET", path)).headers["x-trace-id"]


@on_a_node
@pytest.mark.parametrize("path", PATHS)
async def test_every_reply_continues_the_trace_of_its_request(node: Node, path: str) -> None:
    for token in (PSK, None):
        reply = await post(node, path, token=token, headers={"traceparent": TRACEPARENT})
        assert reply.headers["x-trace-id"] == TRACE_ID, (path, token, reply.status)


NEW_TASK = {"agentId": "percy", "capability": "say", "input": {"words": "x"}}
STREAMS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "fabric": ("POST", "/mcp/call", {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "say",
                                                                         "task": "x", "stream": True}}),
    "mcp": ("POST", "/mcp", modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})[1]),
    "a2a": ("POST", "/agents/percy/message:stream", {"message": {"messageId": "m", "role": "ROLE_USER",
            "parts": [{"text": "x"}], "metadata": {"skill": "shout"}}}),
    "directory": ("GET", "/a2a/events", None),
    "rest": ("GET", "/v1/tasks/{task}/events", None),
    "rpc": ("GET", "/stream?taskId={task}", None),
}  # fmt: skip


@pytest.mark.parametrize("door", STREAMS)
async def test_too_many_streams_are_429_with_the_time_to_wait(door: str) -> None:
    method, path, body = STREAMS[door]
    mcp_headers = modern("subscriptions/listen", {})[0] if door == "mcp" else {}
    doors = [{"kind": kind} for kind in KINDS]
    async with running(percy(), config={"doors": doors, "limits": {"streams": 1}}) as node, AsyncExitStack() as stack:
        task = await node.send("POST", "/v1/tasks", json=NEW_TASK)
        headers = {"Authorization": f"Bearer {PSK}", "Accept": "text/event-stream"}
        first: aiohttp.ClientResponse = await stack.enter_async_context(
            node.client.get(node.url + "/a2a/events", headers=headers)
        )
        assert first.status == 200
        sent = {"data": json.dumps(body)} if body is not None else {}
        wanted = {
            "A2A-Version": "1.0",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            **mcp_headers,
        }
        reply = await node.send(method, path.format(task=task.json["id"]), headers=wanted, **sent)
        assert reply.status == 429, reply.body
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["x-trace-id"]


async def test_a_client_that_disconnects_is_logged_as_such() -> None:
    async with running(percy(), config={"doors": [{"kind": "directory"}]}) as node:
        headers = {"Authorization": f"Bearer {PSK}", "Accept": "text/event-stream"}
        async with node.client.get(node.url + "/a2a/events", headers=headers) as response:
            trace_id = response.headers["x-trace-id"]
            response.close()
        line = await read_log(node, trace_id)
        assert (line["http_status"], line["error_code"]) == (499, "CANCELLED")
