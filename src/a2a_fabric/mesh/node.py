"""This node in the mesh: it announces itself, keeps up with the others, and carries requests between them over NATS.

If NATS is away, the node goes on with its own agents; those of others are offline until they are heard of again. Calls
between agents and callers of the same node never touch NATS."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from math import inf
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError, FabricError
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.ports import MeshNode
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.spans import Span
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.mesh.agents import MeshAgents, MeshRuntime
from a2a_fabric.mesh.app import PeerApp
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.mesh.direct import DirectCalls, NodeStart
from a2a_fabric.mesh.exports import ExportedAgents
from a2a_fabric.mesh.mailbox import NodeMailbox
from a2a_fabric.mesh.membership import (
    OLDEST_PROTOCOL,
    PROTOCOL,
    STOPPED,
    Announcement,
    Member,
    Membership,
    describe_mismatch,
)
from a2a_fabric.mesh.node_peer import NodePeer
from a2a_fabric.mesh.server_fit import MissingRights, describe_small_payload
from a2a_fabric.mesh.services import PeerServices
from a2a_fabric.mesh.settings import MeshSettings
from a2a_fabric.nats.address import parse_nats_address
from a2a_fabric.nats.connection import NatsConnection, NatsRefused, NatsUnavailable
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.version import __version__

_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT = 5.0
_TRACE_TIMEOUT = 2.0
_MAX_PAUSE = 10.0
_JOIN_SECONDS = 0.5
_RETURN_TIMEOUT = 15.0  # seconds for which a request waits for a node that is being restarted
_RESTART_SECONDS = 60.0  # a node that stopped may be back within them
_MAX_TOLD = 100  # nodes with another key, each of which the log names once
_SETTLE_SECONDS = 0.05  # changes within it are announced together
_encode = msgspec.msgpack.Encoder().encode
_announcement_decoder = msgspec.msgpack.Decoder(Announcement)


class _OtherNode:
    """Another member; a `Holder` of agents."""

    def __init__(self, member: Member, peer: NodePeer) -> None:
        self.member = member
        self.peer = peer
        self.name = member.name
        self.site = member.announcement.site
        self.fetching: asyncio.Task[None] | None = None

    @property
    def is_leaving(self) -> bool:
        return self.member.announcement.state == "draining"

    @property
    def calls(self) -> int:
        return max(self.member.announcement.calls, self.peer.under_way)


class Mesh:
    """`member` is the name of this process in the mesh: that of the node, or of one of its workers.

    `count_calls` is how many calls this node works on.
    """

    def __init__(
        self,
        settings: MeshSettings,
        node_id: str,
        member: str,
        *,
        count_calls: Callable[[], int] = lambda: 0,
        reply_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self._settings = settings
        self._node_id = node_id
        self.member = member
        self.start_id = new_id()
        self._started_at = time.time()
        self._count_calls = count_calls
        self._reply_bytes = reply_bytes
        self._address = parse_nats_address(settings.nats)
        _require_key(settings, self._address.settings.servers)
        self._prefix = f"fabric.{settings.name}"
        self._announcements = (f"{self._prefix}.announce", f"{self._prefix}.announce.{member}")  # subjects
        self._key = None if settings.key is None else hashlib.sha256(b"mesh\0" + settings.key.encode()).digest()
        self.agents = MeshAgents(settings.site, settings.imports)
        self.peers: dict[str, PeerClient] = {}
        self._others: dict[str, _OtherNode] = {}
        self._membership = Membership(
            self.member,
            self.start_id,
            self._started_at,
            on_join=self._on_join,
            on_leave=self._on_leave,
            on_change=self._fetch_soon,
            on_newcomer=lambda name, start_id: self._run_soon(self._announce(name, start_id)),
            on_reconnect=lambda member: self._interrupt(member.name),
        )
        own, direct = NodeStart(member, self.start_id), settings.direct
        self.direct = None if direct is None else DirectCalls(direct, own, self._key, self._membership.is_member)
        self._connection: NatsConnection | None = None
        self._subscribed: object | None = None  # the client that hears announcements
        self._reachable: object | None = None  # the client that receives what is sent to this node
        self._mailbox: NodeMailbox | None = None
        self._exports: ExportedAgents | None = None
        self._state: str = "joining"
        self._connections = 0
        self._announced = 0
        self._unheard = 0  # announcements that were not signed with the key of this node, or could not be read
        self._told_of: set[str] = set()  # nodes of which the log says so
        self._has_joined = False  # it has announced itself, and is reachable
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped_at: dict[str, float] = {}  # nodes that said that they stop, and may be back
        self._rights = MissingRights(self._prefix)
        self._joined = asyncio.Event()  # set, and replaced, when a node joins
        self.problem: str | None = "it is being connected"  # why this node is not in the mesh

    async def start(self, services: PeerServices, exports: ExportedAgents) -> None:
        """Join in the background: a node starts without its mesh."""
        self._exports = exports
        app = PeerApp(services)
        self._mailbox = NodeMailbox(
            self.member,
            self.start_id,
            f"{self._prefix}.node",
            self._publish,
            app,
            body_limit=services.body_limit,
            is_member=self._membership.is_member,
            find_start=self._membership.find_start,
            key=self._key,
            serve_call=app.serve_call,
        )
        if self.direct is not None:
            self.direct.endpoint.open(app.serve_call, services.body_limit)
        self._tasks = [asyncio.ensure_future(self._run())]

    def stop(self) -> None:
        """The node takes no new requests, so the others look elsewhere."""
        self._state = "draining"
        self._run_soon(self._announce())

    async def finish_received(self, timeout: float) -> None:
        """Answer the requests of other nodes that are under way. Requests of this node go on."""
        if self._mailbox is not None:
            await self._mailbox.finish_received(timeout)

    async def wait_for_return(self, name: str) -> PeerClient | None:
        """A node that is being restarted, when it is back. None if it is not, or takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_TIMEOUT):
                while True:
                    other = self._others.get(name)
                    if other is not None and not other.is_leaving:
                        return other.peer
                    if other is None and time.monotonic() - self._stopped_at.get(name, -inf) > _RESTART_SECONDS:
                        return None
                    await self._joined.wait()
        return None

    async def aclose(self) -> None:
        self._state = "left"
        await self._announce()
        await cancel_and_wait(*self._tasks, *(each.fetching for each in self._others.values() if each.fetching))
        for other in self._others.values():
            if other.peer.direct is not None:
                await other.peer.direct.aclose()
        if self._mailbox is not None:
            await self._mailbox.aclose()
        if self._connection is not None:
            await self._connection.aclose()

    def build_runtime(self, manifest: Manifest) -> MeshRuntime:
        return MeshRuntime(manifest, self.agents)

    def list_nodes(self) -> list[MeshNode]:
        """All nodes, this one first."""
        now = time.monotonic()
        own = MeshNode(
            node=self._node_id,
            member=self.member,
            site=self._settings.site,
            version=__version__,
            state=self._state,
            agents=0 if self._exports is None else self._exports.count,
            calls=self._count_calls(),
            started_at=self._started_at,
            heard_seconds=0.0,
            problem=self._membership.conflict or self.problem or self._rights.problem,
        )
        members, refused = self._membership.members, self._membership.refused
        others = [self._describe(each, now) for _, each in sorted({**refused, **members}.items())]
        return [own, *others]

    def _describe(self, member: Member, now: float) -> MeshNode:
        announcement = member.announcement
        mismatch = describe_mismatch(announcement)
        return MeshNode(
            node=announcement.node,
            member=member.name,
            site=announcement.site,
            version=announcement.version,
            state=announcement.state if mismatch is None else "refused",
            agents=announcement.agents,
            calls=announcement.calls,
            started_at=announcement.started_at,
            heard_seconds=round(now - member.heard_at, 1),
            problem=mismatch,
        )

    def find_node(self, agent_id: str) -> str | None:
        """The node to which a call would go now."""
        holders = self.agents.find_holders(agent_id)
        return holders[0].name if holders else None

    async def read_trace(self, trace_id: str) -> list[Span]:
        replies = await asyncio.gather(*(self._read_spans(peer, trace_id) for peer in self.peers.values()))
        return [span for spans in replies for span in spans]

    async def _read_spans(self, peer: PeerClient, trace_id: str) -> list[Span]:
        try:
            async with asyncio.timeout(_TRACE_TIMEOUT):
                return await peer.read_trace(trace_id)
        except (FabricError, TimeoutError) as error:
            _log.info("%s did not tell what it knows of trace %s: %s", peer.name, trace_id, error)
            return []

    def render_metrics(self) -> Iterator[str]:
        nodes = self.list_nodes()
        yield "# HELP fabric_mesh_nodes Nodes of the mesh that this one knows, itself included\n"
        yield f"# TYPE fabric_mesh_nodes gauge\nfabric_mesh_nodes {float(len(nodes))!r}\n"
        yield "# HELP fabric_mesh_joined Whether this node is in its mesh\n# TYPE fabric_mesh_joined gauge\n"
        yield f"fabric_mesh_joined {float(nodes[0].problem is None)!r}\n"
        dropped = self._unheard + (0 if self._mailbox is None else self._mailbox.dropped)
        yield "# HELP fabric_mesh_dropped_messages_total Messages that were not signed or could not be read\n"
        yield f"# TYPE fabric_mesh_dropped_messages_total counter\nfabric_mesh_dropped_messages_total {dropped}\n"
        for name, text in (("agents", "Agents that a node offers"), ("calls", "Calls that a node works on")):
            yield f"# HELP fabric_mesh_node_{name} {text}\n# TYPE fabric_mesh_node_{name} gauge\n"
            for each in nodes:
                labels = f'node="{each.member}",site="{each.site}"'  # both have no characters to escape
                yield f"fabric_mesh_node_{name}{{{labels}}} {float(getattr(each, name))!r}\n"

    async def _run(self) -> None:
        await self._connect()
        assert self._exports is not None  # noqa: S101  # `start` sets it
        await self._announce()
        # A node of the same name says so now.
        await asyncio.sleep(min(_JOIN_SECONDS, self._settings.heartbeat_seconds))
        if self._state == "joining":
            self._state = "up"
        while True:
            await self._open_mailbox()
            await self._try_rights()
            if self._state != "up":  # the registry reports no more changes
                await asyncio.sleep(self._settings.heartbeat_seconds)
            elif await self._exports.refresh(self._settings.heartbeat_seconds):
                await asyncio.sleep(_SETTLE_SECONDS)
                await self._exports.refresh(0)
            await self._announce()
            self._membership.expire(time.monotonic())
            if not self._has_joined and self._reachable is not None:
                self._has_joined = True
                for other in list(self._others.values()):
                    self._fetch_soon(other.member)

    async def _connect(self) -> None:
        pause = 0.5
        while True:
            try:
                self._connection = await self._open_connection()
                break
            except (NatsUnavailable, NatsRefused, ConfigError) as error:
                if self.problem != str(error):
                    self.problem = str(error)
                    _log.warning("this node is not in the mesh: %s. It tries again", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        self._connection.on_connect.append(self._resubscribe)
        self._connection.on_disconnect.append(self._interrupt)
        self._connection.on_missing_right.append(self._note_missing_right)
        await self._subscribe()

    async def _open_connection(self) -> NatsConnection:
        """Raises NatsUnavailable, NatsRefused, ConfigError."""
        name = f"a2a-fabric {self.member}"
        connection = await NatsConnection.open(self._address.settings, name, _CONNECT_TIMEOUT)
        if (reason := describe_small_payload(connection.server_info)) is not None:
            await connection.aclose()
            raise NatsRefused(reason)
        return connection

    def _note_missing_right(self, action: str, subject: str) -> None:
        reason = self._rights.note("publish" if action == "publish" else "subscription", subject, time.monotonic())
        if action == "publish" and self._mailbox is not None:
            self._mailbox.refuse_target(subject, reason)

    async def _try_rights(self) -> None:
        """Try again what NATS refused: its operator may have granted it."""
        due = self._rights.take_due(time.monotonic())
        if not due or self._connection is None or self._mailbox is None or not self._connection.is_connected:
            return
        client, refused = self._connection.client, {subject for action, subject in due if action == "subscription"}
        handlers = {**dict.fromkeys(self._announcements, self._hear), self._mailbox.subject: self._mailbox.receive}
        for subject, handler in handlers.items():
            if subject.lower() in refused:
                await client.subscribe_directly(subject, handler)
        self._try_to_publish()

    def _try_to_publish(self) -> None:
        """An empty message to this node: NATS says at once if this node may send none to nodes."""
        assert self._mailbox is not None  # noqa: S101
        with suppress(ConnectFailed):
            self._publish(self._mailbox.subject, b"")

    def _interrupt(self, node: str | None = None) -> None:
        """The connection of this node, or of another one, was lost: replies that are under way may never arrive."""
        if self._mailbox is not None:
            self._mailbox.interrupt(node)

    def _resubscribe(self) -> None:
        """The connection was made again: by the library, which keeps subscriptions, or as a new one."""
        self._connections += 1
        if self._connection is not None and (reason := describe_small_payload(self._connection.server_info)):
            _log.error("%s", reason)  # another server of the cluster
        self._run_soon(self._subscribe())
        self._run_soon(self._open_mailbox())

    def _run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.ensure_future(work))

    async def _subscribe(self) -> None:
        assert self._connection is not None  # noqa: S101  # connected before
        assert self._mailbox is not None  # noqa: S101
        try:
            client = self._connection.client
        except NatsUnavailable as error:
            self.problem = str(error)
            return
        if client is self._subscribed:
            return  # the library has subscribed again by itself
        self._subscribed = client

        for subject in self._announcements:
            await client.subscribe_directly(subject, self._hear)
        self._try_to_publish()

    async def _open_mailbox(self) -> None:
        """Receive what is sent to this node, unless another one has its name."""
        assert self._connection is not None  # noqa: S101  # connected before
        assert self._mailbox is not None  # noqa: S101
        try:
            client = self._connection.client
        except NatsUnavailable:
            return
        if self._membership.conflict is not None or client is self._reachable:
            return
        self._reachable = client
        await client.subscribe_directly(self._mailbox.subject, self._mailbox.receive)
        self.problem = None
        _log.info("this node joined the mesh %s as %s", self._settings.name, self.member)

    def _publish(self, subject: str, payload: bytes) -> Awaitable[None] | None:
        """What to wait for before more is sent, if NATS is slow.

        Raises ConnectFailed: what is not handed to the connection did not leave.
        """
        try:
            if self._connection is None:
                raise NatsUnavailable("there is no connection to NATS yet")
            client = self._connection.client
            is_alone = self._mailbox is not None and self._mailbox.is_idle
            client.publish_soon(subject.encode(), payload, is_alone=is_alone)
            return client.wait_until_writable() if client.is_congested else None
        except NatsUnavailable as error:
            raise ConnectFailed(f"NATS cannot be reached: {error}") from error
        except Exception as error:  # the library has many
            raise ConnectFailed(f"NATS did not take the message: {error or type(error).__name__}") from error

    async def _announce(self, newcomer: str = "", for_start: str = "") -> None:
        """To all, or to a node that has just joined and knows no other yet; `for_start` is that node's start."""
        if self._membership.conflict is not None and self._state == "up":
            return
        exports = self._exports
        self._announced += 1
        announcement = Announcement(
            member=self.member,
            node=self._node_id,
            start_id=self.start_id,
            started_at=self._started_at,
            version=__version__,
            site=self._settings.site,
            revision="" if exports is None else f"{self.start_id}.{exports.revision}",
            agents=0 if exports is None else exports.count,
            calls=self._count_calls(),
            heartbeat=self._settings.heartbeat_seconds,
            state=self._state,
            protocol=PROTOCOL,
            oldest_protocol=OLDEST_PROTOCOL,
            connections=self._connections,
            url="" if self.direct is None else self.direct.url,
            number=self._announced,
            for_start=for_start,
        )
        content = _encode(announcement)
        if self._key is not None:
            content = self._sign(content) + content
        try:
            self._publish(f"{self._prefix}.announce{newcomer and f'.{newcomer}'}", content)
        except ConnectFailed as error:
            if self.problem is None:
                self.problem = str(error)
                _log.warning("%s", error)
        else:
            self.problem = None

    def _sign(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key or b"", digest_size=16).digest()

    def _hear(self, payload: bytes) -> None:
        content = payload if self._key is None else payload[16:]
        if self._key is not None and not hmac.compare_digest(payload[:16], self._sign(content)):
            self._refuse(payload)
            return
        try:
            announcement = _announcement_decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._refuse(payload)
            return
        self._membership.hear(announcement, time.monotonic())

    def _refuse(self, payload: bytes) -> None:
        """Say once of each node that it has another key. Its name may be false: nothing proves it."""
        self._unheard += 1
        name, reason = "", "it cannot be read"
        for signed in (False, True):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                name = _announcement_decoder.decode(payload[16:] if signed else payload).member
                reason = "it has another `key`" if signed and self._key else "only one of the two has a `key`"
        if name not in self._told_of and len(self._told_of) < _MAX_TOLD:
            self._told_of.add(name)
            _log.warning(
                "an announcement in the mesh %s, said to be of node %.80r, was dropped: %s. Nodes hear each other only "
                "with the same `key` under `mesh`", self._settings.name, name, reason,
            )  # fmt: skip

    def _on_join(self, member: Member) -> None:
        assert self._mailbox is not None  # noqa: S101
        announcement = member.announcement
        link = None
        if self.direct is not None and announcement.url:
            node = NodeStart(member.name, announcement.start_id)
            link = self.direct.link_to(node, announcement.url, self._reply_bytes)
        peer = NodePeer(member.name, self._mailbox, self._reply_bytes, link)
        self.peers[member.name] = peer
        self._stopped_at.pop(member.name, None)
        self._joined.set()
        self._joined = asyncio.Event()
        self._others[member.name] = _OtherNode(member, peer)
        _log.info("node %s (site %s, version %s) is in the mesh", member.name, announcement.site, announcement.version)
        self._run_soon(self._announce(member.name, announcement.start_id))
        self._fetch_soon(member)

    def _on_leave(self, member: Member, reason: str) -> None:
        now = time.monotonic()
        _log.warning("node %s has left the mesh: %s", member.name, reason)
        if reason == STOPPED:
            self._stopped_at = {name: at for name, at in self._stopped_at.items() if at > now - _RESTART_SECONDS}
            self._stopped_at[member.name] = now
        other = self._others.pop(member.name, None)
        self.peers.pop(member.name, None)
        if other is not None and other.fetching is not None:
            other.fetching.cancel()
        if other is not None and other.peer.direct is not None:
            self._run_soon(other.peer.direct.aclose())
        self.agents.remove(member.name)
        if self._mailbox is not None:
            self._mailbox.drop_sender(member.name)
            self._mailbox.drop_target(member.name)

    def _fetch_soon(self, member: Member) -> None:
        """Not before this node has joined: others refuse its requests, and it does not hear their replies."""
        other = self._others[member.name]
        if not self._has_joined:
            return
        if other.fetching is None or other.fetching.done():
            other.fetching = asyncio.ensure_future(self._fetch(other))

    async def _fetch(self, other: _OtherNode) -> None:
        """Read the list of its agents until it is that of the announced revision."""
        pause = 0.1
        while True:
            wanted = other.member.announcement.revision
            try:
                listing = await other.peer.list_agents(self._settings.site)
            except FabricError as error:
                _log.warning("the agents of node %s were not read: %s", other.name, error.full_message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
                continue
            self.agents.set_listing(other, listing.agents or ())
            if other.member.announcement.revision == wanted:
                return


def _require_key(settings: MeshSettings, servers: tuple[str, ...]) -> None:
    """Raises ConfigError for a mesh over a network without a key, because its messages are not signed."""
    hosts = [urlsplit(server).hostname or "" for server in servers]
    if settings.key is None and not all(map(is_loopback, hosts)):
        raise ConfigError(
            f"mesh: NATS at {', '.join(hosts)} is on a network, and without a `key` every client of it could call "
            "any agent as anybody. Set `key: env:MESH_KEY` to one secret at all nodes; `openssl rand -hex 32` makes one"
        )
