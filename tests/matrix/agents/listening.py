"""An ASGI application on a free port of this machine, for as long as it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from a2a_fabric.web.server import bind_socket, url_from_socket
from tests.matrix.door_client import WAIT_TIMEOUT

NOWHERE = "http://127.0.0.1:9/"  # a port without a listener


@asynccontextmanager
async def listening(app: Any, port: int = 0) -> AsyncIterator[str]:
    listener = bind_socket("127.0.0.1", port, exact_port=True)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, lifespan="auto"))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                await asyncio.sleep(0.01)
        yield url_from_socket(listener)
    finally:
        server.should_exit = True
        async with asyncio.timeout(WAIT_TIMEOUT):
            await serving
        listener.close()
