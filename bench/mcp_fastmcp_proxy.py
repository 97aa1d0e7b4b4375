"""FastMCP's proxy as in its documentation; runs in the environment of mcp_fastmcp.py."""

from __future__ import annotations

import sys

from fastmcp.server import create_proxy

if __name__ == "__main__":
    proxy = create_proxy(sys.argv[2], name="proxy")
    proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="ERROR")
