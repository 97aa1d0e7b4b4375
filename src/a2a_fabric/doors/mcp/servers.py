"""The MCP servers of the door: one for the whole gateway, and one for each agent that is addressed alone.

A server is built on first use, because importing the SDK takes most of a second. An agent's server is closed
when the agent leaves the catalog. Clients are notified when the catalog changes, and
clients subscribed to `fabric://agents/ID` when that agent's manifest or health changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.ports import load_module
from a2a_fabric.doors.mcp.light_sessions import SavedLog
from a2a_fabric.doors.mcp.light_streams import ChangedList, LightStreams
from a2a_fabric.gateway import Gateway

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.server import McpServer


_log = logging.getLogger(__name__)
_NOTIFY_DELAY = 0.2  # seconds; changes within this time are sent as one
GATEWAY_KEY = ""  # the key of the server for the whole gateway

BuildServer = Callable[[type["McpServer"], Manifest | None], "McpServer"]


class McpServers:
    def __init__(self, gateway: Gateway, build_server: BuildServer, light_streams: LightStreams) -> None:
        self._gateway = gateway
        self._light_streams = light_streams
        self._build_server = build_server
        self._servers: dict[str, McpServer] = {}
        self._open_lock = asyncio.Lock()
        self._server_type: type[McpServer] | None = None
        self._catalog = gateway.registry.catalog
        self._changed: set[str] = set()  # lists changed, perhaps only for a moment: a client may have read them
        self._listings_changed = False  # those of prompts and resources of agents
        self._changed_owners: set[str] = set()  # what they are offered by agents at which they have logins changed
        self._notify_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        gateway.registry.add_listener(self._on_catalog_change)
        gateway.registry.listings.add_listener(self._on_listing_change)

    async def __aenter__(self) -> None:
        """Servers are opened on first use."""

    async def collect_events(self) -> Callable[[str, str], SavedLog | None]:
        """What saves the events of the session with a path and a name, when calls that may be resumed have ended."""
        saving = await asyncio.gather(*(server.save_events() for server in self._servers.values()))
        find_events = dict(zip(self._servers, saving, strict=True))

        def save(path: str, name: str) -> SavedLog | None:
            server = GATEWAY_KEY if path == "/mcp" else path.removeprefix("/agents/").removesuffix("/mcp")
            return find_events[server](name) if server in find_events else None

        return save

    async def __aexit__(self, *exc: object) -> None:
        if self._notify_timer is not None:
            self._notify_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        servers, self._servers = list(self._servers.values()), {}
        await asyncio.gather(*(server.aclose() for server in servers))

    async def get_gateway_server(self) -> McpServer:
        return self._servers.get(GATEWAY_KEY) or await self._open(None)

    def find_agent(self, agent_id: str, principal: Principal) -> Manifest:
        """Raises AgentNotFound or Forbidden, also for an agent that this principal may not see."""
        registry = self._gateway.registry
        registry.find_agent_for(principal, agent_id)
        return registry.get_agent(agent_id)  # all of it: other callers share the server

    async def get_agent_server(self, agent_id: str, principal: Principal) -> McpServer:
        """Raises AgentNotFound."""
        manifest = self.find_agent(agent_id, principal)
        return self._servers.get(agent_id) or await self._open(manifest)

    async def prepare(self) -> None:
        """On a node with MCP servers behind it the SDK is loaded anyway. The start does not wait for it."""
        if any(manifest.runtime == "mcp" for manifest in self._gateway.registry.catalog.agents):
            self._spawn(self.get_gateway_server)

    def stop(self) -> None:
        self._light_streams.stop()
        for server in self._servers.values():
            server.notifier.close_streams()

    async def _open(self, manifest: Manifest | None) -> McpServer:
        name = GATEWAY_KEY if manifest is None else manifest.agent_id
        async with self._open_lock:
            server = self._servers.get(name)
            if server is None:
                server = self._build_server(await self._load_server_type(), manifest)
                await server.open()
                self._servers[name] = server
            return server

    async def _load_server_type(self) -> type[McpServer]:
        """Import the SDK in a thread: it takes most of a second, and a third of a node's memory."""
        if self._server_type is None:
            module = await asyncio.to_thread(load_module, "a2a_fabric.doors.mcp.server")
            self._server_type = module.McpServer
        return self._server_type

    def _on_catalog_change(self, catalog: object) -> None:
        previous, current = self._catalog, self._gateway.registry.catalog
        self._catalog = current
        changed = {each for each in current.changes_since(previous) if previous.get(each) != current.get(each)}
        served = {*self._servers, *self._light_streams.servers}
        self._changed |= changed & served
        if GATEWAY_KEY in served and changed:
            self._changed.add(GATEWAY_KEY)
        self.schedule_notify()

    def _on_listing_change(self, owner: str) -> None:
        self._changed_owners.add(owner)
        self.schedule_notify()

    def on_prompts_changed(self) -> None:
        """An agent has listed its prompts and resources."""
        self._listings_changed = True
        self.schedule_notify()

    def schedule_notify(self) -> None:
        """Notify clients of changed lists, after a short delay."""
        if self._notify_timer is None:
            self._notify_timer = asyncio.get_running_loop().call_later(_NOTIFY_DELAY, self._notify)

    def _notify(self) -> None:
        self._notify_timer = None
        changed, self._changed = self._changed, set()
        owners, self._changed_owners = self._changed_owners, set()
        # Without the SDK's server it is not known which of the two lists changed.
        other_lists: Collection[ChangedList] = ("prompts", "resources") if self._listings_changed else ()
        self._listings_changed = False
        for name, server in list(self._servers.items()):
            if name != GATEWAY_KEY and self._catalog.get(name) is None:
                del self._servers[name]
                self._spawn(server.aclose)
                continue
            item_changes = server.pop_changes()
            if name == GATEWAY_KEY:
                other_lists = item_changes
            server.notifier.notify_lists({*item_changes, *(("tools", "resources") if name in changed else ())})
            for owner in owners:
                server.notifier.notify_owner(owner)
        self._notify_light(changed, other_lists, owners)

    def _notify_light(
        self, changed: Collection[str], other_lists: Collection[ChangedList], owners: Iterable[str]
    ) -> None:
        streams = self._light_streams
        for name in list(streams.servers):
            if name != GATEWAY_KEY and self._catalog.get(name) is None:
                streams.end_all(name)
                continue
            kinds: set[ChangedList] = {"tools", "resources"} if name in changed else set()
            streams.notify(name, kinds.union(other_lists if name == GATEWAY_KEY else ()))
        for owner in owners:
            streams.notify_owner(owner)

    def _spawn(self, work: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("Opening or closing an MCP server failed: %s", task.exception())


OnChange = Callable[[], None]


class ManifestSubscriptions:
    """Calls back when one agent's manifest or health changes. One per door: the registry keeps its listeners."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._callbacks: dict[str, list[OnChange]] = {}
        self._manifests: dict[str, Manifest | None] = {}
        self._catalog = gateway.registry.catalog
        gateway.registry.add_listener(self._compare_manifests)
        gateway.registry.health.add_listener(self._on_health)

    def subscribe(self, agent_id: str, on_change: OnChange) -> Callable[[], None]:
        """Call `on_change` after each change, until the returned function is called."""
        self._manifests.setdefault(agent_id, self._gateway.registry.catalog.get(agent_id))
        callbacks = self._callbacks.setdefault(agent_id, [])
        callbacks.append(on_change)

        def unsubscribe() -> None:
            if on_change in callbacks:
                callbacks.remove(on_change)
            if not callbacks and self._callbacks.get(agent_id) is callbacks:
                del self._callbacks[agent_id], self._manifests[agent_id]

        return unsubscribe

    def _compare_manifests(self, catalog: object) -> None:
        previous, self._catalog = self._catalog, self._gateway.registry.catalog
        for agent_id in self._catalog.changes_since(previous):
            if agent_id not in self._manifests:
                continue
            current = self._catalog.get(agent_id)
            if current != self._manifests[agent_id]:
                self._manifests[agent_id] = current
                self._notify(agent_id)

    def _on_health(self, agent_id: str, health: Health) -> None:
        if agent_id in self._callbacks:
            self._notify(agent_id)

    def _notify(self, agent_id: str) -> None:
        for on_change in list(self._callbacks.get(agent_id, ())):
            on_change()
