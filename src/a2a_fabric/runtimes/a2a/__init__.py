"""Runtime: an agent that speaks A2A, 1.0 or 0.3, by JSON-RPC, HTTP+JSON or gRPC. Every skill is a capability.

Its card says which of them, and where (`card`, `discovery`, `contact`). A call becomes a
message (`outgoing`), goes over the line that its binding needs (`line`), and what comes back,
in whichever form (`wire`), is one of four things said (`said`), which are gathered until the
task is over (`exchange`, `gathering`) and become a result, or a question (`result`, `questions`).

JSON goes through the node's own client and is read with msgspec, leniently: the SDK's strict
parsing costs sixteen times as much and fails where a peer is careless. gRPC uses the SDK's stubs.
"""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.runtimes.a2a.card import is_card
from a2a_fabric.runtimes.a2a.endpoint import endpoint_of
from a2a_fabric.runtimes.a2a.runtime import A2ARuntime
from a2a_fabric.runtimes.context import RuntimeContext


def build(manifest: Manifest, context: RuntimeContext) -> A2ARuntime:
    """Raises BadInput if the endpoint leads nowhere."""
    endpoint = endpoint_of(manifest)
    if isinstance(endpoint.card, dict) and not is_card(endpoint.card):
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a bad endpoint: its card needs a name, and skills or interfaces",
            agent_id=manifest.agent_id,
        )
    return A2ARuntime(manifest, endpoint, context)
