"""A client that writes all of a request before it looks for an answer is told that it was too long, not cut off."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tests.doors.a2a_agents import percy
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 1024 * 1024
TOO_LONG = 24 * LIMIT
ADDRESSES = ["/a2a", "/a2a/task", "/v1/messages", "/v1/tasks", "/", "/agents/percy", "/agents/percy/message:send",
             "/search", "/mcp/call", "/mcp", "/mcp/register_agent"]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    bounded = [{"kind": kind, "body_bytes": LIMIT} for kind in ("rest", "a2a")]
    doors = [*bounded, *({"kind": kind} for kind in ("directory", "discovery", "fabric", "mcp"))]
    async with running(percy(), config={"doors": doors, "limits": {"body_bytes": LIMIT}}) as node:
        yield node


def written_at_once(url: str, path: str) -> tuple[int, bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=WAIT_TIMEOUT)
    headers = {"Authorization": f"Bearer {PSK}", "Content-Type": "application/json", "A2A-Version": "1.0"}
    try:  # as urllib does it: one request for each connection
        connection.request("POST", path, b"x" * TOO_LONG, {**headers, "Connection": "close"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ADDRESSES)
async def test_a_client_that_writes_first_hears_that_it_was_too_much(node: Node, path: str) -> None:
    status, body = await asyncio.to_thread(written_at_once, node.url, path)
    assert status == 413
    assert b"larger than" in body


@pytest.mark.parametrize("path", ADDRESSES)
async def test_one_that_asks_first_is_told_at_once(node: Node, path: str) -> None:
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {PSK}", "Expect: 100-continue"]
    head += ["Content-Type: application/json", "A2A-Version: 1.0", f"Content-Length: {TOO_LONG}", "", ""]
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw("\r\n".join(head).encode()) as (reader, _):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")


async def test_one_that_does_not_go_on_is_not_waited_for_long(node: Node) -> None:
    head = ["POST /a2a HTTP/1.1", "Host: x", f"Authorization: Bearer {PSK}", "Content-Length: 999999999", "", "{"]
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw("\r\n".join(head).encode()) as (reader, _):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
