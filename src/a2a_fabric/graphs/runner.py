"""Runs task graphs: the graph is an internal job, and each of its nodes is a job of the same owner.

The job of a node has an id that is made from the graph's job and the node. When the graph's worker dies, another one
begins the graph again and meets the same jobs: those that ended are not repeated, those that run are waited for. So the
graph itself stores nothing but its log.

The graph's job takes no slot from its owner, else graphs could take all slots and wait for their own nodes forever."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Emit, Input, Principal, ResponseForm, Target, owner_from_principal
from a2a_fabric.core.errors import BadInput, FabricError, JobNotFound, RateLimited
from a2a_fabric.core.job import Job, JobSummary, NewJob, new_job_id
from a2a_fabric.core.propagation import MaybeChain, Trace, continue_trace
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.retry import RetryPolicy, is_recoverable
from a2a_fabric.graphs.model import (
    GraphNode,
    GraphPlan,
    NodeState,
    Results,
    TaskGraph,
    fill_input,
    fill_task,
    is_wanted,
    node_error,
    plan_graph,
)
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.run import GRAPH_AGENT, GRAPH_KIND, RETRY_META, JobHandler
from a2a_fabric.jobs.settings import JobOptions

GRAPH_META, NODE_META = "graph", "node"  # in the meta of a node's job: the job of its graph, and its name there
_GRAPH_KEY, _JOB_KEY = "graph", "job_id"  # in the context of the graph's own call
_NEVER_AGAIN = RetryPolicy(max_attempts=1)
MAX_RESULT_BYTES = 32 << 20  # of all nodes together; a graph keeps them in memory while it runs
COORDINATION_FAILED = "COORDINATION_FAILED"  # the code of a graph in which nodes failed
_MAX_ERROR = 500  # characters of a node's error in the result of the graph


class NodeOutcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a node."""

    agent: str
    capability: str
    state: NodeState = "waiting"
    job_id: str | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    reason: str | None = None  # why it was skipped


class GraphRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A graph whose nodes have capabilities, and who wants it."""

    graph: TaskGraph
    principal: Principal
    trace: Trace
    delegation_chain: MaybeChain = msgspec.UNSET
    key: str | None = None
    job_id: str | None = None
    meta: dict[str, Any] = {}


class Graphs:
    """Accepts graphs, and runs them for the job worker."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        jobs.add_internal_handler(GRAPH_KIND, JobHandler(handler=self._run, may_repeat=True, retry=_NEVER_AGAIN))

    async def accept(self, request: GraphRequest) -> JobSummary:
        """Store a graph as a job. Raises BadInput, RateLimited."""
        plan_graph(request.graph)
        owner = owner_from_principal(request.principal)
        own_id = new_job_id() if request.key is None else _derive_id("graph", owner, request.key)
        job_id = request.job_id or own_id
        call = Call(
            trace=request.trace,
            auth=request.principal,
            target=Target(
                agent_id=GRAPH_AGENT,
                capability=request.graph.graph_id or "run",
                timeout_ms=self._jobs.settings.max_timeout_ms,
            ),
            input=Input(context={_JOB_KEY: job_id, _GRAPH_KEY: msgspec.to_builtins(request.graph)}),
            response=ResponseForm(stream=True),
            conversation_id=request.graph.conversation_id or msgspec.UNSET,
            delegation_chain=request.delegation_chain,
        )
        meta = {**request.meta, "kind": GRAPH_KIND, "nodes": len(request.graph.nodes)}
        return await self._jobs.accept_internal(
            NewJob(job_id=job_id, owner=owner, call=call, key=request.key, meta=meta)
        )

    async def _run(self, call: Call, emit: Emit) -> Result:
        graph = msgspec.convert(call.input.context[_GRAPH_KEY], TaskGraph)
        run = _GraphRun(self._jobs, call, plan_graph(graph), str(call.input.context[_JOB_KEY]), emit)
        try:
            return await run.run()
        except asyncio.CancelledError:
            if await self._is_cancelled(call):  # and not only stopped, to go on elsewhere
                await run.cancel_nodes()
            raise

    async def _is_cancelled(self, call: Call) -> bool:
        with suppress(FabricError):
            return (await self._jobs.get(call.auth, str(call.input.context[_JOB_KEY]))).cancel_requested
        return False


