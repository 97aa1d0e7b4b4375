"""FastMCP's proxy as in its documentation; runs in the environment of mcp_fastmcp.py.

With a second argument it gets a connected client, which it uses again for all calls.
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


async def serve_reused(upstream: Any, port: int) -> None:
    async with Client(upstream) as client:
        await create_proxy(client, name="proxy").run_async(port=port, **OPTIONS)


if __name__ == "__main__":
    address: Any = sys.argv[2]
    if address.startswith("["):
        program, *arguments = json.loads(address)
        address = StdioTransport(program, arguments)
    if len(sys.argv) > 3:
        asyncio.run(serve_reused(address, int(sys.argv[1])))
    else:
        create_proxy(address, name="proxy").run(port=int(sys.argv[1]), **OPTIONS)
