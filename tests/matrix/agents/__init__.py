"""The runtimes of the matrix, each with a real agent behind it. A new runtime is a file here and a row below."""

from __future__ import annotations

from tests.matrix.agents import (
    a2a,
    acp,
    agent_client,
    agentzero,
    claude,
    fabric,
    grpc,
    http,
    mcp,
    process,
    python,
    rest,
    rpc,
    tool,
)
from tests.matrix.agents.kind import Kind

KINDS: tuple[Kind, ...] = (
    python.Python("python"),
    http.PlainHTTP("http_plain"),
    http.EventHTTP("http_sse"),
    http.DescribedHTTP("http_openapi"),
    process.JSONLines("process_jsonl"),
    process.OneShot("process_oneshot"),
    rpc.RPC("rpc"),
    rest.Rest("rest"),
    tool.Tool("tool"),
    mcp.MCPProgram("mcp_stdio"),
    mcp.MCPServer("mcp_http", "handshake"),
    mcp.MCPServer("mcp_stateless", "stateless"),
    a2a.A2A("a2a_jsonrpc", "jsonrpc"),
    a2a.A2A("a2a_http", "http"),
    a2a.A2A("a2a_grpc", "grpc"),
    a2a.OldA2A("a2a_old", "jsonrpc"),
    agent_client.AgentClient("agent_client"),
    claude.Claude("claude"),
    acp.ACP("acp"),
    agentzero.AgentZero("agentzero"),
    grpc.GRPC("grpc"),
    fabric.OtherNode("fabric"),
)
RUNTIMES = {kind.name: kind for kind in KINDS}
