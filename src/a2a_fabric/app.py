"""The composition root: a configuration in, a running node out. The only module that knows everybody.

What is built here is closed here, in reverse order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from a2a_fabric import admittance, plugins
from a2a_fabric.agent import Agent
from a2a_fabric.config import Config, environment
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.delegation import Delegations, chain_name
from a2a_fabric.core.disclosure import is_operator
from a2a_fabric.core.errors import AgentOffline, ConfigError
from a2a_fabric.core.listing import AGENT
from a2a_fabric.core.pipeline import Emit, Handler, Step, compose, ignore
from a2a_fabric.core.ports import AgentHost, AgentSource, Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.core.shares import Shares
from a2a_fabric.core.stores import Store
from a2a_fabric.core.threads import WorkerThreads
from a2a_fabric.doors.context import Door, DoorContext
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.desk import JobDesk, Waist
from a2a_fabric.jobs.webhook import Addresses
from a2a_fabric.messages.bells import Bells
from a2a_fabric.messages.desk import MessageDesk
from a2a_fabric.messages.keeper import MessageKeeper
from a2a_fabric.messages.parties import Parties
from a2a_fabric.messages.post_office import PostOffice
from a2a_fabric.messages.replies import Replies
from a2a_fabric.operations import Operations
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.library import Libraries, Library
from a2a_fabric.outbound.reach import Reach
from a2a_fabric.outbound.tunnel import Tunnel
from a2a_fabric.places import certificate_in, log_writer, open_store, store_address
from a2a_fabric.registry.admission import Admission
from a2a_fabric.registry.files import AgentsFile
from a2a_fabric.registry.fleet import Fleet
from a2a_fabric.registry.health import HealthBook
from a2a_fabric.registry.history import HealthHistory
from a2a_fabric.registry.leases import LeaseKeeper
from a2a_fabric.registry.names import ReservedNames
from a2a_fabric.registry.nodes import NodeAgents
from a2a_fabric.registry.passage import Passage
from a2a_fabric.registry.planner import Planner
from a2a_fabric.registry.registrar import Registrar
from a2a_fabric.registry.registry import Registry
from a2a_fabric.registry.stored import StoredAgents
from a2a_fabric.registry.terms import terms_of
from a2a_fabric.registry.watch import Watch
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.shipyard import DEFAULT_KIND, Shipyard, reached_by
from a2a_fabric.steps.authorize import authorize
from a2a_fabric.steps.limit import CallRate, limit
from a2a_fabric.steps.observe import observe
from a2a_fabric.steps.retries import Retries
from a2a_fabric.steps.route import Route
from a2a_fabric.steps.validate import validate
from a2a_fabric.telemetry.jobs import JobLines
from a2a_fabric.telemetry.logs import JSONHandler
from a2a_fabric.telemetry.metrics import FleetCollector, Metrics
from a2a_fabric.telemetry.observer import Telemetry
from a2a_fabric.tools.catalog import manifests as tool_manifests
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.validation import find_first_error
from a2a_fabric.version import __version__
from a2a_fabric.web.asgi import Web

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
    ) -> None:
        self.config = config or Config()
        self._base = base or Path.cwd()
        self.store_address = store_address(self.config, base)
        self._environ = environment() if environ is None else environ
        self._mounted = {agent.agent_id: agent for agent in agents}
        files = [AgentsFile(self._base / name, optional=name == "agents.yaml") for name in self.config.agents]
        self._sources: list[AgentSource] = [_Mounted(agents), *(files if sources is None else sources)]
        self._keys = admittance.shared_keys(self.config, psk)
        self._log_stream = log_stream
        self._lifetimes = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.store: Store = await open_store(self.store_address)
            stack.push_async_callback(self.store.aclose)
            self._build(stack)
            for door in self.doors:
                await stack.enter_async_context(door.lifetime)
            for source in self._all_sources:
                await self.registry.load(source)
            await stack.enter_async_context(self.jobs)
            stack.push_async_callback(self._history.aclose)
            keeper = MessageKeeper(self.store.messages, self.config.messages.keep_seconds)
            tasks = [asyncio.ensure_future(each.run()) for each in (self._watch, self._history, self._leases, keeper)]
            tasks += [asyncio.ensure_future(self._follow(source)) for source in self._all_sources]
            stack.push_async_callback(_end, tasks)
            self._lifetimes = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lifetimes.aclose()

    def _build(self, stack: AsyncExitStack) -> None:
        config = self.config
        self.telemetry = self._telemetry(stack)
        admission = Admission(config.registration, reached_by)
        stored = StoredAgents(self.store.registrations, self.store.notices, admission.accepts)
        health = HealthBook(config.health, changed=self.telemetry.status_changed)
        self._nodes = nodes = NodeAgents(self._is_node, self._host, health)
        self._all_sources = [*self._sources, stored, nodes]  # what is declared comes first, and wins
        reserved = ReservedNames(
            keys=(key.id for key in config.auth.keys),
            issuers=(issuer.id for issuer in config.auth.issuers),
            others=(config.node_id,),
        )
        self.registry = Registry(self._all_sources, tool_manifests(config.tools), health, stored, reserved)
        self._reach = Reach(config.registration.allow, private_for_local=config.registration.private)
        self._libraries = Libraries(self._library)
        self._callbacks = Callbacks(config.public_url)
        self.fleet = self._fleet(stack)
        self._history = HealthHistory(self.store.health, config.health, config.node_id)
        self.registry.health.listen(self._history.note)
        self._leases = LeaseKeeper(self.store.registrations, stored, self.registry.health)
        self._watch = Watch(self.registry, self.fleet.arrived, config.health, self._history.note, self.fleet.was_probed)
        self.registry.listen(self.fleet.follow)
        self.registry.listen(self._watch.follow)
        self.registry.listen(nodes.follow)
        self.gateway = self._gateway()
        limits = config.limits
        self._streams = Shares("streams and waiting requests", limits.streams, limits.share_per_caller, retry_after=5.0)
        self._subscriptions = Shares("subscriptions", limits.subscriptions, limits.share_per_caller, retry_after=10.0)
        self._bells = Bells()
        self.jobs = self._desk(stack)
        registrar = Registrar(
            self.store.registrations,
            stored,
            self.registry,
            admission,
            self._reach.check,
            self._history,
            self.telemetry.metrics.registered,
            max(config.messages.keep_seconds, config.messages.max_ttl_seconds),
        )
        self._open_post_office(registrar)
        self.operations = Operations(self.gateway, self.jobs, registrar, self.post_office, self.messages)
        self._tunnels = OutboundClient()  # of its own: streams that stand for hours take no connection from a call
        stack.push_async_callback(self._tunnels.aclose)
        self._identify = admittance.resolver(config, self._keys, self._base, self.telemetry.metrics.auth_attempt, stack)
        self.doors = [self._door(dict(table)) for table in config.doors]
        stops = [self.jobs.stop, self.registry.news.stop, self._bells.stop]
        introductions = admittance.introductions(config, self._identify)
        self.app = Web(self.doors, stops, self._callbacks, config.limits.body_bytes, introductions, self._read_store)
        self.telemetry.metrics.registry.register(
            FleetCollector(lambda: self.registry.catalog.agents, lambda: self.registry.catalog.tools, health.of)
        )

    async def _read_store(self) -> None:
        """The smallest question to the store. Raises StoreError."""
        await self.store.jobs.get("none")

    def _telemetry(self, stack: AsyncExitStack) -> Telemetry:
        writer = log_writer(self.config.log, self._base, self._log_stream, stack)
        handler = JSONHandler(writer)
        for name, level in (("a2a_fabric", writer.level), ("uvicorn", logging.WARNING), ("mcp", logging.WARNING)):
            logger = logging.getLogger(name)
            logger.addHandler(handler)
            logger.setLevel(level)
            stack.callback(logger.removeHandler, handler)
        return Telemetry(writer, Metrics(__version__), self._find, payloads=self.config.log.payloads)

    def _find(self, agent_id: str) -> Manifest | None:
        return self.registry.catalog.get(agent_id)

    def _fleet(self, stack: AsyncExitStack) -> Fleet:
        limits = self.config.limits
        yard = Shipyard(self.config.registration.runtimes, self._runtime_context(stack), self._reach, self._settled)
        stack.push_async_callback(yard.aclose)
        fleet = Fleet(
            yard.build,
            yard.in_time,
            loading=yard.loading,
            breaker=self.config.breaker,
            calls_per_agent=limits.concurrent_calls_per_agent,
            share=limits.share_per_caller,
            patience=limits.drain_seconds,
            probe_timeout=self.config.health.timeout,
        )
        stack.push_async_callback(fleet.aclose)
        return fleet

    def _runtime_context(self, stack: AsyncExitStack) -> RuntimeContext:
        config = self.config
        http = OutboundClient()
        web = OutboundClient(Guard(allow=config.tools.web_allow))
        stack.push_async_callback(http.aclose)
        stack.push_async_callback(web.aclose)
        share = config.limits.share_per_caller
        tool_threads = WorkerThreads("tools", config.tools.threads, share)
        agent_threads = WorkerThreads("Python agents", config.limits.agent_threads, share)
        stack.callback(tool_threads.close)
        stack.callback(agent_threads.close)
        return RuntimeContext(
            http=http,
            base=self._base,
            reply_bytes=config.limits.reply_bytes,
            mounted=self._mounted,
            callbacks=self._callbacks,
            options={
                "tool": Toolbox(config.tools, self._base, web, self._environ, tool_threads),
                "threads": agent_threads,
                "environ": self._environ,
                "changed": self._changed,
                "library_changed": self._libraries.changed,
            },
        )

    def _tunnel(self, manifest: Manifest) -> Tunnel | None:
        """None for registered agents: what goes through unchanged is not judged on the way."""
        if terms_of(manifest) is not None:
            return None
        tunnel: Tunnel | None = getattr(self.fleet.runtime_of(manifest), "tunnel", None)
        return tunnel

    def _library(self, agent_id: str) -> Library | None:
        library: Library | None = getattr(self.fleet.known(agent_id), "library", None)
        return library

    async def _host(self, manifest: Manifest) -> AgentHost:
        """Raises AgentOffline."""
        runtime: Any = await self.fleet.arrived(manifest)
        if not hasattr(runtime, "listing"):
            raise AgentOffline(f"'{manifest.agent_id}' stands for no node any more")
        host: AgentHost = runtime
        return host

    def _settled(self, agent_id: str, guessing: Runtime, right: Runtime, kind: str | None) -> bool:
        """An agent whose runtime nobody named has turned out to be of this one; it may be a whole node."""
        is_taken = self.fleet.settle(agent_id, guessing, right)
        if is_taken:
            self.registry.turned_out(agent_id, kind or DEFAULT_KIND)
        self._nodes.follow(self.registry.catalog)
        return is_taken

    def _is_node(self, manifest: Manifest) -> bool:
        """Whether an entry stands for another node with all its agents, as declared or as it turned out."""
        if manifest.runtime is None:
            return hasattr(self.fleet.known(manifest.agent_id), "listing")
        return manifest.runtime == "fabric" and AGENT not in manifest.endpoint

    def _changed(self, agent_id: str) -> None:
        """An agent said that it offers something else now: ask it again."""
        self._watch.again(agent_id)

    def _gateway(self) -> Gateway:
        config, registry = self.config, self.registry
        delegations = Delegations(chain_name(config.node_id), config.routing.max_delegations)
        planner = Planner(registry, config.routing)
        limits = config.limits
        call_shares = Shares("calls", limits.concurrent_calls, limits.share_per_caller)
        self._call_rate = CallRate(limits.calls_per_minute)
        steps = [
            observe(self.telemetry),
            authorize(self._find, delegations),
            limit(call_shares, self._call_rate),
        ]
        steps_of_jobs = [*steps[:2], limit(call_shares)]  # per minute they were counted when they were accepted
        self._passage = Passage(steps, lambda manifest: self.fleet.berth_of(manifest).gate, delegations)
        checked = validate(self._find, find_first_error)
        self._checks = (steps[1], checked)
        retries = Retries(config.routing.retries, self.telemetry.metrics.retried)

        def routed(plan: Planner, steps: Sequence[Step]) -> Handler:
            route = Route(
                plan,
                self.fleet.handler_of,
                registry.health,
                config.routing,
                delegations,
                retries=retries,
                busy=self.fleet.calls_of,
                fell_back=self.telemetry.metrics.fell_back,
            )
            return compose([*steps, checked], route)

        no_others = msgspec.structs.replace(config.routing, fallback=False)
        self._ask_nobody_else = routed(Planner(registry, no_others), steps_of_jobs)
        self._job_handler = routed(planner, steps_of_jobs)
        return Gateway(
            registry,
            planner,
            routed(planner, steps),
            calls_of=self.fleet.calls_of,
            node_id=config.node_id,
            timeout_ms=config.limits.timeout_ms,
            max_timeout_ms=config.limits.max_timeout_ms,
        )

    def _desk(self, stack: AsyncExitStack) -> JobDesk:
        config = self.config
        http = OutboundClient(Guard(allow=config.jobs.webhook_allow))
        stack.push_async_callback(http.aclose)

        async def planned(call: Call, emit: Emit) -> Result:
            self.gateway.plan(call.target.agent_id, call.target.capability, call.auth, stream=True)
            return Result(data={})

        check = compose(self._checks, planned)
        waist = Waist(
            handler=self.gateway.call,
            job_handler=self._job_handler,
            check=lambda call: check(call, ignore),
            count=self._count_job,
            capability_of=self._capability_of,
            node_id=config.node_id,
            share=config.limits.share_per_caller,
            waiting=self._streams,
            patience=config.limits.drain_seconds,
            news=JobLines(self.telemetry.log),
            around=self._replies().around,
        )
        addresses = Addresses(Guard(allow=config.jobs.webhook_allow))
        return JobDesk(self.store, waist, config.jobs, http, addresses)

    def _count_job(self, principal: Principal, calls: int) -> None:
        """Raises RateLimited: the caller hears it now, instead of waiting for a job that is put off."""
        self._call_rate.count(principal.principal_id, calls)

    def _replies(self) -> Replies:
        kept, settings = self.store.messages, self.config.messages
        return Replies(kept, settings, self._bells, self._capability_of, self._ask_nobody_else)

    def _open_post_office(self, registrar: Registrar) -> None:
        kept, settings, metrics = self.store.messages, self.config.messages, self.telemetry.metrics
        parties = Parties(registrar.known, is_operator)
        self.messages = MessageDesk(
            kept, self.jobs, parties, self._find, settings, self._bells, metrics.message_sent,
            self.config.limits.share_per_caller,
        )  # fmt: skip
        self.post_office = PostOffice(
            kept,
            self.store.notices,
            parties,
            settings,
            self._bells,
            find=self._find,
            sent=metrics.message_sent,
            received=metrics.messages_received,
            waiting=self._streams,
        )

    def _capability_of(self, agent_id: str, name: str) -> Capability | None:
        manifest = self.registry.catalog.get(agent_id)
        return manifest.capability(name) if manifest is not None else None

    def _door(self, table: dict[str, Any]) -> Door:
        kind = table.pop("kind", None)
        if not isinstance(kind, str):
            raise ConfigError("doors: each entry needs a `kind`")
        build = plugins.find("doors", kind)
        try:
            settings = msgspec.convert(table, build.settings)
        except msgspec.ValidationError as exc:
            raise ConfigError(f"doors: {kind}: {exc}") from exc
        metrics = self.telemetry.metrics
        context = DoorContext(
            gateway=self.gateway,
            operations=self.operations,
            identify=self._identify,
            introduce=self._identify.introduce,
            issuers=admittance.servers(self.config),
            log=self.telemetry.request_ended,
            stream_opened=self._stream_opened,
            stream_closed=self._stream_closed,
            streams=self._streams,
            subscriptions=self._subscriptions,
            share=self.config.limits.share_per_caller,
            body_bytes=self.config.limits.body_bytes,
            metrics=metrics.exposition if self.config.metrics else None,
            tunnel=self._tunnel,
            passage=self._passage,
            http=self._tunnels,
            libraries=self._libraries,
            public_url=self.config.public_url,
            kinds=frozenset(plugins.canonical(str(each.get("kind"))) for each in self.config.doors),
            jobs=self.jobs,
            messages=self.messages,
            post_office=self.post_office,
            tls=certificate_in(self._base, self.config),
        )
        door: Door = build(settings, context)
        return door

    def _stream_opened(self, principal_id: str | None) -> None:
        """Raises RateLimited."""
        self._streams.take(principal_id)
        self.telemetry.metrics.stream_opened()

    def _stream_closed(self, principal_id: str | None) -> None:
        self._streams.give_back(principal_id)
        self.telemetry.metrics.stream_closed()

    async def _follow(self, source: AgentSource) -> None:
        async def reload() -> None:
            await self.registry.load(source)
            _log.info("agents of %s: %d in the catalog", source.name, len(self.registry.catalog.agents))

        try:
            await source.watch(reload)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("watching %s failed; its changes are no longer seen", source.name)


class _Mounted:
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


async def _end(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
