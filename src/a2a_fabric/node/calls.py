"""How a node runs calls, jobs and messages: the steps around each of them, in order."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.coordination.signals import SignalExchange
from a2a_fabric.coordination.tasks import TaskTranslator
from a2a_fabric.core.agent import is_elsewhere
from a2a_fabric.core.call import Call, Emit, Handler, compose
from a2a_fabric.core.coordination import CoordinationGuard
from a2a_fabric.core.disclosure import administers, is_operator
from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.core.node_health import NodeHealth
from a2a_fabric.core.pending_questions import ContinuationSeal
from a2a_fabric.core.ports import load_module
from a2a_fabric.core.propagation import DelegationGuard, make_chain_name
from a2a_fabric.core.receipts import ReceiptRecorder
from a2a_fabric.core.result import Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import JobDependencies, Jobs
from a2a_fabric.jobs.webhooks import WebhookUrlPolicy
from a2a_fabric.messages.conversations import ConversationSignals, Senders
from a2a_fabric.messages.delivery import MessageDelivery
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.messages.messages import Messages
from a2a_fabric.node.agents import AgentParts
from a2a_fabric.node.context import NodeContext
from a2a_fabric.node.runtimes import RuntimeParts
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.registry.gate import GatedProxySteps
from a2a_fabric.registry.planner import Planner
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.steps.entry import authorize, limit, observe, record_receipts
from a2a_fabric.steps.guard import guard_calls
from a2a_fabric.steps.route import ArgumentValidator, RetryTracker, RoutingHandler
from a2a_fabric.telemetry.observer import JobLogger


async def _find_first_error(schema: bytes, data: bytes, timeout: float, /) -> list[dict[str, Any]]:
    """What runs the validator as a program is loaded by the first arguments that take long to check."""
    validator = load_module("a2a_fabric.tools.validator_process")
    errors: list[dict[str, Any]] = await validator.find_first_error(schema, data, timeout)
    return errors


class CallParts:
    """`seal` protects the questions of agents that callers carry back."""

    def __init__(
        self,
        context: NodeContext,
        agents: AgentParts,
        runtimes: RuntimeParts,
        receipt_writer: ReceiptRecorder | None,
        seal: ContinuationSeal,
        node_health: NodeHealth,
    ) -> None:
        self._context = context
        self._agents = agents
        self._runtime_pool = runtimes.pool
        self._seal = seal
        self.message_signals = ConversationSignals()
        self.gateway = self._build_gateway(receipt_writer, node_health)
        self.gateway.notice_sources.append(
            lambda principal: agents.registry.list_tool_notices() if administers(principal) else ()
        )

    def build_jobs(self) -> Jobs:
        context, limits = self._context, self._context.limits
        settings = msgspec.structs.replace(context.config.jobs, concurrent=self._find_job_slots())
        http = OutboundClient(Guard(allow=settings.webhook_allow))
        context.stack.push_async_callback(http.aclose)
        recorder = context.recorder
        delivery = MessageDelivery(
            context.store.messages,
            context.config.messages,
            self.message_signals,
            self._agents.find_capability,
            self._handler_without_fallback,
        )
        dependencies = JobDependencies(
            handler=self.gateway.call,
            handler_for_jobs=self._job_handler,
            check_call=self._check_call,
            count_calls=limits.call_rate.count,  # now, instead of postponing the job later
            find_capability=self._agents.find_capability,
            node_id=context.config.node_id,
            share=limits.caller_share,
            waiting_requests=limits.streams,
            drain_timeout=context.config.limits.drain_seconds,
            listener=JobLogger(context.telemetry.log, None if recorder is None else recorder.record_job),
            override_handler=delivery.wrap_handler,
        )
        return Jobs(context.store, dependencies, settings, http, WebhookUrlPolicy(Guard(allow=settings.webhook_allow)))

    def _find_job_slots(self) -> int:
        """Any worker of the node takes any job that waits, so each has its part of the slots."""
        slots, peers = self._context.config.jobs.concurrent, self._context.peers
        return slots if peers is None or peers.workers is None else peers.workers.place.divide(slots)

    def build_messages(self, jobs: Jobs, registrar: Registrar) -> tuple[Messages, Inboxes]:
        context, registry, metrics = self._context, self._agents.registry, self._context.telemetry.metrics
        message_store, settings = context.store.messages, context.config.messages
        senders = Senders(registrar.find_local_registration, is_operator)
        messages = Messages(
            message_store,
            jobs,
            senders,
            registry.get_for,
            settings,
            self.message_signals,
            metrics.count_message_sent,
            context.limits.caller_share,
            lambda agent_id: registry.catalog.is_discovered(agent_id),
            context.guards,
            context.limits.counts,
        )
        inboxes = Inboxes(
            message_store,
            context.store.notices,
            senders,
            settings,
            self.message_signals,
            find_agent=self._agents.find,
            on_sent=metrics.count_message_sent,
            on_received=metrics.count_messages_received,
            waiting_requests=context.limits.streams,
            guards=context.guards,
        )
        self.signals.connect(messages, inboxes)
        return messages, inboxes

    def _build_gateway(self, receipt_writer: ReceiptRecorder | None, node_health: NodeHealth) -> Gateway:
        context, config, registry = self._context, self._context.config, self._agents.registry
        delegations = DelegationGuard(make_chain_name(config.node_id), config.routing.max_delegations)
        self._delegations = delegations
        planner = Planner(registry, config.routing)
        limits = context.limits
        coordination = CoordinationGuard(delegations.node, lambda: registry.catalog.agents)
        authorize_call = authorize(registry, delegations, context.policy, coordination)
        receipts = [] if receipt_writer is None else [record_receipts(receipt_writer)]
        entry_steps = [observe(context.telemetry, context.recorder), *receipts, authorize_call]
        steps = [*entry_steps, limit(limits.calls, limits.call_rate)]
        job_steps = [*entry_steps, limit(limits.calls)]  # jobs were counted per minute when they were accepted
        guards = [guard_calls(context.guards)] if context.guards else []
        self.task_translator = TaskTranslator(registry, delegations.node)
        self.signals = SignalExchange(registry)
        team_steps = [self.task_translator.step, self.signals.step] if self._agents.is_federated else []
        self.proxy_steps = GatedProxySteps(
            steps, lambda manifest: self._runtime_pool.get_live_runtime(manifest).gate, delegations
        )
        validator = ArgumentValidator(_find_first_error)
        retries = RetryTracker(config.routing.retries, context.telemetry.metrics.count_retry)

        def route_with(planner: Planner) -> RoutingHandler:
            return RoutingHandler(
                planner,
                self._runtime_pool.find_handler,
                registry.health,
                config.routing,
                delegations,
                retries=retries,
                count_calls=self._runtime_pool.count_calls,
                on_fallback=context.telemetry.metrics.count_fallback,
                validator=validator,
                seal=self._seal,
            )

        route = self.route = route_with(planner)
        # For other nodes of the mesh, which have planned the call.
        self.call_for_node: Handler = compose([*steps, *guards], self._call_own_agent)
        if context.peers is not None:
            guards.append(context.peers.forward_answers())
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
            count_calls=self._runtime_pool.count_calls,
            load_runtime=self._runtime_pool.load_runtime,
            node_id=config.node_id,
            node_health=node_health,
            timeout_ms=config.limits.timeout_ms,
            max_timeout_ms=config.limits.max_timeout_ms,
        )

    async def _call_own_agent(self, call: Call, emit: Emit) -> Result:
        """The end of a call that another node of the mesh has planned for an agent of this one. Raises FabricError."""
        manifest = self._agents.find(call.target.agent_id)
        if manifest is None or is_elsewhere(manifest):
            raise AgentOffline(f"Agent '{call.target.agent_id}' has left this node", agent_id=call.target.agent_id)
        # What the agent calls in turn has passed this node, too.
        chain = self._delegations.extend(call.delegation_chain, manifest.agent_id)
        call = msgspec.structs.replace(call, delegation_chain=chain)
        return await self._runtime_pool.find_handler(manifest)(call, emit)
