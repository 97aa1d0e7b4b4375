"""An ASGI application on a free port of this machine, for as long as it is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fixtures.app_server import bind_port, serve_app

NOWHERE = "http://127.0.0.1:9/"  # a port without a listener


@asynccontextmanager
async def listening(app: Any, port: int = 0) -> AsyncIterator[str]:
    listener, _ = bind_port(port)
    async with serve_app(app, listener) as url:
        yield url
