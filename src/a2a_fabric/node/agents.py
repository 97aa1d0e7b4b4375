"""The agents of a node: where they come from, the catalog, their health, and the logins of callers at them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from a2a_fabric.config import resolve_env
from a2a_fabric.core.agent import AGENT_KEY, Capability, Manifest
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.core.ports import AgentHost, AgentSource
from a2a_fabric.federation.locations import FederatedSource
from a2a_fabric.identity.keyfile import find_state_folder
from a2a_fabric.logins.cipher import LoginCipher, load_cipher
from a2a_fabric.logins.listings import LoginListings
from a2a_fabric.logins.logins import Logins
from a2a_fabric.logins.oauth import LoginTarget, OAuthClient, read_login_target
from a2a_fabric.node.context import NodeContext
from a2a_fabric.node.runtime_factory import resolve_runtime_kind
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard, RegistrationGuards
from a2a_fabric.registry.health import HealthHistory, HealthTracker
from a2a_fabric.registry.health_monitor import HealthMonitor
from a2a_fabric.registry.memory import AgentMemory
from a2a_fabric.registry.names import ReservedNames
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.registry.registration_policy import RegistrationPolicy, read_terms
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.runtime_pool import RuntimePool
from a2a_fabric.registry.sources.nodes import NodeAgents
from a2a_fabric.registry.sources.store import LeaseExpirer, StoredAgents
from a2a_fabric.runtimes.per_principal import PerPrincipalRuntime
from a2a_fabric.telemetry.metrics import AgentGauges
from a2a_fabric.tools.listing import build_manifests as tool_manifests

_log = logging.getLogger(__name__)


class AgentParts:
    """`declared` are the sources that the operator named. The runtimes of agents need the registry, and the registry
    the runtimes, so `connect` comes after both.
    """

    def __init__(
        self, context: NodeContext, declared: Sequence[AgentSource], memory: AgentMemory, reserved: ReservedNames
    ) -> None:
        config = context.config
        self._context = context
        self.declared = declared
        self._connect_federation()
        self._registration_policy = RegistrationPolicy(config.registration, resolve_runtime_kind)
        self._registered_agents = StoredAgents(
            context.store.registrations, context.store.notices, self._registration_policy.accepts
        )
        health = HealthTracker(config.health, on_change=context.telemetry.record_status_change)
        self.nodes = NodeAgents(self._is_node, self._connect_host, health)
        mesh_sources = [] if context.peers is None else context.peers.sources
        # What is declared comes first, and wins.
        self.sources = [*declared, self._registered_agents, self.nodes, *mesh_sources]
        registry = self.registry = Registry(
            self.sources,
            tool_manifests(config.tools),
            health,
            self._registered_agents,
            reserved,
            memory,
            pin_tools=config.pin_tools,
            injection_marks=config.injection_marks,
            first_list_timeout=config.health.first_list_timeout,
        )
        self.reach = RegistrationGuards(config.registration.allow, private_for_local=config.registration.private)
        gauges = AgentGauges(lambda: registry.catalog.agents, lambda: registry.catalog.tools, health.get)
        context.telemetry.metrics.add_source(gauges.render)
        self.login_listings = LoginListings(
            context.store.logins, registry.listings, config.health.first_list_timeout, self._learn_listing
        )
        registry.load_listings = self.login_listings.load
        self.logins = self._build_logins()

    def connect(self, runtime_pool: RuntimePool) -> None:
        """Set up what watches the agents, and what hears of changes in the catalog."""
        context, config, registry = self._context, self._context.config, self.registry
        self._runtime_pool = runtime_pool
        self.history = HealthHistory(context.store.health, config.health, config.node_id)
        registry.health.add_listener(self.history.record)
        self.leases = LeaseExpirer(context.store.registrations, self._registered_agents, registry.health)
        self.health_monitor = HealthMonitor(
            registry,
            runtime_pool.load_runtime,
            config.health,
            self.history.record,
            runtime_pool.record_probe,
            config.registration.max_bytes,
        )
        registry.add_listener(runtime_pool.on_catalog_changed)
        registry.add_listener(self.health_monitor.on_catalog_changed)
        registry.add_listener(self.nodes.on_catalog_changed)
        registry.add_listener(context.telemetry.on_catalog_changed)

    def build_registrar(self) -> Registrar:
        messages = self._context.config.messages
        return Registrar(
            self._context.store.registrations,
            self._registered_agents,
            self.registry,
            self._registration_policy,
            self.reach.check,
            self.history,
            self._context.telemetry.metrics.count_registration,
            max(messages.keep_seconds, messages.max_ttl_seconds),
        )

    @property
    def is_federated(self) -> bool:
        """Whether cards, registries or folders of agents are among the sources."""
        return any(isinstance(source, FederatedSource) for source in self.declared)

    def find(self, agent_id: str) -> Manifest | None:
        return self.registry.catalog.get(agent_id)

    def find_capability(self, agent_id: str, name: str) -> Capability | None:
        manifest = self.registry.catalog.get(agent_id)
        return manifest.find_capability(name) if manifest is not None else None

    async def follow_source(self, source: AgentSource) -> None:
        async def reload() -> None:
            before = self.registry.catalog
            await self.registry.load(source)
            if source.name not in self.registry.errors and self.registry.catalog is not before:
                _log.info("agents of %s: %d in the catalog", source.name, len(self.registry.catalog.agents))

        try:
            await source.watch(reload)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("watching %s failed; its changes are no longer seen", source.name)

    def _connect_federation(self) -> None:
        """Cards and registries at URLs are read, and their agents reached, through a guarded client."""
        self.federation_guard = Guard(allow=self._context.config.federation.allow)
        self.federation_client = OutboundClient(self.federation_guard, when_full="open")
        self._context.stack.push_async_callback(self.federation_client.aclose)
        for source in self.declared:
            if isinstance(source, FederatedSource):
                source.http = self.federation_client

    def _build_logins(self) -> Logins:
        """The guarded client is for authorization servers that an agent names, not the operator."""
        context = self._context
        http, guarded_http = OutboundClient(), OutboundClient(Guard())
        context.stack.push_async_callback(http.aclose)
        context.stack.push_async_callback(guarded_http.aclose)

        def load() -> LoginCipher:
            in_memory = context.store_address.startswith("memory:")
            return load_cipher(context.environ, find_state_folder(context.environ), in_memory=in_memory)

        logins = Logins(
            context.store.logins,
            OAuthClient(http, guarded_http),
            load,
            self._find_login_target,
            lambda: context.callbacks.browser_url,
            self.login_listings,
        )
        logins.add_listener(self._close_principal_session)
        return logins

    def _find_login_target(self, agent_id: str) -> LoginTarget | None:
        """Agents that registered at run time never ask for logins."""
        manifest = self.registry.catalog.get(agent_id)
        if manifest is None or read_terms(manifest) is not None or "auth" not in manifest.endpoint:
            return None
        return read_login_target(manifest, resolve_env(manifest.endpoint, self._context.environ))

    async def _close_principal_session(self, owner: str, agent_id: str) -> None:
        """The principal has signed in or out: its session is no longer right."""
        runtime = self._runtime_pool.find_runtime(agent_id)
        if isinstance(runtime, PerPrincipalRuntime):
            runtime.close_session(owner)

    async def _learn_listing(self, owner: str, agent_id: str) -> None:
        manifest = self.registry.catalog.get(agent_id)
        if manifest is None:
            return
        try:
            runtime = await self._runtime_pool.load_runtime(manifest)
        except FabricError:  # the agent's health says why
            return
        if isinstance(runtime, PerPrincipalRuntime):
            await runtime.learn(owner)

    async def _connect_host(self, manifest: Manifest) -> AgentHost:
        """Raises AgentOffline."""
        runtime = await self._runtime_pool.load_runtime(manifest)
        if not isinstance(runtime, AgentHost):
            raise AgentOffline(f"'{manifest.agent_id}' is no longer a node")
        return runtime

    def _is_node(self, manifest: Manifest) -> bool:
        """Whether an entry stands for another node with all its agents, as declared or as it turned out."""
        if manifest.runtime is None:
            return isinstance(self._runtime_pool.find_runtime(manifest.agent_id), AgentHost)
        return manifest.runtime == "fabric" and AGENT_KEY not in manifest.endpoint
