"""Plain calls in sessions of the handshake era take the short way; whatever needs more goes to the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from a2a_fabric.core.call import Principal
from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.doors.mcp.sessions import FastSessions
from a2a_fabric.protocols.mcp.wire import McpMessage, parse_message
from a2a_fabric.testing import FakeClock
from tests.fixtures.mcp_raw import Session
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy

OTHER = "another-key-of-the-node"
CALL: dict[str, Any] = {"name": "percy_reason", "arguments": {"task": "hi"}}


def tools_call(params: dict[str, Any] = CALL, request_id: int = 3) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Node]:
    keys = [{"id": "other", "key": OTHER}]
    async with running(Percy().agent, config={"auth": {"keys": keys}}) as found:
        yield found


async def kind_of(session: Session, body: dict[str, Any], **headers: str) -> tuple[int, str]:
    async with asyncio.timeout(WAIT_TIMEOUT), session.post(body, **headers) as response:
        await response.read()
        return response.status, response.headers.get("content-type", "").partition(";")[0]


async def test_a_plain_call_is_answered_in_one_piece(node: Node) -> None:
    async with Session(node) as session:
        assert await kind_of(session, tools_call()) == (200, "application/json")
        answer = await session.answer(tools_call())
    assert answer["id"] == 3
    assert answer["result"]["structuredContent"] == {"answer": "hi", "depth": 1}
    assert answer["result"]["isError"] is False
    assert "resultType" not in answer["result"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26"])
async def test_older_versions_are_the_sdks(node: Node, version: str) -> None:
    async with Session(node, version) as session:
        assert await kind_of(session, tools_call()) == (200, "text/event-stream")


async def test_a_client_that_wants_progress_or_logs_gets_a_stream(node: Node) -> None:
    async with Session(node) as session:
        with_progress = {**CALL, "_meta": {"progressToken": 1}}
        assert await kind_of(session, tools_call(with_progress)) == (200, "text/event-stream")
        assert await kind_of(session, tools_call()) == (200, "application/json")
        level = {"jsonrpc": "2.0", "id": 4, "method": "logging/setLevel", "params": {"level": "info"}}
        await kind_of(session, level)
        assert await kind_of(session, tools_call()) == (200, "text/event-stream")


async def test_an_unknown_tool_is_the_protocols_error_as_before(node: Node) -> None:
    async with Session(node) as session:
        answer = await session.answer(tools_call({"name": "nobody_knows"}))
    assert answer["error"]["code"] == -32602
    assert "nobody_knows" in answer["error"]["message"]


async def test_a_session_belongs_to_the_caller_that_opened_it_and_ends_when_it_is_ended(node: Node) -> None:
    async with Session(node) as session:
        assert await kind_of(session, tools_call(), Authorization=f"Bearer {OTHER}") == (404, "application/json")
        assert await kind_of(session, tools_call(), Authorization=f"Bearer {PSK}") == (200, "application/json")
    assert (await kind_of(session, tools_call()))[0] == 404


def head(session: str = "s1", version: str = "2025-11-25") -> RequestHead:
    return RequestHead([(b"mcp-session-id", session.encode()), (b"mcp-protocol-version", version.encode())])


def message(method: str, request_id: int | None = None) -> McpMessage:
    identified = "" if request_id is None else f'"id": {request_id},'
    return parse_message(f'{{"jsonrpc": "2.0", {identified} "method": "{method}"}}')


def test_now_and_then_a_call_goes_to_the_sdk_so_that_the_session_lives() -> None:
    clock, alice = FakeClock(), Principal(mode="psk", principal_id="alice")
    sessions = FastSessions(100.0, clock)
    call = message("tools/call", 1)
    assert sessions.find(head(), 1, alice) is None
    sessions.observe_reply(head(), message("notifications/initialized"), alice, 202)
    assert sessions.find(head(), 1, alice) is not None
    clock.advance(25)
    assert sessions.find(head(), 1, alice) is None
    sessions.observe_reply(head(), call, alice, 200)
    assert sessions.find(head(), 1, alice) is not None
    sessions.observe_reply(head(), call, alice, 404)
    assert sessions.find(head(), 1, alice) is None


def test_a_session_is_fast_only_for_the_caller_that_opened_it() -> None:
    alice, bob = Principal(mode="psk", principal_id="alice"), Principal(mode="psk", principal_id="bob")
    sessions = FastSessions(100.0)
    sessions.observe_reply(head(), message("notifications/initialized"), alice, 202)
    assert sessions.find(head(), 1, bob) is None
    assert sessions.find(head(version="2025-06-18"), 1, alice) is None
    assert sessions.find(head("s2"), 1, alice) is None
