"""The other processes of this node and of its mesh, as the composition root sees them: one object for both.

A node that is one process without a mesh has none, and pays nothing."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from a2a_fabric.core.agent import MESH_RUNTIME, Manifest, Status
from a2a_fabric.core.call import Step
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.ports import AgentSource, Runtime, load_module
from a2a_fabric.doors.context import ASGIApp
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.mesh.direct import DIRECT_PATH
from a2a_fabric.mesh.exports import ExportedAgents
from a2a_fabric.mesh.relay import OWNER_MARK, RequestRelay, forward_answers
from a2a_fabric.mesh.services import PeerServices, refuse_admin, refuse_room
from a2a_fabric.mesh.settings import NODE_NAME, MeshSettings
from a2a_fabric.mesh.workers import Workers
from a2a_fabric.registry.registry import Registry

if TYPE_CHECKING:
    from a2a_fabric.mesh.node import Mesh

_log = logging.getLogger(__name__)


def _load_mesh() -> type[Mesh]:
    """Raises ConfigError if the library for NATS is not installed."""
    try:
        mesh: type[Mesh] = load_module("a2a_fabric.mesh.node").Mesh
    except ImportError as exc:
        reason = f"{exc.name or exc} is not installed"
        raise ConfigError(f"mesh: {reason}. Install it with: pip install 'a2a-fabric[nats]'") from exc
    return mesh


class Peers:
    def __init__(
        self,
        workers: Workers | None,
        settings: MeshSettings | None,
        node_id: str,
        *,
        count_calls: Callable[[], int],
        reply_bytes: int,
    ) -> None:
        """Raises ConfigError."""
        if settings is not None and not NODE_NAME.fullmatch(node_id):
            raise ConfigError("mesh: the `node_id` of a node in a mesh has letters, digits, `-` and `_` only")
        member = node_id if workers is None else workers.place.name
        if settings is not None and settings.direct is not None and workers is not None:
            _log.warning("mesh.direct: this node has several workers, so calls between nodes go over NATS")
            settings = replace(settings, direct=None)  # one port, and each worker is a member of its own
        self._settings = settings
        self._node_id = node_id
        self.workers = workers
        self.mesh: Mesh | None = None
        if settings is not None:
            self.mesh = _load_mesh()(settings, node_id, member, count_calls=count_calls, reply_bytes=reply_bytes)
        self.owner_tag = f"{OWNER_MARK}{member}"
        maps: list[MutableMapping[str, PeerClient]] = [
            *([] if workers is None else [workers.peers]),  # nearer than through the mesh
            *([] if self.mesh is None else [self.mesh.peers]),
        ]
        self._clients: ChainMap[str, PeerClient] = ChainMap(*maps)

    async def join_mesh(
        self, services: PeerServices, registry: Registry, on_status: Callable[[str, Status, str | None], None]
    ) -> None:
        """Offer the agents of this node, and take in those of others. `on_status` is told what others say of theirs."""
        if self.mesh is None or self._settings is None:
            return
        exports = ExportedAgents(
            self._node_id,
            self._settings.site,
            self._settings.exports,
            list_agents=lambda: registry.catalog.agents,
            get_health=registry.health.get,
            get_revision=lambda: registry.changes.revision,
            wait_for_change=registry.changes.wait,
        )
        self.mesh.agents.on_status = on_status
        own = replace(services, list_agents=exports.list_for, answer_admin=refuse_admin, make_room=refuse_room)
        await self.mesh.start(own, exports)

    @property
    def endpoints(self) -> Mapping[str, ASGIApp]:
        """What other nodes reach on the port of this one, by path."""
        if self.mesh is None or self.mesh.direct is None:
            return {}
        return {DIRECT_PATH: self.mesh.direct.endpoint}

    @property
    def sources(self) -> list[AgentSource]:
        return [] if self.mesh is None else [self.mesh.agents]

    def build_runtime(self, manifest: Manifest, on_listing_changed: Callable[[], None]) -> Runtime | None:
        """The runtime of an agent that another process holds; None for others."""
        if manifest.runtime == MESH_RUNTIME:
            return None if self.mesh is None else self.mesh.build_runtime(manifest)
        return None if self.workers is None else self.workers.build_runtime(manifest, on_listing_changed)

    def build_relay(
        self, find_agent: Callable[[str], Manifest | None], body_limit: BodyLimit
    ) -> Callable[[ASGIApp], ASGIApp]:
        """What hands requests of clients to the process that they belong to."""

        def find_holder(agent_id: str) -> str | None:
            manifest = find_agent(agent_id)
            if manifest is None:
                return None
            if manifest.runtime == MESH_RUNTIME:
                return None if self.mesh is None else self.mesh.find_node(agent_id)
            return None if self.workers is None else self.workers.find_holder_name(manifest)

        def is_known(agent_id: str) -> bool:
            return find_agent(agent_id) is not None

        return RequestRelay(self._clients, find_holder, is_known, self._wait_for_return, body_limit).wrap

    async def _wait_for_return(self, name: str) -> PeerClient | None:
        """The peer of this name, if it is being restarted: workers wait for each other when they connect."""
        return None if self.mesh is None else await self.mesh.wait_for_return(name)

    def forward_answers(self) -> Step:
        return forward_answers(self._clients)

    def notify_changed(self, agent_id: str) -> None:
        """An agent of this process offers something else now."""
        if self.workers is not None:
            self.workers.notify_changed(agent_id)

    def merge_metrics(self, render_own: Callable[[], Awaitable[bytes]]) -> Callable[[], Awaitable[bytes]]:
        return render_own if self.workers is None else self.workers.merge_metrics(render_own)

    async def finish_received(self, timeout: float) -> None:
        """Answer what other nodes have asked this one, before the node closes."""
        if self.mesh is not None:
            await self.mesh.finish_received(timeout)

    def stop(self) -> None:
        if self.mesh is not None:
            self.mesh.stop()

    async def aclose(self) -> None:
        if self.mesh is not None:
            await self.mesh.aclose()
        if self.workers is not None:
            await self.workers.aclose()
