"""The server of the demo agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request

from a2a_fabric.demo.serve import DemoServer


@asynccontextmanager
async def serve(url: str) -> AsyncIterator[Any]:
    """An agent as `LazyApp` loads it; it reads the body with Starlette, as the MCP SDK does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if await Request(scope, receive).body() == b"fail":
            raise ValueError("a bug of the agent")

    yield app


async def handle(message: dict[str, Any]) -> None:
    async def receive() -> dict[str, Any]:
        return message

    async def send(_: Any) -> None:
        pass

    server = DemoServer({"reader": __name__}, "http://127.0.0.1:1")
    try:
        await server({"type": "http", "method": "POST", "path": "/reader/mcp", "headers": []}, receive, send)
    finally:
        await server.aclose()


async def test_a_client_that_has_left_is_no_error_of_the_demo() -> None:
    await handle({"type": "http.disconnect"})


async def test_an_error_of_an_agent_is_reported() -> None:
    with pytest.raises(ValueError, match="a bug of the agent"):
        await handle({"type": "http.request", "body": b"fail"})
