"""Describes the paths of the Fabric door for `/docs`. Those of the admin API have a document of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a_fabric.doors.api_docs import EVENTS, WEBSOCKET, DoorDescription, PathDescription
from a2a_fabric.operations import Operations
from a2a_fabric.operations.agents import RegisterArguments

_REQUEST: Mapping[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "An operation (`fabric.call`) or a tool (`fabric.tool.…`)."},
        "arguments": {"type": "object"},
    },
}
_ERROR_FORMAT = {"X-Fabric-Error-Format": "`string` or `object`: the form of `error` in the reply."}
_SUM = {"name": "fabric.tool.math.calculate", "arguments": {"expression": "6 * 7"}}
_NEW_AGENT = {"agent_id": "greeter", "endpoint": "http://127.0.0.1:9000/greet", "capabilities": ["greet"]}


def describe(
    operations: Operations, operation_paths: Mapping[str, str], metrics_paths: tuple[str, ...]
) -> DoorDescription:
    """`operation_paths` are answered by operations, and take their arguments in the query."""
    by_name = {operation.name: operation for operation in operations}
    return DoorDescription(
        name="fabric",
        about="Operations and tools by name, lists, registration, health and metrics.",
        page="architecture.md",
        paths=(
            PathDescription(
                method="POST",
                path="/mcp/call",
                summary="Run an operation or a tool. With the argument `stream: true` the reply is a stream of events.",
                body=_REQUEST,
                example=_SUM,
                headers=_ERROR_FORMAT,
            ),
            PathDescription(
                method="GET",
                path="/mcp/call",
                summary="The same over a WebSocket: each message is such a request, with an `id` for its replies.",
                status=WEBSOCKET,
                reply=EVENTS,
            ),
            *(
                PathDescription(
                    method="GET", path=path, summary=by_name[name].description, query=by_name[name].input_schema
                )
                for path, name in operation_paths.items()
            ),
            PathDescription(
                method="GET",
                path="/mcp/agent/{agent_id}",
                summary="One agent, as `fabric.agent.describe` tells it.",
                values={"agent_id": "percy"},
            ),
            PathDescription(
                method="POST",
                path="/mcp/register_agent",
                summary="Register an agent, as `fabric.agent.register` does.",
                body=RegisterArguments,
                example=_NEW_AGENT,
            ),
            PathDescription(
                method="GET",
                path="/health",
                summary="Whether the node is well. Always 200 while the process answers.",
                credentials="none",
            ),
            PathDescription(
                method="GET", path="/monitoring/status", summary="Agents, tools and addresses, for monitoring."
            ),
            PathDescription(
                method="GET", path="/monitoring/health", summary="The node's health, with the state of its agents."
            ),
            *(
                PathDescription(
                    method="GET", path=path, summary="Metrics in the Prometheus text format.", reply="text/plain"
                )
                for path in metrics_paths
            ),
        ),
    )
