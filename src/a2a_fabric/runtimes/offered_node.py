"""This node as an MCP server for agents that it starts itself, so that they can ask the other agents."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

_NAME = "fabric"
_PLACE = ("FABRIC_HOME", "FABRIC_URL")  # no secrets: the program finds the node's key by itself


class OfferedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A program that speaks MCP on its stdin and stdout on behalf of the node."""

    name: str
    command: str
    args: tuple[str, ...]
    env: dict[str, str]


def node_as_server(environ: Mapping[str, str]) -> OfferedNode:
    """`environ` is the node's own."""
    place = {name: environ[name] for name in _PLACE if name in environ}
    return OfferedNode(name=_NAME, command=sys.executable, args=("-m", "a2a_fabric", "mcp"), env=place)
