"""The composition root: a configuration in, a running node out. The only module that imports all others.

What is built here is closed here, in reverse order."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import msgspec

from a2a_fabric import plugins
from a2a_fabric.admin.setup import build_admin
from a2a_fabric.agent import Agent
from a2a_fabric.config import DEFAULT_NODE_ID, Config, LimitSettings, read_environment, resolve_env
from a2a_fabric.console.pages import ConsolePages
from a2a_fabric.coordination.signals import SignalExchange
from a2a_fabric.coordination.tasks import TaskTranslator
from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import AGENT_KEY, MESH_RUNTIME, Capability, Manifest, Status, is_elsewhere, is_imported
from a2a_fabric.core.call import Call, Emit, Principal, compose
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.coordination import CoordinationGuard
from a2a_fabric.core.errors import AgentOffline, ConfigError, FabricError
from a2a_fabric.core.guards import ActiveGuard, Guards, GuardSettings
from a2a_fabric.core.limits import CallerShare, FairLimit
from a2a_fabric.core.logins import find_login_owner
from a2a_fabric.core.pending_questions import ContinuationSeal
from a2a_fabric.core.policy import administers, is_operator
from a2a_fabric.core.ports import AgentHost, AgentSource, Runtime, load_module
from a2a_fabric.core.propagation import DelegationGuard, make_chain_name
from a2a_fabric.core.recording import UNKNOWN_ORIGIN, current_origin
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import Span
from a2a_fabric.core.stores import DescriptionStore, Store
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.core.threads import WorkerThreads
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.federation.source import FederationSource
from a2a_fabric.gateway import Gateway
from a2a_fabric.identity.door_entry import DoorEntry
from a2a_fabric.identity.failed_attempts import FailedAttempts
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.identity.shared_keys import StoredKeysFollower
from a2a_fabric.jobs.jobs import JobDependencies, Jobs
from a2a_fabric.jobs.webhooks import WebhookUrlPolicy
from a2a_fabric.logins.listings import LoginListings
from a2a_fabric.logins.oauth import LoginTarget, read_login_target
from a2a_fabric.logins.pages import LoginPages
from a2a_fabric.mesh.services import PeerServices
from a2a_fabric.messages.conversations import ConversationSignals, Senders
from a2a_fabric.messages.delivery import MessageDelivery
from a2a_fabric.messages.inboxes import Inboxes, MessagePruner
from a2a_fabric.messages.messages import Messages
from a2a_fabric.node_setup import (
    Authentication,
    LazyNodeKeys,
    build_call_history,
    build_logins,
    build_matcher,
    build_recorder,
    build_source,
    build_trusted_nodes,
    check_plain_listeners,
    list_token_issuers,
    list_view_warnings,
    open_log_writer,
    open_store,
    resolve_store_address,
    resolve_tls_files,
)
from a2a_fabric.node_status import NodeStatus
from a2a_fabric.operations import Operations
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard, RegistrationGuards
from a2a_fabric.protocols.mcp.apps import find_ui_uri
from a2a_fabric.protocols.mcp.guarded_provider import GuardedProvider
from a2a_fabric.protocols.mcp.runtime_ports import (
    OffersPromptsAndResources,
    OffersTunnel,
    PromptResourceProvider,
    PromptResourceProviders,
    Tunnel,
)
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.gate import GatedProxySteps
from a2a_fabric.registry.health import HealthHistory, HealthTracker
from a2a_fabric.registry.health_monitor import HealthMonitor
from a2a_fabric.registry.memory import AgentMemory
from a2a_fabric.registry.names import ReservedNames
from a2a_fabric.registry.planner import Planner
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.registry.registration_policy import RegistrationPolicy, read_terms
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.runtime_pool import RuntimePool
from a2a_fabric.registry.sources.nodes import NodeAgents
from a2a_fabric.registry.sources.store import LeaseExpirer, StoredAgents
from a2a_fabric.runtime_factory import DEFAULT_KIND, NodeIdentity, RuntimeFactory, resolve_runtime_kind
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.per_principal import PerPrincipalRuntime
from a2a_fabric.settings_reload import ReloadOutcome, SettingsReload, TakeEffect
from a2a_fabric.steps.entry import CallRateLimit, authorize, limit, observe, record_receipts
from a2a_fabric.steps.guard import guard_calls
from a2a_fabric.steps.route import ArgumentValidator, RetryTracker, RoutingHandler
from a2a_fabric.telemetry.metrics import AgentGauges, Metrics
from a2a_fabric.telemetry.observer import JobLogger, Telemetry, capture_log_records
from a2a_fabric.tools.catalog import build_manifests as tool_manifests
from a2a_fabric.tools.computation import Computations
from a2a_fabric.tools.spec import Toolbox
from a2a_fabric.tools.validator_process import find_first_error
from a2a_fabric.version import __version__
from a2a_fabric.web.asgi import WebApp
from a2a_fabric.web.identity_middleware import IdentityMiddleware, make_jwks_route

if TYPE_CHECKING:
    from a2a_fabric.mesh.peers import Peers
    from a2a_fabric.mesh.workers import Workers

_log = logging.getLogger(__name__)

# The others belong to the server (see `cli.up`), or to parts that take them when they are built.
_LIMITS_OF_A_RUNNING_NODE = (
    "timeout_ms",
    "max_timeout_ms",
    "share_per_caller",
    "concurrent_calls",
    "concurrent_calls_per_agent",
    "calls_per_minute",
    "failed_attempts_per_minute",
    "streams",
    "subscriptions",
    "agent_threads",
    "reply_bytes",
    "drain_seconds",
)


class Fabric:
    """A node. `async with Fabric(config) as node:` starts it; `node.app` is its ASGI application."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        base: Path | None = None,
        sources: Sequence[AgentSource] | None = None,
        agents: Sequence[Agent] = (),
        psk: str | None = None,
        environ: Mapping[str, str] | None = None,
        log_stream: IO[str] | None = None,
        descriptions: DescriptionStore | None = None,
        workers: Workers | None = None,
    ) -> None:
        """`descriptions` is where the node remembers what agents offer, if that is not its store. `workers` are the
        other processes of the node, if it has several.
        """
        self.config = config or Config()
        self._base = base or Path.cwd()
        self.store_address = resolve_store_address(self.config, base)
        self._environ = read_environment() if environ is None else environ
        self._mounted_agents = {agent.agent_id: agent for agent in agents}
        if sources is None:
            sources = [build_source(name, self._base, self.config.federation) for name in self.config.agents]
        self._sources: list[AgentSource] = [_MountedAgents(agents), *sources]
        check_plain_listeners(self.config)
        self._authentication = Authentication(self.config, psk, self._base)
        self.settings = SettingsReload(self.config)
        self._caller_share = CallerShare(self.config.limits.share_per_caller)
        self.active_policy = ActivePolicy(self.config.policy)
        self._guards = Guards([_build_guard(settings) for settings in self.config.guards])
        mesh_key = None if self.config.mesh is None else self.config.mesh.key
        self._psk = psk
        self._continuation_seal = ContinuationSeal(mesh_key or self.config.auth.psk or psk)
        self._log_stream = log_stream
        self._descriptions = descriptions
        self._peers = self._find_peers(workers)
        self._owner_tag = "" if self._peers is None else self._peers.owner_tag
        self._lifetimes = AsyncExitStack()
        self._views = self.config.views
        self._has_checked_views = not self._views

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._status = NodeStatus(has_metrics=self.config.metrics)
            self.store: Store = self._status.wrap_store(await open_store(self.store_address))
            stack.push_async_callback(self.store.aclose)
            self._memory = AgentMemory(self._descriptions or self.store.descriptions)
            await self._memory.load()
            self._build(stack)
            if self._receipt_writer is not None:
                stack.push_async_callback(self._receipt_writer.flush)  # after the last call has ended
            if self.call_history is not None:
                self.call_history.start()
                stack.push_async_callback(self.call_history.aclose)  # as well
            await self._stored_keys.load()
            stack.push_async_callback(self._guards.aclose)
            await self._login_listings.load_recent()
            for door in self.doors:
                await stack.enter_async_context(door.lifetime)
            for source in self._all_sources:
                await self.registry.load(source)
            await self.registry.catalog.build_indexes()
            for door in self.doors:
                await door.prepare()
            self.registry.add_listener(self._log_view_warnings)
            self._log_view_warnings(self.registry.catalog)
            await self._join_mesh()
            await stack.enter_async_context(self.jobs)
            stack.push_async_callback(self._history.aclose)
            stack.push_async_callback(self._memory.aclose)
            stack.push_async_callback(self._stored_keys.aclose)
            message_pruner = MessagePruner(self.store.messages, self.config.messages.keep_seconds)
            tasks = [
                asyncio.ensure_future(each.run())
                for each in (
                    self._health_monitor,
                    self._history,
                    self._leases,
                    self._memory,
                    message_pruner,
                    self._stored_keys,
                    self._status.lag,
                    self._admin.activity,
                )
            ]
            tasks += [asyncio.ensure_future(self._follow_source(source)) for source in self._all_sources]
            if self._receipt_writer is not None:
                tasks.append(asyncio.ensure_future(self._receipt_writer.run()))
            stack.push_async_callback(cancel_and_wait, *tasks)
            self._lifetimes = stack.pop_all()
        current_origin.set(UNKNOWN_ORIGIN)  # doors identify callers while they are built, too
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lifetimes.aclose()

    def _build(self, stack: AsyncExitStack) -> None:
        """All parts of the node, each after those that it needs."""
        config = self.config
        self.node_health = self._status.build_health()
        self.telemetry = self._build_telemetry(stack)
        if self._peers is not None:
            stack.push_async_callback(self._peers.aclose)
        self.call_history = build_call_history(config, self.store, self.telemetry.metrics)
        self._recorder = build_recorder(config, self._environ, self.call_history, self.telemetry.metrics, stack)
        self._connect_sources(stack)
        registration_policy = RegistrationPolicy(config.registration, resolve_runtime_kind)
        registered_agents = StoredAgents(self.store.registrations, self.store.notices, registration_policy.accepts)
        reserved = self._reserve_names()
        self._build_registry(registered_agents, reserved)
        self._build_logins(stack)
        self._node_keys = LazyNodeKeys(config, self._base, self._environ)
        self._node_identity = NodeIdentity(config.identity, self._node_keys.load_signer)
        self.runtime_pool = self._build_runtime_pool(stack)
        self._build_health(registered_agents)
        self._receipt_writer = self._node_keys.load_receipt_writer(self.store.receipts)
        self.gateway = self._build_gateway()
        self.gateway.notice_sources.append(
            lambda principal: self.registry.list_tool_notices() if administers(principal) else ()
        )
        limits = config.limits
        self._streams = FairLimit("streams and waiting requests", limits.streams, self._caller_share, retry_after=5.0)
        self._subscriptions = FairLimit("subscriptions", limits.subscriptions, self._caller_share, retry_after=10.0)
        self._failed_attempts = FailedAttempts(limits.failed_attempts_per_minute)
        self._message_signals = ConversationSignals()
        self.jobs = self._build_jobs(stack)
        self.logins.add_login_listener(self.jobs.resume_after_login)
        registrar = Registrar(
            self.store.registrations,
            registered_agents,
            self.registry,
            registration_policy,
            self._reach.check,
            self._history,
            self.telemetry.metrics.count_registration,
            max(config.messages.keep_seconds, config.messages.max_ttl_seconds),
        )
        self._build_messaging(registrar)
        self._signals.connect(self.messages, self.inboxes)
        self.operations = Operations(
            self.gateway,
            self.jobs,
            registrar,
            self.inboxes,
            self.messages,
            self.logins,
            self._task_translator,
            self._signals,
            self.call_history,
            build_matcher(config.federation, self._base, stack),
        )
        self._admin = build_admin(
            self.settings,
            gateway=self.gateway,
            operations=self.operations,
            registrar=registrar,
            jobs=self.jobs,
            store=self.store,
            store_address=self.store_address,
            sources=self._sources,
            runtime_pool=self.runtime_pool,
            health_monitor=self._health_monitor,
            metrics=self.telemetry.metrics,
            log=self.telemetry.log,
            environ=self._environ,
            psk=self._psk,
            worker=None if self._peers is None or self._peers.workers is None else self._peers.workers.place.name,
        )
        self._build_web(stack)
        self._observe_node()
        self._register_settings(reserved)

    def _reserve_names(self) -> ReservedNames:
        """Those of the node, of keys and of issuers, also of keys that are added to the store later."""
        reserved = ReservedNames(extra=(self.config.node_id,))
        self._authentication.reserve_names(reserved)
        self._stored_keys = StoredKeysFollower(
            self.store.keys,
            self.store.notices,
            self._authentication.keys,
            self._authentication.find_view,
            lambda: self._authentication.reserve_names(reserved),
        )
        return reserved

    def _build_registry(self, registered_agents: StoredAgents, reserved: ReservedNames) -> None:
        config = self.config
        health = HealthTracker(config.health, on_change=self.telemetry.record_status_change)
        self._nodes = NodeAgents(self._is_node, self._connect_host, health)
        mesh_sources = [] if self._peers is None else self._peers.sources
        # What is declared comes first, and wins.
        self._all_sources = [*self._sources, registered_agents, self._nodes, *mesh_sources]
        self.registry = Registry(
            self._all_sources,
            tool_manifests(config.tools),
            health,
            registered_agents,
            reserved,
            self._memory,
            pin_tools=config.pin_tools,
            injection_marks=config.injection_marks,
            first_list_timeout=config.health.first_list_timeout,
        )
        self._reach = RegistrationGuards(config.registration.allow, private_for_local=config.registration.private)
        self._prompts_and_resources = PromptResourceProviders(
            self._find_prompts_and_resources, lambda: self.runtime_pool.special_ids
        )
        gauges = AgentGauges(lambda: self.registry.catalog.agents, lambda: self.registry.catalog.tools, health.get)
        self.telemetry.metrics.add_source(gauges.render)

    def _build_logins(self, stack: AsyncExitStack) -> None:
        self._login_listings = LoginListings(
            self.store.logins, self.registry.listings, self.config.health.first_list_timeout, self._learn_listing
        )
        self.registry.load_listings = self._login_listings.load
        self._callbacks = Callbacks(self.config.public_url, owner_tag=self._owner_tag)
        self.logins = build_logins(
            self.store.logins,
            self._environ,
            self._find_login_target,
            lambda: self._callbacks.browser_url,
            self._login_listings,
            stack,
            in_memory=self.store_address.startswith("memory:"),
        )
        self.logins.add_listener(self._close_principal_session)
        self.registry.listings.add_listener(lambda _: self._prompts_and_resources.notify_changed())

    def _build_health(self, registered_agents: StoredAgents) -> None:
        """What watches the agents, and what hears of changes in the catalog."""
        config = self.config
        self._history = HealthHistory(self.store.health, config.health, config.node_id)
        self.registry.health.add_listener(self._history.record)
        self._leases = LeaseExpirer(self.store.registrations, registered_agents, self.registry.health)
        self._health_monitor = HealthMonitor(
            self.registry,
            self.runtime_pool.load_runtime,
            config.health,
            self._history.record,
            self.runtime_pool.record_probe,
            config.registration.max_bytes,
        )
        self.registry.add_listener(self.runtime_pool.on_catalog_changed)
        self.registry.add_listener(self._health_monitor.on_catalog_changed)
        self.registry.add_listener(self._nodes.on_catalog_changed)
        self.registry.add_listener(self.telemetry.on_catalog_changed)

    def _build_web(self, stack: AsyncExitStack) -> None:
        """Authentication, the doors, and the application that mounts them."""
        config = self.config
        self._tunnel_client = OutboundClient()  # separate, so that long streams take no connections from calls
        stack.push_async_callback(self._tunnel_client.aclose)
        stack.push_async_callback(self._authentication.aclose)
        resolver = self._authentication.build_resolver(self.telemetry.metrics.count_auth_attempt)
        trusted_nodes = build_trusted_nodes(config, resolver, self._base, stack, self.store)
        self._identify = trusted_nodes or resolver
        self.doors = [self._build_door(dict(table)) for table in config.doors]
        console = ConsolePages() if config.console.enabled else None
        stops = [self._admin.stop, self.jobs.stop, self.registry.changes.stop, self._message_signals.stop]
        if self.call_history is not None:
            stops.append(self.call_history.stop)
        if self._peers is not None:
            stops.append(self._peers.stop)
        self.app = WebApp(
            self.doors,
            stops,
            self._callbacks,
            config.limits.body_bytes,
            self._authentication.build_token_middleware(),
            self.node_health,
            [view.name for view in config.views],
            [
                *LoginPages(self.logins, config.node_id).routes,
                make_jwks_route(self._node_keys.list_public),
                *(() if console is None else console.routes),
            ],
            None if trusted_nodes is None else IdentityMiddleware(trusted_nodes, config.limits.body_bytes).wrap,
            None if self._peers is None else self._peers.build_relay(self._find_agent, config.limits.body_bytes),
            None if console is None else console.render_greeting,
        )

    def _observe_node(self) -> None:
        """The checks of the node's health, and the metrics of its parts."""
        config = self.config
        self._status.add_checks(self.node_health, self.registry, config.health.required, self.telemetry.log)
        limits = {"calls": self._calls, "streams": self._streams, "subscriptions": self._subscriptions}
        clients = [*self._runtime_clients, self._tunnel_client, self._federation_client]
        sessions = {kind: count for door in self.doors for kind, count in door.sessions.items()}
        self._status.add_metrics(
            self.telemetry.metrics, self.runtime_pool, {**limits, **self._thread_limits}, clients, sessions
        )

    def _register_settings(self, reserved: ReservedNames) -> None:
        """The settings that can change while the node runs."""

        def prepare_auth(config: Config) -> TakeEffect:
            change_auth = self._authentication.prepare(config)

            def take_effect() -> None:
                change_auth()
                self._stored_keys.apply_views()
                if config.views != self._views:
                    self._views, self._has_checked_views = config.views, False
                    self._log_view_warnings(self.registry.catalog)
                self._authentication.reserve_names(reserved)
                self.app.set_token_middleware(self._authentication.build_token_middleware())

            return take_effect

        register = self.settings.register
        register("auth", prepare_auth)
        register("views", prepare_auth)
        register("policy", lambda config: self.active_policy.prepare(config.policy))
        register("log.level", lambda config: partial(self.telemetry.log.set_level, config.log.level))
        self.settings.register_limits(_LIMITS_OF_A_RUNNING_NODE, self._apply_limits)

    def _apply_limits(self, limits: LimitSettings) -> None:
        self.gateway.set_timeouts(limits.timeout_ms, limits.max_timeout_ms)
        self._calls.resize(limits.concurrent_calls)
        if limits.calls_per_minute != self._call_rate.per_minute:
            self._call_rate.set_rate(limits.calls_per_minute)
        self._failed_attempts.set_rate(limits.failed_attempts_per_minute)
        self._streams.resize(limits.streams)
        self._subscriptions.resize(limits.subscriptions)
        self._caller_share.set(limits.share_per_caller)
        self._agent_threads.resize(limits.agent_threads)
        self.runtime_pool.set_limits(limits.concurrent_calls_per_agent, limits.drain_seconds)
        self.jobs.set_drain_timeout(limits.drain_seconds)
        if self._runtime_factory.set_reply_bytes(limits.reply_bytes):
            self.runtime_pool.replace_all()

    def reload(self, config: Config, *, is_requested: bool = False) -> ReloadOutcome:
        """Put a changed configuration into effect as far as possible. `is_requested`: keys and issuers are read anew
        even if nothing changed, since files that they name may have. Raises ConfigError; then nothing has changed.
        """
        return self.settings.apply(config, again=("auth", "tls") if is_requested else ())

    def narrow_to_view(self, principal: Principal, view: str | None) -> Principal:
        """The user of MCP on stdio, within a view of this node. Raises BadInput for a view that it does not have."""
        return self.active_policy.bind(self._identify.narrow(principal, Credentials(view=view)), "mcp", "", "")

    def _log_view_warnings(self, catalog: Catalog) -> None:
        """Once, when each agent has been asked what it offers, and after a change of the views."""
        if self._has_checked_views or self.registry.unasked.has_any:
            return
        self._has_checked_views = True
        for warning in list_view_warnings(self._views, catalog):
            _log.warning("%s", warning)

    def _connect_sources(self, stack: AsyncExitStack) -> None:
        """Cards and registries at URLs are read, and their agents reached, through a guarded client."""
        self._federation_guard = Guard(allow=self.config.federation.allow)
        self._federation_client = OutboundClient(self._federation_guard)
        stack.push_async_callback(self._federation_client.aclose)
        for source in self._sources:
            if isinstance(source, FederationSource):
                source.http = self._federation_client

    def _build_telemetry(self, stack: AsyncExitStack) -> Telemetry:
        writer = open_log_writer(self.config.log, self._base, self._log_stream, stack)
        stack.enter_context(capture_log_records(writer))
        metrics = Metrics(__version__)
        metrics.add_source(writer.render_metrics)
        return Telemetry(writer, metrics, self._find_agent, payloads=self.config.log.payloads)

    def _find_agent(self, agent_id: str) -> Manifest | None:
        return self.registry.catalog.get(agent_id)

    def _find_login_target(self, agent_id: str) -> LoginTarget | None:
        """Agents that registered at run time never ask for logins."""
        manifest = self.registry.catalog.get(agent_id)
        if manifest is None or read_terms(manifest) is not None or "auth" not in manifest.endpoint:
            return None
        return read_login_target(manifest, resolve_env(manifest.endpoint, self._environ))

    async def _close_principal_session(self, owner: str, agent_id: str) -> None:
        """The principal has signed in or out: its session is no longer right."""
        runtime = self.runtime_pool.find_runtime(agent_id)
        if isinstance(runtime, PerPrincipalRuntime):
            runtime.close_session(owner)

    async def _learn_listing(self, owner: str, agent_id: str) -> None:
        manifest = self.registry.catalog.get(agent_id)
        if manifest is None:
            return
        try:
            runtime = await self.runtime_pool.load_runtime(manifest)
        except FabricError:  # the agent's health says why
            return
        if isinstance(runtime, PerPrincipalRuntime):
            await runtime.learn(owner)

    def _build_runtime_pool(self, stack: AsyncExitStack) -> RuntimePool:
        limits = self.config.limits
        context = self._build_runtime_context(stack)
        factory = self._runtime_factory = RuntimeFactory(
            self.config.registration.runtimes,
            context,
            self._reach,
            self._on_runtime_identified,
            self.logins,
            self._node_identity,
            dataclasses.replace(context, http=self._federation_client, guard=self._federation_guard),
        )
        stack.push_async_callback(factory.aclose)
        pool = RuntimePool(
            # As declared: what the agent said before, and which of its tools are listed, is not the runtime's business.
            lambda manifest: (
                self._build_held_elsewhere(manifest) or factory.build(self.registry.find_declaration(manifest))
            ),
            loader=factory.loading,
            breaker=self.config.breaker,
            calls_per_agent=limits.concurrent_calls_per_agent,
            share=self._caller_share,
            drain_timeout=limits.drain_seconds,
            probe_timeout=self.config.health.timeout,
            is_signed=self._node_identity.is_signed,
            special_types=(OffersPromptsAndResources, PerPrincipalRuntime),
            on_special=self._prompts_and_resources.notify_changed,
        )
        stack.push_async_callback(pool.aclose)
        return pool

    def _build_runtime_context(self, stack: AsyncExitStack) -> RuntimeContext:
        config = self.config
        http = OutboundClient()
        web = OutboundClient(Guard(allow=config.tools.web_allow))
        stack.push_async_callback(http.aclose)
        stack.push_async_callback(web.aclose)
        share = self._caller_share
        tool_threads = WorkerThreads("tools", config.tools.threads, share)
        agent_threads = self._agent_threads = WorkerThreads("Python agents", config.limits.agent_threads, share)
        computations = Computations(config.tools.processes, share)
        self._runtime_clients = [http, web]
        self._thread_limits = {"tool_threads": tool_threads.running, "agent_threads": agent_threads.running}
        stack.callback(computations.close)
        stack.callback(tool_threads.close)
        stack.callback(agent_threads.close)
        return RuntimeContext(
            http=http,
            base=self._base,
            reply_bytes=config.limits.reply_bytes,
            overlay=None if config.federation.overlay is None else self._base / config.federation.overlay,
            mounted=self._mounted_agents,
            callbacks=self._callbacks,
            owner_tag=self._owner_tag,
            environ=self._environ,
            threads=agent_threads,
            toolbox=Toolbox(config.tools, self._base, web, self._environ, tool_threads, computations),
            on_capabilities_changed=self._refresh_agent,
            on_prompts_resources_changed=self._prompts_and_resources.notify_changed,
        )

    def _find_tunnel(self, manifest: Manifest, principal: Principal) -> Tunnel | None:
        """None for agents that registered, or whose tools are chosen: what goes through unchanged is not judged. None,
        too, for agents whose calls a guard has to see, and while receipts are written.

        None also for an agent at which this principal is not signed in.
        """
        if read_terms(manifest) is not None or manifest.agent_id in self.registry.catalog.translations:
            return None
        if self._receipt_writer is not None:  # a receipt names the result
            return None
        if self._guards.concern(manifest.agent_id):
            return None
        live_runtime = self.runtime_pool.get_live_runtime(manifest)
        if isinstance(live_runtime.runtime, PerPrincipalRuntime):
            owner = find_login_owner(principal)
            if owner is None or self.registry.holds_back_from(owner, manifest):
                return None
            return live_runtime.runtime.find_tunnel(owner)
        return cast(OffersTunnel, live_runtime.runtime).tunnel if live_runtime.offers(OffersTunnel) else None

    def _find_prompts_and_resources(self, agent_id: str, principal: Principal | None) -> PromptResourceProvider | None:
        provider = self._find_provider(agent_id, principal)
        if provider is None or not self._guards.concern(agent_id):
            return provider
        return GuardedProvider(provider, agent_id, self._guards)

    def _find_provider(self, agent_id: str, principal: Principal | None) -> PromptResourceProvider | None:
        runtime = self.runtime_pool.find_runtime(agent_id) or self._load_user_interfaces(agent_id)
        if isinstance(runtime, PerPrincipalRuntime):
            owner = None if principal is None else find_login_owner(principal)
            return None if owner is None else runtime.find_prompts_and_resources(owner)
        return runtime.prompts_and_resources if isinstance(runtime, OffersPromptsAndResources) else None

    def _load_user_interfaces(self, agent_id: str) -> Runtime | None:
        """The runtime of another node's agent that was not called yet, if its tools have user interfaces."""
        manifest = self.registry.catalog.get(agent_id) if is_imported(agent_id) else None
        if manifest is None or not any(each.metadata and find_ui_uri(each.metadata) for each in manifest.capabilities):
            return None
        try:
            return self.runtime_pool.get_live_runtime(manifest).runtime
        except FabricError:  # the agent's health says why
            return None

    async def _connect_host(self, manifest: Manifest) -> AgentHost:
        """Raises AgentOffline."""
        runtime = await self.runtime_pool.load_runtime(manifest)
        if not isinstance(runtime, AgentHost):
            raise AgentOffline(f"'{manifest.agent_id}' is no longer a node")
        return runtime

    def _on_runtime_identified(
        self, agent_id: str, guessing_runtime: Runtime, identified: Runtime, kind: str | None
    ) -> bool:
        """The runtime of an agent without a declared one was detected; the agent may be a whole node."""
        is_replaced = self.runtime_pool.replace(agent_id, guessing_runtime, identified)
        if is_replaced:
            self.registry.set_detected_runtime(agent_id, kind or DEFAULT_KIND)
        self._nodes.on_runtime_identified(agent_id)
        return is_replaced

    def _is_node(self, manifest: Manifest) -> bool:
        """Whether an entry stands for another node with all its agents, as declared or as it turned out."""
        if manifest.runtime is None:
            return isinstance(self.runtime_pool.find_runtime(manifest.agent_id), AgentHost)
        return manifest.runtime == "fabric" and AGENT_KEY not in manifest.endpoint

    def _refresh_agent(self, agent_id: str) -> None:
        """An agent said that it offers something else now: ask it again."""
        self._health_monitor.refresh(agent_id)
        if self._peers is not None:
            self._peers.notify_changed(agent_id)

    def _build_held_elsewhere(self, manifest: Manifest) -> Runtime | None:
        """The runtime of an agent that another worker or another node of the mesh holds."""
        if self._peers is None:
            return None
        return self._peers.build_runtime(manifest, self._prompts_and_resources.notify_changed)

    def _find_peers(self, workers: Workers | None) -> Peers | None:
        """The other processes of this node and of its mesh, if there are any. Raises ConfigError."""
        config = self.config
        if workers is None and config.mesh is None:
            return None
        if config.mesh is not None and config.node_id == DEFAULT_NODE_ID:
            raise ConfigError("mesh: every node of a mesh has a name of its own. Set `node_id` to this node's")
        package = load_module("a2a_fabric.mesh.peers")  # most nodes are one process
        peers: Peers = package.Peers(
            workers,
            config.mesh,
            config.node_id,
            count_calls=lambda: self._calls.used,
            reply_bytes=config.limits.reply_bytes,
        )
        return peers

    async def _join_mesh(self) -> None:
        if self._peers is None or self._peers.mesh is None:
            return
        self.gateway.nodes = self._peers.mesh
        self.telemetry.metrics.add_source(self._peers.mesh.render_metrics)
        await self._peers.join_mesh(self.peer_services, self.registry, self._set_mesh_status)

    async def _call_own_agent(self, call: Call, emit: Emit) -> Result:
        """The end of a call that another node of the mesh has planned for an agent of this one. Raises FabricError."""
        manifest = self.registry.catalog.get(call.target.agent_id)
        if manifest is None or is_elsewhere(manifest):
            raise AgentOffline(f"Agent '{call.target.agent_id}' has left this node", agent_id=call.target.agent_id)
        return await self.runtime_pool.find_handler(manifest)(call, emit)

    def _set_mesh_status(self, agent_id: str, status: Status, error: str | None) -> None:
        """What another node says of its agent, unless this node has one of the same name."""
        manifest = self.registry.catalog.get(agent_id)
        if manifest is None or manifest.runtime == MESH_RUNTIME:
            self.registry.health.set_status(agent_id, status, error)

    @property
    def peer_services(self) -> PeerServices:
        """What this node does for its peers."""
        return PeerServices(
            find_agent=self._find_agent,
            load_runtime=self.runtime_pool.load_runtime,
            call_agent=self.runtime_pool.find_handler,
            route_call=self._route_call,
            call=self._call_for_node,
            bind_call=self.active_policy.bind_call,
            on_agent_changed=self._health_monitor.refresh,
            render_metrics=self.telemetry.metrics.render_exposition,
            doors=self.app,
            body_bytes=self.config.limits.body_bytes,
            read_trace=self._read_trace,
        )

    async def _read_trace(self, trace_id: str) -> Sequence[Span]:
        """For the operator of another node of the mesh."""
        if self.call_history is None:
            return ()
        await self.call_history.flush()
        return [span for record in await self.call_history.read_trace(trace_id, None) for span in record.spans]

    def _build_gateway(self) -> Gateway:
        config, registry = self.config, self.registry
        delegations = DelegationGuard(make_chain_name(config.node_id), config.routing.max_delegations)
        planner = Planner(registry, config.routing)
        limits = config.limits
        call_limit = self._calls = FairLimit("calls", limits.concurrent_calls, self._caller_share)
        self._call_rate = CallRateLimit(limits.calls_per_minute)
        coordination = CoordinationGuard(delegations.node, lambda: registry.catalog.agents)
        authorize_call = authorize(registry, delegations, self.active_policy, coordination)
        writer = self._receipt_writer
        receipts = [] if writer is None else [record_receipts(writer)]
        entry_steps = [observe(self.telemetry, self._recorder), *receipts, authorize_call]
        steps = [*entry_steps, limit(call_limit, self._call_rate)]
        job_steps = [*entry_steps, limit(call_limit)]  # jobs were counted per minute when they were accepted
        guards = [guard_calls(self._guards)] if self._guards else []
        self._task_translator = TaskTranslator(registry, delegations.node)
        self._signals = SignalExchange(registry)
        is_federated = any(isinstance(source, FederationSource) for source in self._sources)
        team_steps = [self._task_translator.step, self._signals.step] if is_federated else []
        self._proxy_steps = GatedProxySteps(
            steps, lambda manifest: self.runtime_pool.get_live_runtime(manifest).gate, delegations
        )
        validator = ArgumentValidator(find_first_error)
        retries = RetryTracker(config.routing.retries, self.telemetry.metrics.count_retry)

        def route_with(planner: Planner) -> RoutingHandler:
            return RoutingHandler(
                planner,
                self.runtime_pool.find_handler,
                registry.health,
                config.routing,
                delegations,
                retries=retries,
                count_calls=self.runtime_pool.count_calls,
                on_fallback=self.telemetry.metrics.count_fallback,
                validator=validator,
                seal=self._continuation_seal,
            )

        route = self._route_call = route_with(planner)
        if self._peers is not None:
            self._call_for_node = compose([*steps, *guards], self._call_own_agent)
            guards.append(self._peers.forward_answers())
        no_fallback = msgspec.structs.replace(config.routing, fallback=False)
        self._handler_without_fallback = compose(
            [*team_steps, *job_steps, *guards], route_with(Planner(registry, no_fallback))
        )
        self._job_handler = compose([*team_steps, *job_steps, *guards], route)

        self._check_call = compose([authorize_call], route.check)
        return Gateway(
            registry,
            planner,
            compose([*team_steps, *steps, *guards], route),
            count_calls=self.runtime_pool.count_calls,
            node_id=config.node_id,
            node_health=self.node_health,
            timeout_ms=config.limits.timeout_ms,
            max_timeout_ms=config.limits.max_timeout_ms,
        )

    def _build_jobs(self, stack: AsyncExitStack) -> Jobs:
        config = self.config
        http = OutboundClient(Guard(allow=config.jobs.webhook_allow))
        stack.push_async_callback(http.aclose)

        dependencies = JobDependencies(
            handler=self.gateway.call,
            handler_for_jobs=self._job_handler,
            check_call=self._check_call,
            count_calls=self._call_rate.count,  # now, instead of postponing the job later
            find_capability=self._find_capability,
            node_id=config.node_id,
            share=self._caller_share,
            waiting_requests=self._streams,
            drain_timeout=config.limits.drain_seconds,
            listener=JobLogger(self.telemetry.log, None if self._recorder is None else self._recorder.record_job),
            override_handler=self._build_replies().wrap_handler,
        )
        addresses = WebhookUrlPolicy(Guard(allow=config.jobs.webhook_allow))
        return Jobs(self.store, dependencies, config.jobs, http, addresses)

    def _build_replies(self) -> MessageDelivery:
        message_store, settings = self.store.messages, self.config.messages
        return MessageDelivery(
            message_store, settings, self._message_signals, self._find_capability, self._handler_without_fallback
        )

    def _build_messaging(self, registrar: Registrar) -> None:
        message_store, settings, metrics = self.store.messages, self.config.messages, self.telemetry.metrics
        senders = Senders(registrar.find_local_registration, is_operator)
        self.messages = Messages(
            message_store,
            self.jobs,
            senders,
            self.registry.get_for,
            settings,
            self._message_signals,
            metrics.count_message_sent,
            self._caller_share,
            lambda agent_id: self.registry.catalog.is_discovered(agent_id),
            self._guards,
        )
        self.inboxes = Inboxes(
            message_store,
            self.store.notices,
            senders,
            settings,
            self._message_signals,
            find_agent=self._find_agent,
            on_sent=metrics.count_message_sent,
            on_received=metrics.count_messages_received,
            waiting_requests=self._streams,
            guards=self._guards,
        )

    def _find_capability(self, agent_id: str, name: str) -> Capability | None:
        manifest = self.registry.catalog.get(agent_id)
        return manifest.find_capability(name) if manifest is not None else None

    def _build_door(self, table: dict[str, Any]) -> Door:
        kind = table.pop("kind", None)
        if not isinstance(kind, str):
            raise ConfigError("doors: each entry needs a `kind`")
        plugin = plugins.load_door(kind)
        try:
            settings = msgspec.convert(table, plugin.settings)
        except msgspec.ValidationError as exc:
            raise ConfigError(f"doors: {kind}: {exc}") from exc
        render_metrics: Callable[[], Awaitable[bytes]] = self.telemetry.metrics.render_exposition
        if self._peers is not None:
            render_metrics = self._peers.merge_metrics(render_metrics)
        add_credentials = self._authentication.resolver.add_credentials
        entry = DoorEntry(plugins.canonical_kind(kind), self._identify, add_credentials, self.active_policy)
        context = DoorContext(
            gateway=self.gateway,
            operations=self.operations,
            identify=entry.identify,
            narrow_to_views=entry.narrow,
            verify_credentials=self._identify.verify_token,
            add_credentials=entry.add_credentials,
            issuers=list_token_issuers(self.config),
            log=self.telemetry.log_request,
            acquire_stream=self._open_stream,
            release_stream=self._close_stream,
            streams=self._streams,
            subscriptions=self._subscriptions,
            failed_attempts=self._failed_attempts,
            caller_share=self._caller_share,
            body_bytes=self.config.limits.body_bytes,
            metrics=render_metrics if self.config.metrics else None,
            tunnel=self._find_tunnel,
            proxy_steps=self._proxy_steps,
            http=self._tunnel_client,
            find_client=self._runtime_factory.find_tunnel_client,
            sign_trace=self._node_keys.sign_trace,
            resource_providers=self._prompts_and_resources,
            public_url=self.config.public_url,
            door_kinds=frozenset(plugins.canonical_kind(str(each.get("kind"))) for each in self.config.doors),
            jobs=self.jobs,
            messages=self.messages,
            inboxes=self.inboxes,
            tls=resolve_tls_files(self._base, self.config),
            owner_tag=self._owner_tag,
        )
        door: Door = plugin.build(settings, context)
        return door

    def _open_stream(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        self._streams.acquire(principal_id)
        self.telemetry.metrics.count_stream_opened()

    def _close_stream(self, principal_id: str | None) -> None:
        self._streams.release(principal_id)
        self.telemetry.metrics.count_stream_closed()

    async def _follow_source(self, source: AgentSource) -> None:
        async def reload() -> None:
            await self.registry.load(source)
            if source.name not in self.registry.errors:
                _log.info("agents of %s: %d in the catalog", source.name, len(self.registry.catalog.agents))

        try:
            await source.watch(reload)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("watching %s failed; its changes are no longer seen", source.name)


def _build_guard(settings: GuardSettings) -> ActiveGuard:
    """Raises ConfigError."""
    try:
        return ActiveGuard(settings, plugins.build_guard(settings.kind, settings.options))
    except ConfigError as exc:
        raise ConfigError(f"guards: {settings.name}: {exc.message}") from exc


class _MountedAgents:
    """Source: Python agents that live in this process."""

    name = "mounted agents"

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents

    async def load(self) -> list[Manifest]:
        return [
            msgspec.structs.replace(agent.manifest({"transport": "local"}), runtime="python") for agent in self._agents
        ]

    async def watch(self, changed: object) -> None:
        """They never change."""
