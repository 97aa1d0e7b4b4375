"""The runtimes of a node's agents: what they share, the pool that holds them, and what they offer beyond calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from a2a_fabric.core.agent import Manifest, is_imported
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.logins import find_login_owner
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.shared_counts import SharedCounts
from a2a_fabric.core.threads import WorkerThreads
from a2a_fabric.node.agents import AgentParts
from a2a_fabric.node.context import NodeContext
from a2a_fabric.node.identity import LazyNodeKeys
from a2a_fabric.node.runtime_factory import DEFAULT_KIND, NodeIdentity, RuntimeFactory
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.protocols.mcp.apps import find_ui_uri
from a2a_fabric.protocols.mcp.guarded_provider import GuardedProvider
from a2a_fabric.protocols.mcp.runtime_ports import (
    OffersPromptsAndResources,
    OffersTunnel,
    PromptResourceProvider,
    PromptResourceProviders,
    Tunnel,
)
from a2a_fabric.registry.registration_policy import read_terms
from a2a_fabric.registry.runtime_pool import RuntimePool
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.per_principal import PerPrincipalRuntime
from a2a_fabric.tools.computation import Computations
from a2a_fabric.tools.spec import Toolbox

if TYPE_CHECKING:
    from a2a_fabric.agent import Agent


class RuntimeParts:
    """`mounted` are the Python agents of this process."""

    def __init__(
        self, context: NodeContext, agents: AgentParts, node_keys: LazyNodeKeys, mounted: Mapping[str, Agent]
    ) -> None:
        self._context = context
        self._agents = agents
        self._registry = agents.registry
        self._mounted = mounted
        self._node_identity = NodeIdentity(context.config.identity, node_keys.load_signer)
        self.prompts_and_resources = PromptResourceProviders(
            self._find_prompts_and_resources, lambda: self.pool.special_ids
        )
        self._registry.listings.add_listener(lambda _: self.prompts_and_resources.notify_changed())
        self.pool = self._build_pool()

    def refresh_agent(self, agent_id: str) -> None:
        """An agent said that it offers something else now: ask it again."""
        self._agents.health_monitor.refresh(agent_id)
        if self._context.peers is not None:
            self._context.peers.notify_changed(agent_id)

    def find_tunnel(self, manifest: Manifest, principal: Principal) -> Tunnel | None:
        """None for agents that registered, or whose tools are chosen: what goes through unchanged is not judged. None,
        too, for agents whose calls a guard has to see, and while receipts are written.

        None also for an agent at which this principal is not signed in.
        """
        if read_terms(manifest) is not None or manifest.agent_id in self._registry.catalog.translations:
            return None
        if self._context.config.receipts.enabled:  # a receipt names the result
            return None
        if self._context.guards.concern(manifest.agent_id):
            return None
        live_runtime = self.pool.get_live_runtime(manifest)
        if isinstance(live_runtime.runtime, PerPrincipalRuntime):
            owner = find_login_owner(principal)
            if owner is None or self._registry.holds_back_from(owner, manifest):
                return None
            return live_runtime.runtime.find_tunnel(owner)
        return cast(OffersTunnel, live_runtime.runtime).tunnel if live_runtime.offers(OffersTunnel) else None

    def _build_pool(self) -> RuntimePool:
        config, stack = self._context.config, self._context.stack
        context = self._build_context()
        factory = self.factory = RuntimeFactory(
            config.registration.runtimes,
            context,
            self._agents.reach,
            self._on_runtime_identified,
            self._agents.logins,
            self._node_identity,
            msgspec.structs.replace(context, http=self._agents.federation_client, guard=self._agents.federation_guard),
        )
        stack.push_async_callback(factory.aclose)
        pool = RuntimePool(
            # As declared: what the agent said before, and which of its tools are listed, is not the runtime's business.
            lambda manifest: (
                self._build_held_elsewhere(manifest) or factory.build(self._registry.find_declaration(manifest))
            ),
            loader=factory.loading,
            breaker=config.breaker,
            calls_per_agent=config.limits.concurrent_calls_per_agent,
            share=self._context.limits.caller_share,
            find_counts=self._find_counts,
            drain_timeout=config.limits.drain_seconds,
            probe_timeout=config.health.timeout,
            is_signed=self._node_identity.is_signed,
            special_types=(OffersPromptsAndResources, PerPrincipalRuntime),
            on_special=self.prompts_and_resources.notify_changed,
        )
        stack.push_async_callback(pool.aclose)
        return pool

    def _find_counts(self, manifest: Manifest) -> SharedCounts | None:
        """None for an agent that one process holds: all calls pass the gate there."""
        peers = self._context.peers
        is_held = peers is not None and peers.workers is not None and peers.workers.is_held(manifest)
        return None if is_held else self._context.limits.counts

    def _build_context(self) -> RuntimeContext:
        node, config, stack = self._context, self._context.config, self._context.stack
        http = OutboundClient(when_full="open")
        web = OutboundClient(Guard(allow=config.tools.web_allow), when_full="open")
        stack.push_async_callback(http.aclose)
        stack.push_async_callback(web.aclose)
        share = node.limits.caller_share
        tool_threads = WorkerThreads("tools", config.tools.threads, share)
        agent_threads = self.agent_threads = WorkerThreads("Python agents", config.limits.agent_threads, share)
        computations = Computations(config.tools.processes, share)
        self.clients = [http, web]
        self.thread_limits = {"tool_threads": tool_threads.running, "agent_threads": agent_threads.running}
        stack.callback(computations.close)
        stack.callback(tool_threads.close)
        stack.callback(agent_threads.close)
        return RuntimeContext(
            http=http,
            base=node.base,
            reply_bytes=config.limits.reply_bytes,
            overlay=None if config.federation.overlay is None else node.base / config.federation.overlay,
            mounted=self._mounted,
            callbacks=node.callbacks,
            owner_tag=node.owner_tag,
            environ=node.environ,
            threads=agent_threads,
            toolbox=Toolbox(config.tools, node.base, web, node.environ, tool_threads, computations),
            on_capabilities_changed=self.refresh_agent,
            on_prompts_resources_changed=self.prompts_and_resources.notify_changed,
        )

    def _build_held_elsewhere(self, manifest: Manifest) -> Runtime | None:
        """The runtime of an agent that another worker or another node of the mesh holds."""
        peers = self._context.peers
        return None if peers is None else peers.build_runtime(manifest, self.prompts_and_resources.notify_changed)

    def _on_runtime_identified(
        self, agent_id: str, guessing_runtime: Runtime, identified: Runtime, kind: str | None
    ) -> bool:
        """The runtime of an agent without a declared one was detected; the agent may be a whole node."""
        is_replaced = self.pool.replace(agent_id, guessing_runtime, identified)
        if is_replaced:
            self._registry.set_detected_runtime(agent_id, kind or DEFAULT_KIND)
        self._agents.nodes.on_runtime_identified(agent_id)
        return is_replaced

    def _find_prompts_and_resources(self, agent_id: str, principal: Principal | None) -> PromptResourceProvider | None:
        provider = self._find_provider(agent_id, principal)
        if provider is None or not self._context.guards.concern(agent_id):
            return provider
        return GuardedProvider(provider, agent_id, self._context.guards)

    def _find_provider(self, agent_id: str, principal: Principal | None) -> PromptResourceProvider | None:
        runtime = self.pool.find_runtime(agent_id) or self._load_user_interfaces(agent_id)
        if isinstance(runtime, PerPrincipalRuntime):
            owner = None if principal is None else find_login_owner(principal)
            return None if owner is None else runtime.find_prompts_and_resources(owner)
        return runtime.prompts_and_resources if isinstance(runtime, OffersPromptsAndResources) else None

    def _load_user_interfaces(self, agent_id: str) -> Runtime | None:
        """The runtime of another node's agent that was not called yet, if its tools have user interfaces."""
        manifest = self._agents.find(agent_id) if is_imported(agent_id) else None
        if manifest is None or not any(each.metadata and find_ui_uri(each.metadata) for each in manifest.capabilities):
            return None
        try:
            return self.pool.get_live_runtime(manifest).runtime
        except FabricError:  # the agent's health says why
            return None
