"""Runtime: another Fabric node, and each of its agents.

    {agent_id: lab, runtime: fabric, endpoint: {uri: "https://fabric.lab.example", psk: "env:LAB_PSK"}}

makes the agents of that node appear here as `lab/…`; `lab` itself answers to
`AGENT.CAPABILITY`. With `agent: percy` in the endpoint the entry is that one agent,
under an id of this node's choosing.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import UNNAMED
from a2a_fabric.core.errors import AgentOffline, BadInput, CapabilityNotFound
from a2a_fabric.core.listing import Listed, Listing, is_imported, node_of
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.fabric_call import NodeCall
from a2a_fabric.runtimes.fabric_list import listed, published
from a2a_fabric.runtimes.fabric_node import NodeWay
from a2a_fabric.runtimes.farewells import Farewells
from a2a_fabric.runtimes.published import complete

_ASK_SECONDS = 5.0
_WAIT_MS = 20_000  # for news of a node's agents; shorter than proxies keep silent connections
_GRACE = 10.0  # beyond that, until a node that says nothing counts as away


class FabricEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    psk: str | None = None
    agent: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class AgentThere:
    """One agent of another node."""

    def __init__(self, manifest: Manifest, agent: str, way: NodeWay) -> None:
        self._manifest = manifest
        self._agent = agent
        self._way = way
        self._farewells = Farewells(manifest.agent_id)
        self._is_listed = is_imported(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        prefix = f"{self._way.name}/" if self._is_listed else ""
        asked = NodeCall(
            self._way, self._farewells, self._agent, call.target.capability, prefix=prefix, call=call, emit=emit
        )
        return await asked.result()

    async def health(self) -> Status:
        """How an agent is that the node lists is known from there, and need not be asked for each of them."""
        return "unknown" if self._is_listed else (await self._described()).status

    async def describe(self) -> Manifest:
        return complete(self._manifest, (await self._described()).manifest)

    async def aclose(self) -> None:
        await self._farewells.aclose()

    async def _described(self) -> Listed:
        said = await self._way.ask("fabric.agent.describe", {"agent_id": self._agent}, _ASK_SECONDS)
        found = published(said.data.get("agent"))
        if found is None:
            raise AgentOffline(f"Node '{self._way.name}' describes agent '{self._agent}' in words unknown here")
        return found


class NodeThere:
    """The node itself."""

    def __init__(self, manifest: Manifest, way: NodeWay) -> None:
        self._manifest = manifest
        self._way = way
        self._farewells = Farewells(manifest.agent_id)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        """`percy.reason` is the capability `reason` of the node's agent `percy`."""
        agent, _, capability = call.target.capability.rpartition(".")
        if not agent or not capability:
            raise CapabilityNotFound(self._manifest.agent_id, call.target.capability, ["AGENT.CAPABILITY"])
        prefix = f"{self._way.name}/"
        asked = NodeCall(self._way, self._farewells, agent, capability, prefix=prefix, call=call, emit=emit)
        return await asked.result()

    async def listing(self, known: str | None) -> Listing:
        wish = {"known": known, "wait_ms": _WAIT_MS} if known is not None else {}
        within = _GRACE + (_WAIT_MS / 1000 if known is not None else 0)
        said = await self._way.ask("fabric.agent.list", {"details": True, **wish}, within)
        revision, node_id = said.data.get("revision"), said.data.get("node_id")
        where = node_id if isinstance(node_id, str) else UNNAMED
        return Listing(
            agents=None if said.data.get("unchanged") is True else listed(said.data.get("agents"), where),
            revision=revision if isinstance(revision, str) else None,
        )

    async def health(self) -> Status:
        await self._way.ask("fabric.health", {}, _ASK_SECONDS)
        return "online"

    async def describe(self) -> Manifest:
        """What it offers are its agents, each in its own right."""
        told = (await self._way.ask("fabric.health", {}, _ASK_SECONDS)).data
        version = told.get("software_version")
        about = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            description=f"Fabric node '{told.get('node_id')}'",
            version=version if isinstance(version, str) else "",
        )
        return complete(self._manifest, about)

    async def aclose(self) -> None:
        await self._farewells.aclose()


def build(manifest: Manifest, context: RuntimeContext) -> AgentThere | NodeThere:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, FabricEndpoint)
    if "@" in urlsplit(endpoint.uri).netloc:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put the node's key into `psk`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    way = NodeWay(node_of(manifest.agent_id), endpoint.uri, endpoint.psk, context.http, context.reply_bytes)
    return NodeThere(manifest, way) if endpoint.agent is None else AgentThere(manifest, endpoint.agent, way)
