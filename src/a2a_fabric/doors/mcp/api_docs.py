"""Describes the paths of the MCP door for `/docs`. What the messages mean is in the specification of MCP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from a2a_fabric.doors.api_docs import EVENTS, RPC_REQUEST, WEBSOCKET, DoorDescription, PathDescription
from a2a_fabric.protocols.mcp.wire import STATELESS_VERSION

_METHOD = "tools/list"
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_EXAMPLE = {"jsonrpc": "2.0", "id": 1, "method": _METHOD, "params": {"_meta": _META}}
_SESSION = {"Mcp-Session-Id": "The session, from the reply to `initialize`."}
_VERSION = {"MCP-Protocol-Version": "The version of MCP that the message follows."}
_QUERY: Mapping[str, Any] = {"type": "object", "properties": {"session_id": {"type": "string"}}}


def describe(messages_path: str) -> DoorDescription:
    return DoorDescription(
        name="mcp",
        about="The Model Context Protocol: streamable HTTP, WebSocket, and HTTP with SSE for older clients.",
        page="mcp.md",
        paths=(
            *_describe_endpoint("/mcp", "all agents and tools of this node", {}),
            *_describe_endpoint("/agents/{agent_id}/mcp", "one agent", {"agent_id": "percy"}),
            PathDescription(
                method="GET",
                path="/mcp/ws",
                summary="MCP over a WebSocket, with the subprotocol `mcp`.",
                status=WEBSOCKET,
                reply=EVENTS,
            ),
            PathDescription(
                method="GET",
                path="/sse",
                summary="Open a session of the transport of 2024-11-05. The first event has the address for messages.",
                reply=EVENTS,
            ),
            PathDescription(
                method="POST",
                path=messages_path,
                summary="Send a message to such a session. The reply comes on its stream.",
                body=RPC_REQUEST,
                example={"jsonrpc": "2.0", "id": 1, "method": "ping"},
                query=_QUERY,
                required=("session_id",),
                status=202,
            ),
        ),
    )


def _describe_endpoint(path: str, whose: str, values: Mapping[str, str]) -> Iterator[PathDescription]:
    yield PathDescription(
        method="POST",
        path=path,
        summary=f"Send a message of MCP, for {whose}. The reply is JSON or a stream of events.",
        body=RPC_REQUEST,
        example=_EXAMPLE,
        headers={
            **_VERSION,
            "Mcp-Method": "The method of the message, from version 2026-07-28 on.",
            "Mcp-Name": "The tool, prompt or resource that the message names, likewise.",
            **_SESSION,
        },
        values={**values, "MCP-Protocol-Version": STATELESS_VERSION, "Mcp-Method": _METHOD},
    )
    yield PathDescription(
        method="GET",
        path=path,
        summary=f"Open the stream of a session's notifications, for {whose}.",
        headers={**_SESSION, **_VERSION, "Last-Event-ID": "Begin after this event."},
        required=("Mcp-Session-Id",),
        values=values,
        reply=EVENTS,
    )
    yield PathDescription(
        method="DELETE",
        path=path,
        summary=f"End a session, for {whose}.",
        headers={**_SESSION, **_VERSION},
        required=("Mcp-Session-Id",),
        values=values,
    )
