"""Standard tasks: a request becomes a call to the capability that it names, and the call's end becomes the response.

Two ways lead here. A call to the capability `task` of a federated agent is translated on its way in, so it works at
every door; the call that is authorized, limited, logged and counted is the one to the capability that the request
names. And a request can be sent as a job (`send`), which is asked for its response later (`get`), answered (`update`)
and cancelled."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.coordination.task_format import (
    TaskMetadata,
    TaskObservability,
    TaskRequest,
    TaskResponse,
    decode_request,
    respond_failure,
    respond_job,
    respond_result,
)
from a2a_fabric.core.agent import HEALTH_RANK, TASK_CAPABILITY, Manifest, normalize_name
from a2a_fabric.core.call import (
    Call,
    Emit,
    Handler,
    Input,
    Principal,
    Target,
    owner_from_principal,
)
from a2a_fabric.core.errors import BadInput, CapabilityNotFound, Conflict, FabricError, InternalError, JobNotFound
from a2a_fabric.core.job import PRIORITY_BY_NAME, Job, translate_state
from a2a_fabric.core.propagation import (
    MaybeChain,
    Trace,
    chain_from_metadata,
    make_chain_entry,
    pick_longer_chain,
)
from a2a_fabric.core.result import Part, Result, format_timestamp
from a2a_fabric.core.retry import RetryPolicy, compute_retry_pause
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.run import RETRY_META
from a2a_fabric.jobs.settings import JobOptions
from a2a_fabric.messages.answers import parse_answers
from a2a_fabric.registry.registry import Registry

TASK_META = "standard_task"  # in a job's meta: the id of the task and what its response repeats
_ONCE = RetryPolicy(max_attempts=1)
_CANCEL_TIMEOUT = 5.0


class TaskTranslator:
    """`node` is this node's name in delegation chains."""

    def __init__(self, registry: Registry, node: str) -> None:
        self._registry = registry
        self._node = node

    def step(self, inner: Handler) -> Handler:
        """Translates calls to the capability `task`; all others pass."""

        def handle(call: Call, emit: Emit) -> Awaitable[Result]:
            if call.target.capability != TASK_CAPABILITY.name:
                return inner(call, emit)
            manifest = self._registry.get_for(call.auth, call.target.agent_id)
            if manifest is None or manifest.find_capability(TASK_CAPABILITY.name) is not TASK_CAPABILITY:
                return inner(call, emit)
            return self._answer(inner, manifest, call, emit)

        return handle

    def build_call(self, call: Call, manifest: Manifest, request: TaskRequest) -> Call:
        """The call that a request asks for, in place of the call that brought it. Raises BadInput."""
        if request.routing.target not in (None, manifest.agent_id):
            raise BadInput(
                f"The task was sent to '{manifest.agent_id}', and its target is another agent", field="routing.target"
            )
        if normalize_name(request.type) == TASK_CAPABILITY.name:
            raise BadInput("A task names the capability that is to do it, and not `task` itself", field="type")
        capability = manifest.find_capability(request.type)
        task_input = request.to_input(None if capability is None else capability.input_schema)
        return replace(
            call,
            trace=request.continue_trace(call.trace),
            target=replace(call.target, capability=request.type),
            input=replace(task_input, attachments=call.input.attachments),
            conversation_id=request.context.conversation_id or call.conversation_id,
            delegation_chain=self._extend_chain(request, call),
        )

    def _extend_chain(self, request: TaskRequest, call: Call) -> MaybeChain:
        """Requests name agents; chains of this node have entries of them. A chain can only cause a refusal.

        The name of an agent that the caller may not know is only a name, so that no refusal tells of the agent.
        """
        source, names = request.routing.source, [*request.routing.delegation_chain]
        known = {name for name in (*names, source) if name and self._registry.get_for(call.auth, name) is not None}
        if source in known and source not in names[-1:]:
            names.append(source)
        entries = [make_chain_entry(self._node, name) if name in known else name for name in names]
        return pick_longer_chain(chain_from_metadata(entries), call.delegation_chain)

    async def _answer(self, inner: Handler, manifest: Manifest, call: Call, emit: Emit) -> Result:
        started_at, began = time.time(), time.perf_counter()
        observability = observe(call.trace)
        raw_id = call.input.context.get("id")
        try:
            request = decode_request(call.input.context)
            task_call = self.build_call(call, manifest, request)
        except BadInput as error:
            task_id = raw_id if isinstance(raw_id, str) else ""
            return result_from_response(respond_failure(task_id, error, manifest.agent_id, observability))
        observability = observe(task_call.trace, request)
        capability = manifest.find_capability(request.type)
        may_repeat = capability is not None and capability.may_repeat
        attempts = _Attempts(request, may_repeat=may_repeat, timeout=call.target.timeout_ms / 1000)
        while True:
            try:
                result = await inner(task_call, emit)
                break
            except FabricError as error:
                pause = attempts.compute_pause(error)
                if pause is None:
                    return result_from_response(
                        respond_failure(request.id, error, manifest.agent_id, observability, attempts.count - 1)
                    )
            await asyncio.sleep(pause)
        metadata = TaskMetadata(
            agent=manifest.agent_id if result.fallback is None else result.fallback.used,
            started_at=format_timestamp(started_at),
            completed_at=None if result.asked is not None else format_timestamp(time.time()),
            duration_ms=round((time.perf_counter() - began) * 1000, 3),
            retry_count=attempts.count,
        )
        response = respond_result(request, result, metadata, observability)
        return replace(result, data=msgspec.to_builtins(response))


