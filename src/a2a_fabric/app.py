"""The composition root: a configuration in, a running node out.

The parts come from `node`. What is built here is closed here, in reverse order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import msgspec

from a2a_fabric.admin.processes import Processes
from a2a_fabric.admin.setup import build_admin
from a2a_fabric.config import Config, LimitSettings, read_environment
from a2a_fabric.console.setup import build_console
from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.pending_questions import ContinuationSeal
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.core.recording import UNKNOWN_ORIGIN, current_origin
from a2a_fabric.core.stores import DescriptionStore, Store
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.identity.resolver import Credentials
from a2a_fabric.identity.shared_keys import StoredKeysFollower
from a2a_fabric.mesh.services import PeerServices
from a2a_fabric.messages.inboxes import MessagePruner
from a2a_fabric.node.agents import AgentParts
from a2a_fabric.node.calls import CallParts
from a2a_fabric.node.context import (
    NodeContext,
    build_call_history,
    build_guards,
    build_history_pruner,
    build_matcher,
    build_recorder,
    build_source,
    build_telemetry,
    open_store,
    resolve_store_address,
)
from a2a_fabric.node.doors import DoorParts
from a2a_fabric.node.exposure import check_plain_listeners, list_view_warnings
from a2a_fabric.node.identity import Authentication, LazyNodeKeys
from a2a_fabric.node.limits import CHANGEABLE_LIMITS, NodeLimits
from a2a_fabric.node.peers import build_peer_services, find_peers, join_mesh
from a2a_fabric.node.runtimes import RuntimeParts
from a2a_fabric.node.settings_reload import ReloadOutcome, SettingsReload, TakeEffect
from a2a_fabric.node.status import NodeStatus
from a2a_fabric.operations import Operations
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.registry.memory import AgentMemory
from a2a_fabric.registry.names import ReservedNames

if TYPE_CHECKING:
    from a2a_fabric.agent import Agent
    from a2a_fabric.mesh.workers import Workers

_log = logging.getLogger(__name__)


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
        is_serving: bool = True,
        session_file: Path | None = None,
    ) -> None:
        """`descriptions` is where the node remembers what agents offer, if that is not its store. `workers` are the
        other processes of the node, if it has several. `session_file` is where it keeps sessions over a restart.
        """
        self._session_file = session_file
        self.config = config or Config()
        self._is_serving = is_serving
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
        self._limits = NodeLimits(self.config.limits, None if workers is None else workers.counts)
        self.active_policy = ActivePolicy(self.config.policy, has_nodes=self.config.mesh is not None)
        self._guards = build_guards(self.config.guards)
        mesh_key = None if self.config.mesh is None else self.config.mesh.key
        self._psk = psk
        self._continuation_seal = ContinuationSeal(mesh_key or self.config.auth.psk or psk)
        self._log_stream = log_stream
        self._descriptions = descriptions
        self._peers = find_peers(self.config, workers, self._limits)
        self._lifetimes = AsyncExitStack()
        self._views = self.config.views
        self._has_checked_views = not self._views

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._status = NodeStatus()
            self.store: Store = self._status.wrap_store(await open_store(self.store_address))
            stack.push_async_callback(self.store.aclose)
            memory = AgentMemory(self._descriptions or self.store.descriptions)
            await memory.load()
            self._build(stack, memory)
            if self._receipt_writer is not None:
                stack.push_async_callback(self._receipt_writer.flush)  # after the last call has ended
            if self.history_pruner is not None:
                self.history_pruner.start()
                stack.push_async_callback(self.history_pruner.aclose)
            if self.call_history is not None:
                self.call_history.start()
                stack.push_async_callback(self.call_history.aclose)  # as well
            await self._stored_keys.load()
            stack.push_async_callback(self._guards.aclose)
            await self.agents.login_listings.load_recent()
            for door in self.doors:
                await stack.enter_async_context(door.lifetime)
            for source in self.agents.sources:
                await self.registry.load(source)
            await self.registry.catalog.build_indexes()
            for door in self.doors:
                await door.prepare()
            self.registry.add_listener(self._log_view_warnings)
            self._log_view_warnings(self.registry.catalog)
            if self._is_serving:
                await join_mesh(self._context, self.agents, self._calls, self.peer_services)
            await stack.enter_async_context(self.jobs)
            stack.push_async_callback(self.agents.history.aclose)
            stack.push_async_callback(memory.aclose)
            stack.push_async_callback(self._stored_keys.aclose)
            message_pruner = MessagePruner(self.store.messages, self.config.messages.keep_seconds)
            tasks = [
                asyncio.ensure_future(each.run())
                for each in (
                    self.agents.health_monitor,
                    self.agents.history,
                    self.agents.leases,
                    memory,
                    message_pruner,
                    self._stored_keys,
                    self._status.lag,
                    self.admin.activity,
                )
            ]
            tasks += [asyncio.ensure_future(self.agents.follow_source(source)) for source in self.agents.sources]
            if self._receipt_writer is not None:
                tasks.append(asyncio.ensure_future(self._receipt_writer.run()))
            stack.push_async_callback(cancel_and_wait, *tasks)
            if self._peers is not None:
                stack.push_async_callback(self._peers.finish_received, self.config.limits.drain_seconds)
            self._lifetimes = stack.pop_all()
        current_origin.set(UNKNOWN_ORIGIN)  # doors identify callers while they are built, too
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lifetimes.aclose()

    @property
    def peer_services(self) -> PeerServices:
        """What this node does for its peers."""
        answer_admin = self.admin.processes.answer
        return build_peer_services(
            self._context, self.agents, self.runtimes, self._calls, self.app, answer_admin, self._doors.make_room
        )

    def reload(self, config: Config, *, is_requested: bool = False) -> ReloadOutcome:
        """Put a changed configuration into effect as far as possible. `is_requested`: keys and issuers are read anew
        even if nothing changed, since files that they name may have. Raises ConfigError; then nothing has changed.
        """
        return self.settings.apply(config, again=("auth", "tls") if is_requested else ())

    def narrow_to_view(self, principal: Principal, view: str | None) -> Principal:
        """The user of MCP on stdio, within a view of this node. Raises BadInput for a view that it does not have."""
        narrowed = self._authentication.resolver.narrow(principal, Credentials(view=view))
        return self.active_policy.bind(narrowed, "mcp", "", "")

    def _build(self, stack: AsyncExitStack, memory: AgentMemory) -> None:
        """All parts of the node, each after those that it needs."""
        config = self.config
        self.node_health = self._status.build_health()
        context = self._context = self._build_context(stack)
        reserved = self._reserve_names()
        self.agents = AgentParts(context, self._sources, memory, reserved)
        self.registry, self.logins = self.agents.registry, self.agents.logins
        node_keys = LazyNodeKeys(config, self._base, self._environ)
        self.runtimes = RuntimeParts(context, self.agents, node_keys, self._mounted_agents)
        self.runtime_pool = self.runtimes.pool
        self.agents.connect(self.runtime_pool)
        self._receipt_writer = node_keys.load_receipt_writer(self.store.receipts)
        calls = self._calls = CallParts(
            context, self.agents, self.runtimes, self._receipt_writer, self._continuation_seal, self.node_health
        )
        self.gateway = calls.gateway
        self.jobs = calls.build_jobs()
        self.logins.add_login_listener(self.jobs.resume_after_login)
        registrar = self.agents.build_registrar()
        self.messages, self.inboxes = calls.build_messages(self.jobs, registrar)
        self.operations = Operations(
            self.gateway,
            self.jobs,
            registrar,
            self.inboxes,
            self.messages,
            self.logins,
            calls.task_translator,
            calls.signals,
            self.call_history,
            build_matcher(config.federation, self._base, stack),
        )
        self.admin = build_admin(
            self.settings,
            gateway=self.gateway,
            operations=self.operations,
            registrar=registrar,
            jobs=self.jobs,
            store=self.store,
            store_address=self.store_address,
            sources=self._sources,
            runtime_pool=self.runtime_pool,
            health_monitor=self.agents.health_monitor,
            metrics=self.telemetry.metrics,
            log=self.telemetry.log,
            environ=self._environ,
            base=self._base,
            psk=self._psk,
            processes=self._find_processes(),
        )
        self._build_web(node_keys)
        self._observe_node()
        self._register_settings(reserved)

    def _find_processes(self) -> Processes:
        workers = None if self._peers is None else self._peers.workers
        return Processes() if workers is None else Processes(workers.place.name, workers.place.folder, workers.peers)

    def _build_context(self, stack: AsyncExitStack) -> NodeContext:
        config = self.config
        self.telemetry = build_telemetry(
            config.log, self._base, self._log_stream, stack, lambda agent_id: self.agents.find(agent_id)
        )
        if self._peers is not None:
            stack.push_async_callback(self._peers.aclose)
        self.history_pruner = build_history_pruner(config, self.store)
        self.call_history = build_call_history(config, self.store, self.telemetry.metrics, self.history_pruner)
        return NodeContext(
            config=config,
            base=self._base,
            environ=self._environ,
            stack=stack,
            store=self.store,
            store_address=self.store_address,
            telemetry=self.telemetry,
            call_history=self.call_history,
            recorder=build_recorder(config, self._environ, self.call_history, self.telemetry.metrics, stack),
            guards=self._guards,
            policy=self.active_policy,
            limits=self._limits,
            callbacks=Callbacks(config.public_url, owner_tag="" if self._peers is None else self._peers.owner_tag),
            peers=self._peers,
            session_file=self._session_file,
            is_serving=self._is_serving,
        )

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

    def _build_web(self, node_keys: LazyNodeKeys) -> None:
        """Authentication, the doors, and the application that mounts them."""
        self._doors = DoorParts(
            self._context,
            self._authentication,
            node_keys,
            self.runtimes,
            self._calls,
            self.operations,
            self.jobs,
            self.messages,
            self.inboxes,
        )
        self.doors = self._doors.doors
        stops = [self.admin.stop, self.jobs.stop, self.registry.changes.stop, self._calls.message_signals.stop]
        stops += [part.stop for part in (self.call_history, self._peers) if part is not None]
        console = build_console(
            lambda: self.settings.running, self.store.keys, self._stored_keys.load, self._context.stack
        )
        self.app = self._doors.build_app(self.agents, self.node_health, stops, console)

    def _observe_node(self) -> None:
        """The checks of the node's health, and the metrics of its parts."""
        self._status.add_checks(self.node_health, self.registry, self.config.health.required, self.telemetry.log)
        limits = {
            "calls": self._limits.calls,
            "streams": self._limits.streams,
            "subscriptions": self._limits.subscriptions,
            **self.runtimes.thread_limits,
        }
        clients = [*self.runtimes.clients, self._doors.tunnel_client, self.agents.federation_client]
        sessions = {kind: count for door in self.doors for kind, count in door.sessions.items()}
        self._status.add_metrics(self.telemetry.metrics, self.runtime_pool, limits, clients, sessions)

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
                self.app.set_middleware(
                    self._authentication.build_token_middleware(),
                    self._authentication.build_identity_middleware(self._limits.body),
                )

            return take_effect

        register = self.settings.register
        register("auth", prepare_auth)
        register("views", prepare_auth)
        register("policy", lambda config: self.active_policy.prepare(config.policy))
        register("log.level", lambda config: partial(self.telemetry.log.set_level, config.log.level))
        self.settings.register_limits(CHANGEABLE_LIMITS, self._apply_limits)

    def _apply_limits(self, limits: LimitSettings) -> None:
        self._limits.apply(limits)
        self.gateway.set_timeouts(limits.timeout_ms, limits.max_timeout_ms)
        self.runtimes.agent_threads.resize(limits.agent_threads)
        self.runtime_pool.set_limits(limits.concurrent_calls_per_agent, limits.drain_seconds)
        self.jobs.set_drain_timeout(limits.drain_seconds)
        if self.runtimes.factory.set_reply_bytes(limits.reply_bytes):
            self.runtime_pool.replace_all()

    def _log_view_warnings(self, catalog: Catalog) -> None:
        """Once, when each agent has been asked what it offers, and after a change of the views."""
        if self._has_checked_views or self.registry.pending_descriptions.has_any:
            return
        self._has_checked_views = True
        for warning in list_view_warnings(self._views, catalog):
            _log.warning("%s", warning)


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
