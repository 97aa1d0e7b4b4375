"""FastMCP's proxy as in its documentation: PORT ADDRESS|COMMAND [tuned]; runs in an environment of its own.

As it comes it makes a client for each call, with FastMCP's own dependencies. Tuned, it uses one connected client for
all calls, and uvloop and httptools.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

OPTIONS: dict[str, Any] = {"transport": "http", "host": "127.0.0.1", "show_banner": False, "log_level": "ERROR"}
PLAIN = {"loop": "asyncio", "http": "h11"}


async def serve_tuned(upstream: Any, port: int) -> None:
    async with Client(upstream) as client:
        await create_proxy(client, name="proxy").run_async(port=port, **OPTIONS)


if __name__ == "__main__":
    address: Any = sys.argv[2]
    if address.startswith("["):
        program, *arguments = json.loads(address)
        address = StdioTransport(program, arguments)
    if len(sys.argv) > 3:
        asyncio.run(serve_tuned(address, int(sys.argv[1])))
    else:
        create_proxy(address, name="proxy").run(port=int(sys.argv[1]), uvicorn_config=PLAIN, **OPTIONS)
