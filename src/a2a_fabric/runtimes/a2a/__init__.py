"""Runtime for agents that speak A2A 1.0 or 0.3 over JSON-RPC, HTTP+JSON or gRPC. Every skill is a capability.

`connection` fetches the agent card and picks an interface, `messages` turns a call into a message,
`client` and `grpc_client` send it. `task_follower` collects the replies in a `reply_buffer` until the task
has ended or needs input, and the buffer becomes a result or a question (`questions`). The wire format is
in `protocols.a2a`.

JSON is sent with the node's own HTTP client; only gRPC uses the SDK, for its stubs."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.protocols.a2a.card import is_card
from a2a_fabric.runtimes.a2a.endpoint import read_endpoint
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from a2a_fabric.runtimes.context import RuntimeContext


def build(manifest: Manifest, context: RuntimeContext) -> A2ARuntime:
    """Raises BadInput if the endpoint is invalid."""
    endpoint = read_endpoint(manifest)
    if isinstance(endpoint.card, dict) and not is_card(endpoint.card):
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a bad endpoint: its card needs a name, and skills or interfaces",
            agent_id=manifest.agent_id,
        )
    return A2ARuntime(manifest, endpoint, context)


plugin = RuntimePlugin(build=build)
