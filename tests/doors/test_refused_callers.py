"""A caller is known, or refused, by the headers alone: a refused caller's body is not awaited, parsed or logged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.doors.a2a_agents import percy
from tests.fixtures.node import WAIT_TIMEOUT, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOORS = [{"kind": kind} for kind in ("fabric", "mcp", "a2a", "directory", "rest", "discovery")]
PATHS = ["/mcp/call", "/mcp", "/agents/percy/mcp", "/agents/percy", "/agents/percy/message:send", "/a2a", "/a2a/task",
         "/v1/messages", "/v1/tasks", "/search", "/mcp/register_agent"]  # fmt: skip
SECRET = "words-of-a-stranger"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running(percy(), config={"doors": DOORS}) as node:
        yield node


def asked(path: str, length: int, key: str | None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += ["A2A-Version: 1.0", "Accept: application/json, text/event-stream"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, "", ""]).encode()


async def refused(node: Node, data: bytes) -> bytes:
    async with asyncio.timeout(WAIT_TIMEOUT / 3), node.raw(data) as (reader, _):
        said = await reader.readuntil(b"\r\n\r\n")
        length = int(said.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return said + await reader.readexactly(length)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", [None, "none-of-ours"])
@pytest.mark.parametrize("length", [100, 50_000, 3_000_000])
async def test_the_answer_does_not_wait_for_the_body(node: Node, path: str, key: str | None, length: int) -> None:
    assert (await refused(node, asked(path, length, key))).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", [*PATHS, "/"])
async def test_what_is_no_json_is_not_looked_at(node: Node, path: str) -> None:
    assert (await refused(node, asked(path, 5, "none-of-ours") + b"{{{{{")).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", [*PATHS, "/"])
async def test_nothing_of_the_body_is_logged(node: Node, path: str) -> None:
    body = {
        "jsonrpc": "2.0",
        "id": SECRET,
        "method": SECRET,
        "name": SECRET,
        "params": {"name": SECRET},
        "query": SECRET,
    }
    data = json.dumps(body).encode()
    said = await refused(node, asked(path, len(data), "none-of-ours") + data)
    assert said.startswith(b"HTTP/1.1 401 ")
    assert SECRET.encode() not in said
    assert SECRET not in node.log.getvalue()


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_goes_on_after_a_short_body_that_was_not_read(node: Node, path: str) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT), node.raw(asked(path, 100, "none-of-ours")) as (reader, writer):
        said = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(said.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.write(b"x" * 100 + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