class _GraphRun:
    """One run of a graph. All fields belong to one event loop; each node is one task at most."""

    def __init__(self, jobs: Jobs, call: Call, plan: GraphPlan, job_id: str, emit: Emit) -> None:
        self._jobs = jobs
        self._call = call
        self._plan = plan
        self._job_id = job_id
        self._emit = emit
        self._nodes = {node.id: node for node in plan.graph.nodes}
        self.outcomes = {
            node.id: NodeOutcome(agent=node.agent, capability=str(node.capability)) for node in plan.graph.nodes
        }
        self._results = Results()
        self._bytes_left = MAX_RESULT_BYTES
        self._missing = {node_id: len(needed) for node_id, needed in plan.needs.items()}
        self._dependents: dict[str, list[str]] = {}
        for node_id, needed in plan.needs.items():
            for each in needed:
                self._dependents.setdefault(each, []).append(node_id)

    async def run(self) -> Result:
        ready = [node_id for node_id, count in self._missing.items() if not count]
        tasks: dict[asyncio.Task[None], str] = {}
        try:
            while ready or tasks:
                while ready and len(tasks) < self._plan.graph.parallel:
                    node_id = ready.pop(0)
                    tasks[asyncio.create_task(self._run_node(self._nodes[node_id]))] = node_id
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    node_id = tasks.pop(task)
                    task.result()
                    ready += self._release_dependents(node_id)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        return Result(data=self._render())

    async def cancel_nodes(self) -> None:
        """Cancel the jobs of all nodes that have not ended."""
        running = [each.job_id for each in self.outcomes.values() if each.job_id and each.state == "running"]
        await asyncio.gather(
            *(self._jobs.cancel(self._call.auth, job_id) for job_id in running), return_exceptions=True
        )

    def _release_dependents(self, node_id: str) -> list[str]:
        """The nodes that waited only for this one."""
        released = []
        for dependent in self._dependents.get(node_id, ()):
            self._missing[dependent] -= 1
            if not self._missing[dependent]:
                released.append(dependent)
        return released

    async def _run_node(self, node: GraphNode) -> None:
        outcome = self.outcomes[node.id]
        try:
            reason = self._find_skip_reason(node)
            if reason is not None:
                outcome.state, outcome.reason = "skipped", reason
            else:
                self._take_result(node, await self._call_agent(node, outcome))
        except FabricError as error:
            outcome.state = "failed"
            outcome.error = {**_render_error(error), "details": error.details}
        await self._report(node.id)

    def _find_skip_reason(self, node: GraphNode) -> str | None:
        """Why a node is not run: what it needs has failed, or its condition does not hold. Raises BadInput."""
        for needed in self._plan.needs[node.id]:
            outcome = self.outcomes[needed]
            if outcome.state in ("failed", "cancelled"):
                return f"it needs '{needed}', which {'failed' if outcome.state == 'failed' else 'was cancelled'}"
            if outcome.state == "skipped" and outcome.error is None and node.when is None:
                return f"it needs '{needed}', which was skipped"
        return None if is_wanted(node, self._results) else f"its condition does not hold: {node.when}"

    async def _call_agent(self, node: GraphNode, outcome: NodeOutcome) -> Job:
        call = self._build_call(node)
        options = JobOptions(
            at_once=True,
            job_id=(job_id := _derive_id("node", self._job_id, node.id)),
            key=job_id,
            meta={
                GRAPH_META: self._job_id,
                NODE_META: node.id,
                **({} if node.retry is None else {RETRY_META: msgspec.to_builtins(node.retry)}),
            },
        )
        outcome.job_id, outcome.state = job_id, "running"
        job = await self._accept(node, call, options)
        if not job.has_ended:
            await self._report(node.id)
        return await self._jobs.wait_for_end(job_id)

    async def _accept(self, node: GraphNode, call: Call, options: JobOptions) -> JobSummary:
        """Wait while too many jobs of the caller wait. Raises the errors of `Jobs.accept`, with the node's name."""
        with suppress(JobNotFound):  # the graph was begun before
            return await self._jobs.get(call.auth, str(options.job_id))
        while True:
            try:
                return await self._jobs.accept(call, options)
            except RateLimited as error:
                await asyncio.sleep(error.retry_after)
            except BadInput as error:
                field = error.details.get("field")
                raise node_error(node.id, f"input.{field}" if field else "input", error.message) from error

    def _build_call(self, node: GraphNode) -> Call:
        trace = self._call.trace
        return replace(
            self._call,
            trace=continue_trace(trace.trace_id, trace.span_id),
            target=Target(
                agent_id=node.agent,
                capability=str(node.capability),
                timeout_ms=self._jobs.settings.clamp_timeout(node.timeout_ms),
            ),
            input=Input(task=fill_task(node, self._results), context=fill_input(node, self._results)),
        )

    def _take_result(self, node: GraphNode, job: Job) -> None:
        outcome = self.outcomes[node.id]
        if job.result is not None:
            self._bytes_left -= len(msgspec.json.encode(job.result.data))
            if self._bytes_left < 0:
                raise node_error(node.id, "result", f"all results have more than {MAX_RESULT_BYTES} bytes together")
            outcome.state, outcome.result = "completed", job.result.data
            self._results.by_node[node.id] = job.result.data
            return
        outcome.state = "cancelled" if job.state == "cancelled" else "failed"
        failure = None if job.failure is None else job.failure.to_error()
        if failure is None:
            outcome.error = {"code": "CANCELLED", "message": f"Node '{node.id}': {job.state}", "recoverable": True}
        else:
            outcome.error = _render_error(failure, f"Node '{node.id}': ")

    async def _report(self, node_id: str) -> None:
        outcome = self.outcomes[node_id]
        ended = sum(each.state not in ("waiting", "running") for each in self.outcomes.values())
        message = f"{node_id}: {outcome.state}"
        details: dict[str, Any] = {"node": node_id, "state": outcome.state, "job_id": outcome.job_id}
        if outcome.reason or outcome.error:
            details["reason"] = outcome.reason or (outcome.error or {}).get("message")
        percent = round(100.0 * ended / len(self.outcomes), 1)
        await self._emit(Event("progress", {"percent": percent, "message": message, **details}))

    def _render(self) -> dict[str, Any]:
        states = [outcome.state for outcome in self.outcomes.values()]
        has_failed = any(state in ("failed", "cancelled") for state in states)
        status = "completed" if not has_failed else "partial" if "completed" in states else "failed"
        counts: Mapping[str, int] = {state: states.count(state) for state in sorted(set(states))}
        failed = [node_id for node_id, outcome in self.outcomes.items() if outcome.state in ("failed", "cancelled")]
        answer = f"{counts.get('completed', 0)} of {len(states)} nodes are completed."
        if failed:
            answer += f" Failed: {', '.join(failed[:10])}{' and others' if len(failed) > 10 else ''}."
        rendered: dict[str, Any] = {
            "answer": answer if self._plan.graph.answer == "summary" else self._join_answers(),
            "status": status,
            "graph_id": self._plan.graph.graph_id,
            "counts": counts,
            "nodes": msgspec.to_builtins(self.outcomes),
        }
        if failed:
            may_succeed = all((self.outcomes[node_id].error or {}).get("recoverable", False) for node_id in failed)
            rendered["error"] = {"code": COORDINATION_FAILED, "message": answer, "recoverable": may_succeed}
        return rendered

    def _join_answers(self) -> str:
        """The answer of each node under the name of its agent; of a node without one, why it has none."""
        return "\n\n".join(f"{outcome.agent}: {_answer_from_outcome(outcome)}" for outcome in self.outcomes.values())


def _answer_from_outcome(outcome: NodeOutcome) -> str:
    if outcome.result is not None:
        answer = outcome.result.get("answer")
        return answer if isinstance(answer, str) else msgspec.json.encode(outcome.result).decode()
    return str((outcome.error or {}).get("message") or outcome.reason or outcome.state)


def _render_error(error: FabricError, subject: str = "") -> dict[str, Any]:
    message = f"{subject}{error.message}"[:_MAX_ERROR]
    return {"code": error.code, "message": message, "recoverable": is_recoverable(error)}


def _derive_id(*values: str) -> str:
    return f"job_{hashlib.sha256(chr(0).join(values).encode()).hexdigest()[:32]}"
