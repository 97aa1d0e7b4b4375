"""MCP with the official client: the whole node over HTTP, WebSocket and stdio, and one agent alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import msgspec
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from a2a_fabric.core.call import KIND_KEY, part_kind_from_mime_type
from a2a_fabric.core.result import Part
from tests.fixtures.mcp_client import socket_transport, words
from tests.fixtures.node import PSK, Node
from tests.fixtures.plain import TRUSTS_NO_PROXY
from tests.matrix.door_client import WAIT_TIMEOUT, DoorClient, Hear, Outcome, Question, fallback_of
from tests.matrix.shared_context import SharedContext
from tests.system.node import COMMAND, environment

NOT_SAID = {"queued", "running", "artifact"}  # how the door tells of what has no words: states, and things made
Opening = AbstractAsyncContextManager[Client]


@asynccontextmanager
async def over_http(node: Node, mode: str, path: str = "/mcp") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {PSK}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=2 * WAIT_TIMEOUT, verify=TRUSTS_NO_PROXY) as http,
        Client(streamable_http_client(node.url + path, http_client=http), mode=mode) as connected,
    ):
        yield connected


@asynccontextmanager
async def over_socket(node: Node) -> AsyncIterator[Client]:
    async with Client(socket_transport(node)) as connected:
        yield connected


@asynccontextmanager
async def over_stdio(node: Node) -> AsyncIterator[Client]:
    """`a2a-fabric mcp`, attached to the node, as a desktop client starts it."""
    with tempfile.TemporaryDirectory() as home:
        options = [*COMMAND[1:], "mcp", "--url", node.url, "--token", PSK]
        command = StdioServerParameters(command=COMMAND[0], args=options, env=environment(Path(home)), cwd=home)
        async with Client(command) as connected:
            yield connected


class WholeNode(DoorClient):
    """Every capability is a tool; one connection for everything."""

    def __init__(self, connect: Callable[[], Opening]) -> None:
        self._client = SharedContext(connect)
        self._names: dict[str, str] = {}

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        client = await self._client.get()
        if not self._names:
            listed = (await client.list_tools()).tools
            self._names = {(tool.meta or {})["a2a-fabric/name"]: tool.name for tool in listed}
        return await ask_tool(client, self._tool_for(question), question, hear)

    def _tool_for(self, question: Question) -> str:
        """As it is listed; built-in tools are not, and have their canonical names."""
        dotted = f"fabric.tool.agent.{question.agent}.{question.capability}"
        return self._names.get(dotted, f"fabric.tool.{question.agent}")

    async def aclose(self) -> None:
        await self._client.aclose()


class OneAgent(DoorClient):
    """`/agents/ID/mcp`: a connection for each agent, its capabilities under their own names."""

    def __init__(self, node: Node, mode: str) -> None:
        self._node = node
        self._mode = mode
        self._clients: dict[str, SharedContext[Client]] = {}

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        agent = question.agent
        if agent not in self._clients:
            self._clients[agent] = SharedContext(lambda: over_http(self._node, self._mode, f"/agents/{agent}/mcp"))
        return await ask_tool(await self._clients[agent].get(), question.capability, question, hear)

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


async def ask_tool(client: Client, tool: str, question: Question, hear: Hear) -> Outcome:
    async def report(progress: float, total: float | None, message: str | None) -> None:
        if message and message not in NOT_SAID:
            hear(message)

    listening = report if question.stream else None
    try:
        result = await client.call_tool(tool, _arguments_of(question), progress_callback=listening)
    except MCPError as error:
        return Outcome(code=_code_in(error.data) or str(error.code), message=error.message)
    return _outcome_of(result)


def _arguments_of(question: Question) -> dict[str, Any]:
    """A tool's own arguments; what is not among them stands beside them."""
    given = dict(question.arguments)
    if question.task:
        given["task"] = question.task
    if question.attachments:
        given["attachments"] = msgspec.to_builtins(list(question.attachments))
    if question.timeout is not None:
        given["timeout_ms"] = round(question.timeout * 1000)
    return given


def _outcome_of(result: types.CallToolResult) -> Outcome:
    if result.is_error:
        return Outcome(code=_code_in(result.structured_content) or "no code", message=words(result))
    fallback = fallback_of((result.meta or {}).get("a2a-fabric/fallback"))
    return Outcome(answer=result.structured_content, parts=tuple(map(_part_of, result.content)), fallback=fallback)


def _part_of(block: types.ContentBlock) -> Part:
    """What a client of MCP makes of a block; what has no type of its own is told in `_meta`."""
    told = (block.meta or {}).get(KIND_KEY)
    match block:
        case types.ImageContent() | types.AudioContent():
            return Part(kind=block.type, blob=block.data, mime_type=block.mime_type)
        case types.EmbeddedResource(resource=types.BlobResourceContents() as held):
            kind = told or part_kind_from_mime_type(held.mime_type)
            return Part(kind=kind, blob=held.blob, mime_type=held.mime_type)
        case types.TextContent() if told:
            return Part(kind=told, data=json.loads(block.text))
        case types.TextContent():
            return Part(kind="text", text=block.text)
    return Part(kind="file", data=block.model_dump())


def _code_in(body: Any) -> str | None:
    """The canonical error's code, wherever MCP has put the error."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error["code"]) if isinstance(error, dict) else None
