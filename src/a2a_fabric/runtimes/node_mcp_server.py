"""This node as an MCP server program, for agents that the node starts itself and that may call the other agents."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

_NAME = "fabric"
_NODE_VARIABLES = ("FABRIC_HOME", "FABRIC_URL")  # no secrets: the program finds the node's key by itself


class NodeMcpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A program that speaks MCP on its stdin and stdout on behalf of the node."""

    name: str
    command: str
    args: tuple[str, ...]
    env: dict[str, str]


def build_node_mcp_server(environ: Mapping[str, str]) -> NodeMcpServer:
    """`environ` is the node's own."""
    variables = {name: environ[name] for name in _NODE_VARIABLES if name in environ}
    return NodeMcpServer(name=_NAME, command=sys.executable, args=("-m", "a2a_fabric", "mcp"), env=variables)
