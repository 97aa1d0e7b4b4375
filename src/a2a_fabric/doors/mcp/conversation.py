"""A conversation over messages of text: a WebSocket, or lines on stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from pydantic import ValidationError

from a2a_fabric.doors.mcp import jsonrpc
from a2a_fabric.doors.mcp.jsonrpc import RPCError
from a2a_fabric.doors.mcp.visit import Visit

Listen = AsyncIterator[str | bytes]
Say = Callable[[str], Awaitable[None]]


async def converse(server: Server[Any], listen: Listen, say: Say, visit: Visit) -> None:
    """Until the other side ends it; what still runs then is cancelled."""
    heard, hearing = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    saying, said = anyio.create_memory_object_stream[SessionMessage](0)
    mouth = asyncio.Lock()

    async def speak(text: str) -> None:
        async with mouth:
            await say(text)

    async def hear() -> None:
        async with heard:
            async for text in listen:
                try:
                    message = understood(text)
                except RPCError as exc:
                    await speak(jsonrpc.failure(exc).decode())
                else:
                    await heard.send(SessionMessage(message, ServerMessageMetadata(request_context=visit)))

    async def answer() -> None:
        async with said:
            async for message in said:
                await speak(message.message.model_dump_json(by_alias=True, exclude_unset=True))

    async with anyio.create_task_group() as group:
        group.start_soon(hear)
        group.start_soon(answer)
        await server.run(hearing, saying, server.create_initialization_options())


def understood(text: str | bytes) -> types.JSONRPCMessage:
    """Raises RPCError. The SDK would take a request with a bad id for a notification, so we look first."""
    jsonrpc.read(text)
    try:
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError as exc:
        raise RPCError(jsonrpc.INVALID_REQUEST, "Not a JSON-RPC message") from exc
