"""The agents of other nodes: a source of the catalog, and the runtime that calls them.

The same agent may be held by several nodes. A call goes to a node of the own site first, then to the least busy one,
and among equals to the first by name. If that node cannot be reached, so that the call certainly never ran, the next
one gets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, Protocol

import msgspec

from a2a_fabric.core.agent import MESH_RUNTIME, Audience, ListedAgent, Manifest, Status, TrustTier
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.result import Result
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.mesh.settings import SharedAgents

_log = logging.getLogger(__name__)
OnChange = Callable[[], Awaitable[None]]


class Holder(Protocol):
    """A node that holds an agent."""

    name: str
    site: str

    @property
    def peer(self) -> PeerClient: ...

    @property
    def is_leaving(self) -> bool:
        """It finishes its calls, and gets no new ones if another node can take them."""
        ...

    @property
    def calls(self) -> int:
        """How busy it is: what it last said, and what this node has sent there since."""
        ...


class MeshAgents:
    """Source: all agents that other nodes offer. `own_site` comes first.

    News of a node concern its own agents only, so they cost what that node has, however large the mesh is.
    """

    name = "mesh"

    def __init__(self, own_site: str, imports: SharedAgents) -> None:
        self.own_site = own_site
        self.on_status: Callable[[str, Status, str | None], None] = lambda *_: None  # the status of an agent changed
        self.find_own: Callable[[str], Manifest | None] = lambda _: None  # an agent of this node
        self._conflicts: set[str] = set()  # agents of which several nodes say different things
        self._imports = imports
        self._holders: dict[str, Holder] = {}
        self._listings: dict[str, dict[str, ListedAgent]] = {}  # by node; those of nodes that are gone stay, as offline
        self._nodes_of: dict[str, set[str]] = {}  # by agent
        self._statuses: dict[str, tuple[Status, str | None]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._changed = asyncio.Event()

    def set_listing(self, holder: Holder, agents: Iterable[ListedAgent]) -> None:
        """What a node offers now."""
        is_foreign = holder.site != self.own_site
        listed = {
            each.manifest.agent_id: each for each in agents if not is_foreign or is_shared(self._imports, each.manifest)
        }
        previous = self._listings.get(holder.name, {})
        was_here = holder.name in self._holders
        self._holders[holder.name] = holder
        self._listings[holder.name] = listed
        for agent_id in previous.keys() - listed.keys():
            self._nodes_of[agent_id].discard(holder.name)
        for agent_id in listed.keys() - previous.keys():
            self._nodes_of.setdefault(agent_id, set()).add(holder.name)
        changed = previous.keys() ^ listed.keys()
        changed |= {each for each in listed.keys() & previous.keys() if listed[each] != previous[each]}
        self._update(changed if was_here else previous.keys() | listed.keys())

    def remove(self, name: str) -> None:
        """The node is gone."""
        if self._holders.pop(name, None) is not None:
            self._update(self._listings[name])

    @property
    def manifests(self) -> Mapping[str, Manifest]:
        return self._manifests

    def find_holders(self, agent_id: str) -> list[Holder]:
        """The nodes that hold the agent, the best first."""
        holders = [self._holders[name] for name in self._nodes_of.get(agent_id, ()) if name in self._holders]
        if len(holders) < 2:
            return holders
        return sorted(holders, key=lambda each: (each.is_leaving, each.site != self.own_site, each.calls, each.name))

    def get_status(self, agent_id: str) -> tuple[Status, str | None]:
        return self._statuses.get(agent_id, ("offline", "no node of the mesh holds it"))

    def describe(self, agent_id: str) -> Manifest | None:
        return self._manifests.get(agent_id)

    async def load(self) -> Sequence[Manifest]:
        return list(self._manifests.values())

    async def watch(self, on_change: OnChange) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await on_change()

    def _update(self, agent_ids: Iterable[str]) -> None:
        has_news = False
        for agent_id in sorted(agent_ids):
            # Those of nodes that are here, by name; then those of nodes that are gone.
            names = sorted(self._nodes_of[agent_id], key=lambda name: (name not in self._holders, name))
            if not names:
                del self._nodes_of[agent_id], self._manifests[agent_id]
                self._statuses.pop(agent_id, None)
                has_news = True
                continue
            manifest = self._listings[names[0]][agent_id].manifest
            if self._manifests.get(agent_id) != manifest:  # the same object tells the registry that nothing changed
                self._manifests[agent_id] = manifest
                has_news = True
            self._set_status(agent_id, names)
            self._report_conflict(agent_id, names)
        if has_news:
            self._changed.set()

    def _report_conflict(self, agent_id: str, names: Sequence[str]) -> None:
        """Agents of one name are replicas if they are the same; else two sites have chosen one name."""
        offers = [(f"node {name}", self._listings[name][agent_id].manifest) for name in names if name in self._holders]
        if (own := self.find_own(agent_id)) is not None:
            offers.insert(0, ("this node", own))
        other = next((name for name, manifest in offers[1:] if _is_another_agent(manifest, offers[0][1])), None)
        if other is None:
            self._conflicts.discard(agent_id)
        elif agent_id not in self._conflicts:
            self._conflicts.add(agent_id)
            _log.warning(
                "agent %s is not the same at %s and at %s: capabilities or access differ. Callers of this node see "
                "that of %s. Give one of them another agent_id", agent_id, offers[0][0], other, offers[0][0],
            )  # fmt: skip

    def _set_status(self, agent_id: str, names: Sequence[str]) -> None:
        """The best that one of its nodes says."""
        here = [self._listings[name][agent_id] for name in names if name in self._holders]
        best = min(here, key=lambda each: _RANK[each.status], default=None)
        status: tuple[Status, str | None] = (
            ("offline", f"node '{names[0]}' left the mesh") if best is None else (best.status, best.error)
        )
        if self._statuses.get(agent_id) != status:
            self._statuses[agent_id] = status
            self.on_status(agent_id, *status)


def _is_another_agent(one: Manifest, other: Manifest) -> bool:
    """An agent without capabilities has not been asked for them yet."""
    if not one.capabilities or not other.capabilities:
        return False
    names = [{each.name for each in manifest.capabilities} for manifest in (one, other)]
    return names[0] != names[1] or (one.trust_tier, one.audience) != (other.trust_tier, other.audience)


_RANK: dict[Status, int] = {"online": 0, "degraded": 1, "unknown": 2, "offline": 3}


def export_agent(manifest: Manifest, node_id: str) -> Manifest:
    """An agent of this node as others get it: not how this node reaches it."""
    return msgspec.structs.replace(
        manifest, endpoint={"transport": "mesh"}, runtime=MESH_RUNTIME, node_id=node_id, tools=None
    )


def is_shared(shared: SharedAgents, manifest: Manifest) -> bool:
    """Whether an agent may cross the border of a site."""
    tiers: tuple[TrustTier, ...] | None = shared.tiers
    audiences: tuple[Audience, ...] | None = shared.audiences
    return (
        (shared.agents is None or any(fnmatchcase(manifest.agent_id, pattern) for pattern in shared.agents))
        and (shared.tags is None or not set(shared.tags).isdisjoint(manifest.tags))
        and (tiers is None or manifest.trust_tier in tiers)
        and (audiences is None or manifest.audience is None or manifest.audience in audiences)
    )


class MeshRuntime:
    """Runtime: an agent that one or several other nodes hold."""

    enforces_deadline: Literal[True] = True  # the other node does

    def __init__(self, manifest: Manifest, agents: MeshAgents) -> None:
        self._manifest = manifest
        self._agents = agents

    async def __call__(self, call: Call, emit: Emit) -> Result:
        agent_id = self._manifest.agent_id
        if call.target.agent_id != agent_id:  # an attempt at a fallback keeps the call's own target
            call = msgspec.structs.replace(call, target=msgspec.structs.replace(call.target, agent_id=agent_id))
        failure: FabricError | None = None
        for holder in self._agents.find_holders(agent_id):
            try:
                return await holder.peer.call(call, emit, "node")
            except AgentOffline as error:  # it certainly never ran there
                failure = error
                _log.info("agent %s was not reached at node %s: %s", agent_id, holder.name, error.full_message)
        if failure is not None:
            raise failure
        _, reason = self._agents.get_status(agent_id)
        raise AgentOffline(f"Agent '{agent_id}' cannot be reached: {reason}", agent_id=agent_id)

    async def health(self) -> Status:
        """What its nodes say, without a request."""
        status, reason = self._agents.get_status(self._manifest.agent_id)
        if status == "offline":
            raise AgentOffline(reason or "its node says that it is offline")
        return status

    async def describe(self) -> Manifest:
        return self._agents.describe(self._manifest.agent_id) or self._manifest

    async def aclose(self) -> None:
        """It holds nothing."""
