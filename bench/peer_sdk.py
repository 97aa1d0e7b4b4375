"""A forwarder made of the official SDK's own server and client: PORT ADDRESS [tuned].

As it comes it opens a client for each call, as the SDK's examples do. Tuned, it keeps one client, answers with JSON
instead of events, and has uvloop and httptools.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp import Client
from mcp.server.lowlevel import Server


def build(upstream: str, *, is_tuned: bool) -> Server[Any]:
    @asynccontextmanager
    async def keep_client(_: Server[Any]) -> AsyncIterator[Client | None]:
        if is_tuned:
            async with Client(upstream) as client:
                yield client
        else:
            yield None

    async def list_tools(context: Any, params: Any) -> Any:
        async with Client(upstream) as client:
            return await client.list_tools()

    async def call_tool(context: Any, params: Any) -> Any:
        kept = context.lifespan_context
        if kept is not None:
            return await kept.call_tool(params.name, params.arguments)
        async with Client(upstream) as client:
            return await client.call_tool(params.name, params.arguments)

    return Server("forwarder", lifespan=keep_client, on_list_tools=list_tools, on_call_tool=call_tool)


if __name__ == "__main__":
    tuned = len(sys.argv) > 3
    uvicorn.run(
        build(sys.argv[2], is_tuned=tuned).streamable_http_app(json_response=tuned),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        loop="uvloop" if tuned else "asyncio",
        http="httptools" if tuned else "h11",
    )
