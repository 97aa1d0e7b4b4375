"""The private listener of a worker: a Unix socket on which the other workers of the node ask it.

Its folder belongs to the user of the node alone, so only processes of that user can connect. Connections have
the same bounds as those of clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.web.protocol import HttpProtocol

_CONNECTIONS = 4096
_PAUSE = 0.01  # seconds; idle connections are closed a moment after the end


@asynccontextmanager
async def open_private_listener(app: ASGIApp, path: Path, drain_timeout: float) -> AsyncIterator[None]:
    """Serve `app` there while the block runs. Requests that are under way at its end are cancelled after so long."""
    config = uvicorn.Config(
        app,
        http=type("PrivateProtocol", (HttpProtocol,), {"hot": {}, "waiting": {}}),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=75,
    )
    config.load()
    state = ServerState()
    protocol: Any = config.http_protocol_class

    def make_protocol() -> asyncio.Protocol:
        made: asyncio.Protocol = protocol(config=config, server_state=state, app_state={})
        return made

    # The socket of an earlier worker in the same place is replaced.
    server = await asyncio.get_running_loop().create_unix_server(make_protocol, str(path))
    try:
        yield
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        ends_at = time.monotonic() + drain_timeout
        while state.connections and (left := ends_at - time.monotonic()) > 0:
            # The next request of an idle connection may have arrived already.
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=left)
            else:
                await asyncio.sleep(_PAUSE)
        for task in list(state.tasks):
            task.cancel()
