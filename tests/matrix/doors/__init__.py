"""The doors of the matrix: a name, and who makes a client of it. A new door is a file here and a row below."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.fixtures.node import Node
from tests.matrix.door_client import DoorClient
from tests.matrix.doors import a2a, client, directory, fabric, mcp, rest

HANDSHAKE, STATELESS = "legacy", "2026-07-28"

DOORS: Mapping[str, Callable[[Node], DoorClient]] = {
    "a2a-jsonrpc": lambda node: a2a.OfficialClient(node, "JSONRPC"),
    "a2a-rest": lambda node: a2a.OfficialClient(node, "HTTP+JSON"),
    "a2a-grpc": lambda node: a2a.OfficialClient(node, "GRPC"),
    "a2a-0.3": a2a.OldJSON,
    "fabric": fabric.Plain,
    "fabric-sse": fabric.EventStream,
    "fabric-ws": fabric.Socket,
    "client": client.PythonClient,
    "directory": directory.Directory,
    "rest": rest.RestTasks,
    "mcp-legacy": lambda node: mcp.WholeNode(lambda: mcp.over_http(node, HANDSHAKE)),
    "mcp-2026": lambda node: mcp.WholeNode(lambda: mcp.over_http(node, STATELESS)),
    "mcp-ws": lambda node: mcp.WholeNode(lambda: mcp.over_socket(node)),
    "mcp-stdio": lambda node: mcp.WholeNode(lambda: mcp.over_stdio(node)),
    "mcp-agent-legacy": lambda node: mcp.OneAgent(node, HANDSHAKE),
    "mcp-agent-2026": lambda node: mcp.OneAgent(node, STATELESS),
}
