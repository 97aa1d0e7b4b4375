"""A conversation over messages of text: a WebSocket, or lines on stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from pydantic import ValidationError

from a2a_fabric.doors.mcp.visit import Visit

Listen = AsyncIterator[str | bytes]
Say = Callable[[str], Awaitable[None]]


async def converse(server: Server[Any], listen: Listen, say: Say, visit: Visit) -> None:
    """Until the other side ends it; what still runs then is cancelled."""
    heard, hearing = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    saying, said = anyio.create_memory_object_stream[SessionMessage](0)
    mouth = asyncio.Lock()

    async def speak(message: types.JSONRPCMessage) -> None:
        async with mouth:
            await say(message.model_dump_json(by_alias=True, exclude_unset=True))

    async def hear() -> None:
        async with heard:
            async for text in listen:
                try:
                    message = understood(text)
                except Misunderstood as exc:
                    await speak(exc.answer)
                else:
                    await heard.send(SessionMessage(message, ServerMessageMetadata(request_context=visit)))

    async def answer() -> None:
        async with said:
            async for message in said:
                await speak(message.message)

    async with anyio.create_task_group() as group:
        group.start_soon(hear)
        group.start_soon(answer)
        await server.run(hearing, saying, server.create_initialization_options())


class Misunderstood(Exception):
    """What came is no message; `answer` says so."""

    def __init__(self, code: int, message: str, request_id: Any = None) -> None:
        super().__init__(message)
        known = request_id if isinstance(request_id, str | int) and not isinstance(request_id, bool) else None
        self.answer = types.JSONRPCError(jsonrpc="2.0", id=known, error=types.ErrorData(code=code, message=message))


def understood(text: str | bytes) -> types.JSONRPCMessage:
    """Raises Misunderstood."""
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise Misunderstood(types.PARSE_ERROR, "Parse error") from exc
    try:
        return types.jsonrpc_message_adapter.validate_python(decoded, by_name=False)
    except ValidationError as exc:
        request_id = decoded.get("id") if isinstance(decoded, dict) else None
        raise Misunderstood(types.INVALID_REQUEST, "Not a JSON-RPC message", request_id) from exc
