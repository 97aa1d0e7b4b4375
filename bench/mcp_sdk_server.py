"""A tool without a gateway: the same tool on the official SDK, served as the SDK serves it."""

from __future__ import annotations

import sys
from typing import Any

from mcp.server.mcpserver import MCPServer

server: MCPServer[Any] = MCPServer("plain", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
