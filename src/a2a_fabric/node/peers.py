"""The other processes of a node and of its mesh: how the node joins them, and what it does for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from a2a_fabric.config import DEFAULT_NODE_ID, Config
from a2a_fabric.core.agent import MESH_RUNTIME, Manifest, Status, is_elsewhere
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.spans import Span
from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.mesh.services import PeerServices
from a2a_fabric.node.agents import AgentParts
from a2a_fabric.node.calls import CallParts
from a2a_fabric.node.context import NodeContext
from a2a_fabric.node.limits import NodeLimits
from a2a_fabric.node.runtimes import RuntimeParts
from a2a_fabric.telemetry.history import CallHistory

if TYPE_CHECKING:
    from a2a_fabric.mesh.peers import Peers
    from a2a_fabric.mesh.workers import Workers


def find_peers(config: Config, workers: Workers | None, limits: NodeLimits) -> Peers | None:
    """None for a node that is one process without a mesh. Raises ConfigError."""
    if workers is None and config.mesh is None:
        return None
    if config.mesh is not None and config.node_id == DEFAULT_NODE_ID:
        raise ConfigError("mesh: every node of a mesh has a name of its own. Set `node_id` to this node's")
    package = load_module("a2a_fabric.mesh.peers")  # most nodes are one process
    peers: Peers = package.Peers(
        workers,
        config.mesh,
        config.node_id,
        count_calls=lambda: limits.calls.used,
        reply_bytes=config.limits.reply_bytes,
    )
    return peers


def build_peer_services(
    context: NodeContext,
    agents: AgentParts,
    runtimes: RuntimeParts,
    calls: CallParts,
    app: ASGIApp,
    answer_admin: Callable[[str, dict[str, Any]], Awaitable[Any]],
    make_room: Callable[[str, int], bool],
) -> PeerServices:
    """What the node does for its peers."""

    async def read_trace(trace_id: str) -> Sequence[Span]:
        return await _read_trace(context.call_history, trace_id)

    return PeerServices(
        find_agent=agents.find,
        load_runtime=runtimes.pool.load_runtime,
        call_agent=runtimes.pool.find_handler,
        route_call=calls.route,
        call=calls.call_for_node,
        bind_call=context.policy.bind_call,
        on_agent_changed=agents.health_monitor.refresh,
        render_metrics=context.telemetry.metrics.render_exposition,
        doors=app,
        body_limit=context.limits.body,
        read_trace=read_trace,
        answer_admin=answer_admin,
        make_room=make_room,
    )


async def join_mesh(context: NodeContext, agents: AgentParts, calls: CallParts, services: PeerServices) -> None:
    """Offer the agents of this node, and take in those of others; nothing for a node without a mesh."""
    if context.peers is None or context.peers.mesh is None:
        return
    registry = agents.registry

    def set_status(agent_id: str, status: Status, error: str | None) -> None:
        """What another node says of its agent, unless this node has one of the same name."""
        manifest = registry.catalog.get(agent_id)
        if manifest is None or manifest.runtime == MESH_RUNTIME:
            registry.health.set_status(agent_id, status, error)

    def find_own(agent_id: str) -> Manifest | None:
        manifest = registry.catalog.get(agent_id)
        return None if manifest is None or is_elsewhere(manifest) else manifest

    context.peers.mesh.agents.find_own = find_own
    calls.gateway.nodes = context.peers.mesh
    context.telemetry.metrics.add_source(context.peers.mesh.render_metrics)
    await context.peers.join_mesh(services, registry, set_status)


async def _read_trace(history: CallHistory | None, trace_id: str) -> Sequence[Span]:
    """For the operator of another node of the mesh."""
    if history is None:
        return ()
    await history.flush()
    return [span for record in await history.read_trace(trace_id, None) for span in record.spans]
