"""Runtime for agents that speak A2A 1.0 or 0.3 over JSON-RPC, HTTP+JSON or gRPC. Every skill is a capability.

`connection` fetches the agent card and picks an interface, `messages` turns a call into a message,
`client` and `grpc_client` send it. `task_follower` collects the replies in a `reply_buffer` until the task
has ended or needs input, and the buffer becomes a result or a question (`messages`). The wire format is
in `protocols.a2a`.

JSON is sent with the node's own HTTP client; only gRPC uses the SDK, for its stubs."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.runtimes.a2a.connection import read_endpoint
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from a2a_fabric.runtimes.context import RuntimeContext


def build(manifest: Manifest, context: RuntimeContext) -> A2ARuntime:
    """Raises BadInput if the endpoint is invalid."""
    return A2ARuntime(manifest, read_endpoint(manifest), context)


plugin = RuntimePlugin(build=build)
