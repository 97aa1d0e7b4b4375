"""`fabric.graph.plan` and `fabric.graph.run`: check a task graph, and run it as a job with one job for each node.

Which agents a graph may use is decided as for any call: every node is a call of the caller's own. A node without a
capability gets the one that the words of its task choose. `fabric.job.*` show, follow and cancel a graph by its job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import LINE_PATTERN
from a2a_fabric.core.call import Call, Emit, Input, Principal
from a2a_fabric.core.capability_choice import choose_unnamed_capability
from a2a_fabric.core.errors import BadInput, suggest_nearest
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.propagation import MaybeChain
from a2a_fabric.core.result import Result
from a2a_fabric.core.word_routing import RequestPart
from a2a_fabric.gateway import Gateway
from a2a_fabric.graphs.model import GraphNode, GraphPlan, TaskGraph, node_error, plan_graph
from a2a_fabric.graphs.runner import GraphRequest, Graphs
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.views import handle_from_job, result_or_handle
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments


class GraphPlanArguments(TracedArguments, frozen=True, kw_only=True):
    graph: TaskGraph


class GraphRunArguments(TracedArguments, frozen=True, kw_only=True):
    graph: TaskGraph
    as_job: Annotated[bool, Meta(description="Answer at once with a job_id; see fabric.job.status.")] = msgspec.field(
        default=False, name="async"
    )
    stream: Annotated[bool, Meta(description="Send an event for each node that begins or ends.")] = False
    timeout_ms: Annotated[
        int | None, Meta(description="How long to wait; then the answer is the job, which goes on.")
    ] = None
    idempotency_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE_PATTERN)] | None,
        Meta(description="The same key again gives the same graph instead of a second one."),
    ] = None


class GraphOperations:
    def __init__(self, gateway: Gateway, jobs: Jobs, graphs: Graphs) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._graphs = graphs

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.graph.plan", "Check a task graph, and show in which order its nodes run.",
                      GraphPlanArguments, self.plan, scopes=()),
            Operation("fabric.graph.run", "Run a task graph: work for several agents, as one job.", GraphRunArguments,
                      self.run, scopes=(), read_only=False),
        ]  # fmt: skip

    async def plan(self, arguments: GraphPlanArguments, request: OperationRequest, emit: Emit) -> Result:
        """Raises BadInput, which names the node and the field."""
        return Result(data=render_plan(self._check(arguments.graph, request.principal)))

    async def run(self, arguments: GraphRunArguments, request: OperationRequest, emit: Emit) -> Result:
        """The result of the graph, or its job if that takes longer than the caller waits. Raises BadInput."""
        timeout = self._gateway.clamp_timeout(arguments.timeout_ms) / 1000
        key = arguments.idempotency_key
        return await self.run_graph(arguments.graph, request, emit, 0 if arguments.as_job else timeout, key)

    async def run_graph(
        self, graph: TaskGraph, request: OperationRequest, emit: Emit, timeout: float, key: str | None = None
    ) -> Result:
        """The result of the graph, or its job after `timeout` seconds; with 0 at once. Raises BadInput, RateLimited."""
        job = await self._graphs.accept(self._prepare(graph, request.principal, request, key))
        if not timeout:
            return handle_from_job(job)
        principal_id = request.principal.principal_id
        if self._jobs.waiting_requests.can_acquire(principal_id):
            with self._jobs.waiting_requests.hold(principal_id):
                await self._jobs.relay_events(job.job_id, emit, timeout)
        return result_or_handle(await self._jobs.get(request.principal, job.job_id))

    async def accept_parts(
        self, parts: Sequence[RequestPart], call: Call, job_id: str, meta: dict[str, Any]
    ) -> JobSummary:
        """The parts of a request, instead of the call to one agent, as a graph with this job. Raises as `run_graph`."""
        conversation_id = call.conversation_id if isinstance(call.conversation_id, str) else None
        graph = graph_from_parts(parts, call.input.context, conversation_id)
        request = GraphRequest(
            graph=self._check(graph, call.auth).graph,
            principal=call.auth,
            trace=call.trace,
            delegation_chain=call.delegation_chain,
            key=job_id,
            job_id=job_id,
            meta=meta,
        )
        return await self._graphs.accept(request)

    def _prepare(
        self, graph: TaskGraph, principal: Principal, request: OperationRequest, key: str | None = None
    ) -> GraphRequest:
        """Raises BadInput, which names the node and the field."""
        chain: MaybeChain = request.delegation_chain
        checked = self._check(graph, principal).graph
        return GraphRequest(graph=checked, principal=principal, trace=request.trace, delegation_chain=chain, key=key)

    def _check(self, graph: TaskGraph, principal: Principal) -> GraphPlan:
        plan = plan_graph(graph)
        nodes = tuple(self._complete(node, principal) for node in graph.nodes)
        return msgspec.structs.replace(plan, graph=msgspec.structs.replace(graph, nodes=nodes))

    def _complete(self, node: GraphNode, principal: Principal) -> GraphNode:
        """The node with its capability. An agent that the caller may not call is like one that does not exist."""
        registry = self._gateway.registry
        manifest = registry.get_for(principal, node.agent)
        if manifest is None:
            hint = suggest_nearest(node.agent, registry.list_hints(principal, node.agent))
            raise node_error(
                node.id, "agent", f"there is no agent '{node.agent[:128]}'{hint}", reason="AGENT_NOT_FOUND"
            )
        if node.capability is None:
            is_learnt = registry.catalog.is_discovered(manifest.agent_id)
            words = Input(task=node.task, context=node.input)
            try:
                choice = choose_unnamed_capability(manifest.capabilities, words, is_learnt=is_learnt)
            except BadInput as error:
                raise node_error(node.id, "capability", error.message) from error
            return msgspec.structs.replace(node, capability=choice.capability.name)
        if manifest.find_capability(node.capability) is None and not manifest.is_open_ended:
            hint = suggest_nearest(node.capability, (each.name for each in manifest.capabilities))
            problem = f"'{node.agent}' has no capability '{node.capability[:128]}'{hint}"
            raise node_error(node.id, "capability", problem, reason="CAPABILITY_NOT_FOUND")
        return node


def graph_from_parts(parts: Sequence[RequestPart], context: dict[str, Any], conversation_id: str | None) -> TaskGraph:
    """The graph of a request for several agents; its answer has that of each part under its agent's name."""
    nodes = tuple(_node_from_part(part, context) for part in parts)
    return TaskGraph(nodes=nodes, graph_id="request", conversation_id=conversation_id, answer="nodes")


def _node_from_part(part: RequestPart, context: dict[str, Any]) -> GraphNode:
    """A part that needs another one gets its result behind its own words. What the caller wrote refers to nothing."""
    text = part.text.replace("${", "$ {")
    results = "".join(f"\n\n${{{needed}}}" for needed in part.depends_on)
    return GraphNode(id=part.id, agent=part.agent_id, capability=part.capability, task=text + results, input=context)


def render_plan(plan: GraphPlan) -> dict[str, Any]:
    return {
        "graph_id": plan.graph.graph_id,
        "levels": [list(level) for level in plan.levels],
        "nodes": [
            {
                "id": node.id,
                "agent": node.agent,
                "capability": node.capability,
                "needs": list(plan.needs[node.id]),
                "when": node.when,
            }
            for node in plan.graph.nodes
        ],
        "count": len(plan.graph.nodes),
    }
