"""The runtimes of the matrix, each with a real agent behind it. A new runtime is a file here and a row below."""

from __future__ import annotations

from tests.matrix.agents import http, mcp, process, python, tool
from tests.matrix.agents.kind import Kind

KINDS: tuple[Kind, ...] = (
    python.Python("python"),
    http.PlainHTTP("http_plain"),
    http.EventHTTP("http_sse"),
    process.JSONLines("process_jsonl"),
    process.OneShot("process_oneshot"),
    tool.Tool("tool"),
    mcp.MCPProgram("mcp_stdio"),
    mcp.MCPServer("mcp_http", "handshake"),
    mcp.MCPServer("mcp_stateless", "stateless"),
)
RUNTIMES = {kind.name: kind for kind in KINDS}