class _Attempts:
    """How often a task was tried, and whether there is time for another attempt."""

    def __init__(self, request: TaskRequest, *, may_repeat: bool, timeout: float) -> None:
        self.count = 0  # failed attempts
        self._policy = _ONCE if request.retry_policy is None else request.retry_policy.to_policy()
        self._may_repeat = may_repeat
        self._ends_at = time.monotonic() + timeout

    def compute_pause(self, error: FabricError) -> float | None:
        self.count += 1
        jitter = random.random()  # spreads pauses
        pause = compute_retry_pause(error, self.count, self._policy, may_repeat=self._may_repeat, jitter=jitter)
        is_over = pause is None or self.count >= self._policy.max_attempts or time.monotonic() + pause > self._ends_at
        return None if is_over else pause


class StandardTasks:
    """Tasks that are jobs. A caller sees only its own. All methods may raise StoreError."""

    def __init__(self, translator: TaskTranslator, registry: Registry, jobs: Jobs) -> None:
        self._translator = translator
        self._registry = registry
        self._jobs = jobs

    async def send(
        self, principal: Principal, raw: dict[str, Any], trace: Trace, chain: MaybeChain, wait: float
    ) -> TaskResponse:
        """Accept a request as a job, and wait at most so many seconds. What is wrong with it is in the response."""
        raw_id = raw.get("id")
        task_id = raw_id if isinstance(raw_id, str) else ""
        observability, agent_id = observe(trace), None
        try:
            request = decode_request(raw)
            manifest = self._find_agent(principal, request)
            agent_id = manifest.agent_id
            call = self._translator.build_call(self._wrap(principal, manifest, trace, chain), manifest, request)
            observability = observe(call.trace, request)
            await self._jobs.accept(call, self._choose_options(principal, request, observability))
        except (JobNotFound, InternalError):
            raise
        except FabricError as error:
            return respond_failure(task_id, error, agent_id, observability)
        return await self.get(principal, request.id, wait)

    async def get(self, principal: Principal, task_id: str, wait: float) -> TaskResponse:
        """The response as it is after at most so many seconds. Raises JobNotFound."""
        job = await self._load(principal, task_id)
        return _response_from_job(await self._jobs.wait_until_settled(job, wait) if wait > 0 else job, task_id)

    async def update(self, principal: Principal, task_id: str, payload: Any, wait: float) -> TaskResponse:
        """Answer the questions of a task. Raises JobNotFound, Conflict if it asks nothing, BadInput."""
        job = await self._load(principal, task_id)
        questions = job.open_questions
        if questions is None:
            raise Conflict(f"Task '{task_id[:64]}' asks nothing now", task_id=task_id[:64])
        part = Part(kind="text", text=payload) if isinstance(payload, str) else Part(kind="json", data=payload)
        await self._jobs.answer(principal, job.job_id, parse_answers((part,), questions))
        return await self.get(principal, task_id, wait)

    async def cancel(self, principal: Principal, task_id: str) -> TaskResponse:
        """Raises JobNotFound."""
        job = await self._load(principal, task_id)
        ended = await self._jobs.cancel_and_wait(principal, job.job_id, _CANCEL_TIMEOUT)
        return _response_from_job(ended, task_id)

    def _find_agent(self, principal: Principal, request: TaskRequest) -> Manifest:
        """The target, else the agent that the skill index names, else the first that has the capability.

        Raises what a call to an agent or a capability that the caller may not know raises.
        """
        target = request.routing.target
        if target is not None:
            return self._registry.find_for(principal, target)
        indexed = self._registry.word_routing.skill_index.get(request.type)
        manifest = None if indexed is None else self._registry.get_for(principal, indexed)
        if manifest is not None:
            return manifest
        caller = owner_from_principal(principal)
        offering = self._registry.visible_to(principal).find_by_capability(request.type)
        health = self._registry.health
        candidates = [each for each in offering if may_answer_unnamed(each, caller)]
        if not candidates:
            raise CapabilityNotFound("any agent", request.type)
        return min(candidates, key=lambda each: (HEALTH_RANK[health.get(each.agent_id).status], each.agent_id))

    def _wrap(self, principal: Principal, manifest: Manifest, trace: Trace, chain: MaybeChain) -> Call:
        timeout_ms = self._jobs.settings.clamp_timeout(None)
        target = Target(agent_id=manifest.agent_id, capability=TASK_CAPABILITY.name, timeout_ms=timeout_ms)
        return Call(trace=trace, auth=principal, target=target, input=Input(), delegation_chain=chain)

    def _choose_options(
        self, principal: Principal, request: TaskRequest, observability: TaskObservability
    ) -> JobOptions:
        job_id = _derive_job_id(principal, request.id)
        about = {"id": request.id, "observability": msgspec.to_builtins(observability)}
        if request.context.parent_task_id is not None:
            about["parent"] = request.context.parent_task_id
        policy = request.retry_policy
        retry = {} if policy is None else {RETRY_META: msgspec.to_builtins(policy.to_policy())}
        return JobOptions(
            job_id=job_id,
            key=job_id,
            priority=PRIORITY_BY_NAME[request.context.priority],
            meta={TASK_META: about, **retry},
        )

    async def _load(self, principal: Principal, task_id: str) -> Job:
        try:
            return await self._jobs.get(principal, _derive_job_id(principal, task_id))
        except JobNotFound:
            raise JobNotFound(task_id) from None


def observe(trace: Trace, request: TaskRequest | None = None) -> TaskObservability:
    baggage = {} if request is None else request.observability.baggage
    return TaskObservability(trace_id=trace.trace_id, span_id=trace.span_id, baggage=baggage)


def result_from_response(response: TaskResponse) -> Result:
    return Result(data=msgspec.to_builtins(response))


def _response_from_job(job: Job, task_id: str) -> TaskResponse:
    about = job.meta.get(TASK_META, {})
    observability = msgspec.convert(about.get("observability", {}), TaskObservability)
    status: Any = translate_state(job.state, "card")
    return respond_job(job, task_id, status, observability)


def _derive_job_id(principal: Principal, task_id: str) -> str:
    """The same id only for the same task of the same caller."""
    text = "\0".join(("task", owner_from_principal(principal), task_id))
    return f"job_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
