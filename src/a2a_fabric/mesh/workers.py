"""The workers of one node: which of them holds an agent, and how each reaches the others.

Every worker is a whole node with the same configuration and the same store, on the same port. What the store keeps
(jobs, messages, registrations, keys) they share already. An agent with state in a process of ours (a program, a Python
agent) exists once: the worker that its id hashes to holds it. Agents at addresses are called by every worker itself."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.mesh.runtime import PeerRuntime
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.telemetry.exposition import merge_expositions

_log = logging.getLogger(__name__)
_HELD_RUNTIMES = frozenset({"agent-client", "claude", "git", "process", "python"})
_NOTIFY_TIMEOUT = 5.0
_ROOM_TIMEOUT = 2.0  # seconds in which another worker is to close a session for a new one
_START_TIMEOUT = 4.0  # seconds for which a call waits for a worker that is starting; less than a probe waits


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One of `count` workers. `folder` holds their private sockets; only the user of the node can open it."""

    number: int
    count: int
    folder: str
    prefix: str = ""  # of the names of all workers: in a mesh, the node's own name

    @property
    def name(self) -> str:
        return self.name_of(self.number)

    def name_of(self, number: int) -> str:
        return f"{self.prefix}w{number}"

    def divide(self, number: int) -> int:
        """The part of this worker if all of them share so many."""
        whole, rest = divmod(number, self.count)
        return whole + (self.number < rest)

    def socket_path(self, number: int | None = None) -> Path:
        return Path(self.folder) / f"w{self.number if number is None else number}.sock"


class Workers:
    """The other workers, as this one sees them. Without others it does nothing, and costs nothing."""

    def __init__(
        self,
        place: WorkerPlace,
        reply_bytes: int,
        kind_of: Callable[[Manifest], str],
        counts: SharedCounts | None = None,
    ) -> None:
        """`kind_of` names an agent's runtime; raises FabricError if that cannot be told. `counts`: what all of them
        use of the limits of the node.
        """
        self.place = place
        self.counts = counts
        self._kind_of = kind_of
        others = [number for number in range(place.count) if number != place.number]
        self._clients = {
            number: OutboundClient(
                unix_socket=place.socket_path(number), connect_timeout=_START_TIMEOUT, when_full="open"
            )
            for number in others
        }
        self.peers = {
            place.name_of(number): PeerClient(f"worker {number}", "http://worker", client, reply_bytes)
            for number, client in self._clients.items()
        }
        self._notices: set[asyncio.Task[None]] = set()

    def find_holder(self, manifest: Manifest) -> PeerClient | None:
        """The worker that holds the agent; None if this one does, or every worker calls it."""
        if not self.is_held(manifest):
            return None
        digest = hashlib.blake2b(manifest.agent_id.encode(), digest_size=8).digest()
        return self.peers.get(self.place.name_of(int.from_bytes(digest, "big") % self.place.count))

    def is_held(self, manifest: Manifest) -> bool:
        """Whether the agent lives in a process of ours, so that a second one would have a state of its own."""
        if manifest.is_tool:
            return False
        if "command" in manifest.endpoint or manifest.endpoint.get("transport") == "local":
            return True
        try:
            return self._kind_of(manifest) in _HELD_RUNTIMES
        except FabricError:  # its health says why
            return False

    def notify_changed(self, agent_id: str) -> None:
        """Tell the others that an agent of this worker offers something else now."""
        for peer in self.peers.values():
            task = asyncio.ensure_future(self._notify(peer, agent_id))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    def build_runtime(self, manifest: Manifest, on_listing_changed: Callable[[], None]) -> PeerRuntime | None:
        """The runtime of an agent that another worker holds; None for others."""
        holder = self.find_holder(manifest)
        return None if holder is None else PeerRuntime(manifest, holder, on_listing_changed)

    async def make_room(self, owner: str, held: int) -> bool:
        """Whether another worker has closed a session for this caller, who has `held` in all of them."""
        for peer in self.peers.values():
            try:
                async with asyncio.timeout(_ROOM_TIMEOUT):
                    if await peer.make_room(owner, held):
                        return True
            except (FabricError, TimeoutError) as error:  # it is being started again; another one may have room
                _log.warning("%s was not asked to close a session for %s: %s", peer.name, owner, error)
        return False

    def merge_metrics(self, render_own: Callable[[], Awaitable[bytes]]) -> Callable[[], Awaitable[bytes]]:
        """All workers as one process. A worker that does not answer in time is left out of a scrape."""

        async def render() -> bytes:
            others = asyncio.gather(*(self._read_metrics(peer) for peer in self.peers.values()))
            return merge_expositions([await render_own(), *await others])

        return render

    async def _read_metrics(self, peer: PeerClient) -> bytes:
        try:
            async with asyncio.timeout(_NOTIFY_TIMEOUT):
                return await peer.read_metrics()
        except (FabricError, TimeoutError) as error:
            _log.warning("the metrics of %s are missing from this scrape: %s", peer.name, error)
            return b""

    def find_holder_name(self, manifest: Manifest) -> str | None:
        """As `find_holder`, by name."""
        holder = self.find_holder(manifest)
        return next((name for name, peer in self.peers.items() if peer is holder), None)

    async def _notify(self, peer: PeerClient, agent_id: str) -> None:
        try:
            async with asyncio.timeout(_NOTIFY_TIMEOUT):
                await peer.notify_changed(agent_id)
        except (FabricError, TimeoutError) as error:  # it asks the agent again by itself, only later
            _log.debug("%s was not told of a change of %s: %s", peer.name, agent_id, error)

    async def aclose(self) -> None:
        await cancel_and_wait(*self._notices)
        for client in self._clients.values():
            await client.aclose()
