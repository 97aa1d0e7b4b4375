"""The last handler of the pipeline: plans a call, checks its arguments, and asks the candidates in turn.

What the plan found (manifest, capability, bound arguments) is handed on to the check and to the
first attempt, so nothing is looked up twice. Most arguments are checked at once; arguments that
may take long are checked in another process, so that they hold up no other call. Each attempt gets
the remaining time, or a share of it while other candidates may still be tried. A result that did
not come from the requested agent says so; when all fail, the error names every hop.

Attempts beyond the first are counted per requested agent and refused when its retry budget is
used up. An attempt that certainly never reached an agent costs nothing of the budget; that is
how all calls move on from an agent that is offline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import (
    Call,
    Emit,
    Handler,
    Input,
    ResponseForm,
    Target,
    bind_arguments,
    bind_call,
    check_attachments,
    owner_from_principal,
)
from a2a_fabric.core.errors import AllAttemptsFailed, BadInput, CallTimeout, FabricError, RateLimited
from a2a_fabric.core.logins import LOGIN_CONTINUATION, LoginRequired
from a2a_fabric.core.pending_questions import ContinuationSeal, unknown_continuation
from a2a_fabric.core.propagation import DelegationGuard, Trace
from a2a_fabric.core.recording import current_recording
from a2a_fabric.core.result import Answers, Event, Fallback, Questions, Result, make_input_required, status
from a2a_fabric.core.retry import RetryAccount, RetryBudget, spend_retry, update_account
from a2a_fabric.core.routing import (
    Candidate,
    RoutePlan,
    RoutePlanner,
    RoutingPolicy,
    may_try_next,
    must_leave_time,
    restrict_to_agent,
    share_load,
)
from a2a_fabric.core.tasks import Deadline
from a2a_fabric.schemas.validators import ArgumentCheck, compile_input_schema

_PROCESS_TIMEOUT = 10.0  # seconds that a process has for the arguments of one call
_MAX_PROCESSES = 2  # processes of the node; a caller gets one
_MAX_WAITING = 16  # calls of one caller
_MAX_COMPILED = 100_000
_MAX_COMPILED_BYTES = 128 << 20  # of their schemas; agents may register with ever new ones


class ProcessValidator(Protocol):
    """Checks data against a schema in another process, and kills that process on timeout and cancellation.

    Both are JSON. Returns at most one error (`message`, `path`). Raises TimeoutError, and ValueError if the
    process could not check the data.
    """

    def __call__(self, schema: bytes, data: bytes, timeout: float, /) -> Awaitable[Sequence[dict[str, Any]]]: ...


class ArgumentValidator:
    """Arguments that may take long to check go to `process_validator`; without one they are refused."""

    def __init__(self, process_validator: ProcessValidator | None = None) -> None:
        # One compiled schema per capability, by its identity; the entry keeps the capability alive.
        self._compiled: dict[int, tuple[Capability, ArgumentCheck | None]] = {}
        self._compiled_bytes = 0
        self._process_validator = process_validator
        self._free_processes = asyncio.Semaphore(_MAX_PROCESSES)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}  # by caller: its lock, and how many hold or await it

    def check(
        self, call: Call, manifest: Manifest, capability: Capability, arguments: dict[str, Any]
    ) -> Awaitable[None] | None:
        """Raises BadInput for arguments that do not match. If the check takes long, returns what has to be awaited."""
        compiled = self._compiled.get(id(capability))
        if compiled is not None and compiled[0] is capability:
            check = compiled[1]
        else:
            check = self._compile(manifest, capability)
        if check is None:
            return None
        try:
            if not check.is_cheap and not check.fits_inline(arguments):
                return self._check_in_process(check, call, capability, arguments)
            if check.validator.is_valid(arguments):
                return None
            error = check.find_error(arguments)
        except (ValueError, RecursionError) as exc:  # nested too deeply for the validator, or a number beyond its range
            raise _unchecked_error(call, capability, f"cannot be checked: {exc}") from exc
        if error is None:
            raise _mismatch_error(call, capability, "they do not match its input schema", ())
        raise _mismatch_error(call, capability, error.message, error.instance_path)

    def _compile(self, manifest: Manifest, capability: Capability) -> ArgumentCheck | None:
        """None if the schema is left to the agent. Raises UpstreamRefused if it cannot be used."""
        if len(self._compiled) >= _MAX_COMPILED or self._compiled_bytes > _MAX_COMPILED_BYTES:
            self._compiled.clear()
            self._compiled_bytes = 0
        check = compile_input_schema(manifest, capability)
        self._compiled_bytes += 0 if check is None else len(msgspec.json.encode(check.schema))
        self._compiled[id(capability)] = (capability, check)
        return check

    async def _check_in_process(
        self, check: ArgumentCheck, call: Call, capability: Capability, arguments: dict[str, Any]
    ) -> None:
        """Raises BadInput, CallTimeout, and RateLimited if the caller has too many such calls at a time."""
        if self._process_validator is None:
            raise _unchecked_error(call, capability, "are too large to be checked")
        with Deadline(call.target.timeout_ms / 1000):
            async with self._take_turn(owner_from_principal(call.auth)), self._free_processes:
                schema, data = msgspec.json.encode(check.schema), msgspec.json.encode(arguments)
                try:
                    errors = await self._process_validator(schema, data, _PROCESS_TIMEOUT)
                except TimeoutError as exc:
                    problem = f"are too large: checking them took more than {_PROCESS_TIMEOUT:g} s. Send less"
                    raise _unchecked_error(call, capability, problem) from exc
                except ValueError as exc:
                    raise _unchecked_error(call, capability, f"cannot be checked: {exc}") from exc
        for error in errors:
            raise _mismatch_error(call, capability, str(error["message"]), error["path"])

    @asynccontextmanager
    async def _take_turn(self, owner: str) -> AsyncIterator[None]:
        """A caller has one process at a time, so a caller with many large calls delays only itself."""
        lock, waiting = self._turns.get(owner) or (asyncio.Lock(), 0)
        if waiting >= _MAX_WAITING:
            raise RateLimited(f"{waiting} calls of this caller with large arguments are being checked already", 1.0)
        self._turns[owner] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns[owner]
            if waiting == 1:
                del self._turns[owner]
            else:
                self._turns[owner] = (lock, waiting - 1)


def _mismatch_error(call: Call, capability: Capability, message: str, path: Sequence[str | int]) -> BadInput:
    path_text = ".".join(str(step) for step in path)
    text = f"Bad arguments for '{capability.name}': {path_text + ': ' if path_text else ''}{message[:300]}"
    return BadInput(text, agent_id=call.target.agent_id, capability=capability.name, field=path_text or None)


def _unchecked_error(call: Call, capability: Capability, problem: str) -> BadInput:
    text = f"The arguments for '{capability.name}' {problem}"[:300]
    return BadInput(text, agent_id=call.target.agent_id, capability=capability.name)


_MAX_AGENTS = 100_000


class _RetryTally:
    """An agent's account, and the calls since it was last looked at."""

    __slots__ = ("account", "calls")

    def __init__(self, now: float) -> None:
        self.account = RetryAccount(at=now)
        self.calls = 0


def _ignore_retry(agent_id: str, is_made: bool) -> None:
    pass


class RetryTracker:
    """Keeps the retry budget of each agent. `on_retry` is called for each attempt beyond the first: was it allowed?"""

    def __init__(
        self,
        budget: RetryBudget,
        on_retry: Callable[[str, bool], None] = _ignore_retry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget
        self._on_retry = on_retry
        self._clock = clock
        self._tallies: dict[str, _RetryTally] = {}

    def count_call(self, agent_id: str) -> None:
        """A call to this agent begins. This is all that a successful call costs."""
        tally = self._tallies.get(agent_id)
        if tally is None:
            tally = self._start_tally(agent_id)
        tally.calls += 1

    def allow(self, agent_id: str, error: FabricError) -> bool:
        """Whether another agent may be asked after this failure. If so, the attempt is counted."""
        is_allowed = error.never_ran or self._try_spend(agent_id)
        self._on_retry(agent_id, is_allowed)
        return is_allowed

    def _try_spend(self, agent_id: str) -> bool:
        tally = self._tallies.get(agent_id) or self._start_tally(agent_id)
        account = update_account(tally.account, tally.calls, self._clock(), self._budget)
        account_after = spend_retry(account, self._budget)
        tally.account, tally.calls = account_after or account, 0
        return account_after is not None

    def _start_tally(self, agent_id: str) -> _RetryTally:
        if len(self._tallies) >= _MAX_AGENTS:
            self._tallies.clear()
        tally = self._tallies[agent_id] = _RetryTally(self._clock())
        return tally


def explain_exhausted_budget(error: FabricError, agent_id: str) -> None:
    """Adds to the error why no other agent was asked."""
    if "not_retried" not in error.details:
        reason = f"the retry budget of agent '{agent_id}' is used up"
        error.details["not_retried"] = reason
        error.message = f"{error.message} (no other agent was asked: {reason})"


class HealthReports(Protocol):
    """Receives the outcome of every attempt."""

    def record_success(self, agent_id: str, latency: float) -> None: ...

    def record_failure(self, agent_id: str, error: FabricError) -> None: ...


class RoutingHandler:
    """Plans a call, validates its arguments, attempts the candidates, and falls back."""

    def __init__(
        self,
        plan: RoutePlanner,
        get_handler: Callable[[Manifest], Handler],
        health: HealthReports,
        policy: RoutingPolicy,
        delegation_guard: DelegationGuard | None = None,
        retries: RetryTracker | None = None,
        count_calls: Callable[[str], int] = lambda agent_id: 0,
        on_fallback: Callable[[str, str, str], None] = lambda requested, used, reason: None,
        validator: ArgumentValidator | None = None,
        seal: ContinuationSeal | None = None,
    ) -> None:
        self._plan = bind_call(plan)
        self._get_handler = get_handler
        self._health = health
        self._policy = policy
        self._retries = retries or RetryTracker(policy.retries)
        self._count_calls = count_calls  # how many calls an agent is working on
        self._on_fallback = on_fallback  # called when another agent than the requested one has answered
        self._delegation_guard = delegation_guard or DelegationGuard()
        self._validator = validator or ArgumentValidator()
        self._seal = seal or ContinuationSeal()

    async def check(self, call: Call, emit: Emit) -> Result:
        """A handler that asks no agent: raises what the call would be refused with before."""
        if call.input.attachments:
            check_attachments(call.input)
        plan = self._plan(call.target.agent_id, call.target.capability, call.auth, True, call.any_agent is True)
        _, pending_check = self._bind_arguments(call, plan)
        if pending_check is not None:
            await pending_check
        if call.answers:
            self._resume_plan(plan, call, call.answers)
        return Result(data={})

    def __call__(self, call: Call, emit: Emit) -> Awaitable[Result]:
        target, stream = call.target, call.response.stream
        if call.input.attachments:
            check_attachments(call.input)
        plan = self._plan(target.agent_id, target.capability, call.auth, stream, call.any_agent is True)
        if plan.only is not None and not stream and not call.answers:
            return self._ask_only(call, emit, plan, plan.only)
        return self._ask_candidates(call, emit, plan)

    async def _ask_only(self, call: Call, emit: Emit, plan: RoutePlan, candidate: Candidate) -> Result:
        """As `_ask_candidates`, for a plain call that only the named agent can answer, as nearly all are.

        Nothing is left to choose or to count: the agent gets all of the time, and what it answers is the outcome.
        """
        arguments, pending_check = self._bind_arguments(call, plan)
        if pending_check is not None:
            await pending_check
        manifest, recording, trace = candidate.manifest, current_recording.get(), call.trace
        agent_id, started = manifest.agent_id, time.monotonic()
        if recording is not None:
            trace = recording.begin_attempt(manifest, candidate.reason)
        try:
            handler = self._get_handler(manifest)
            result = await handler(self._make_only_attempt(call, candidate, arguments, trace), emit)
        except FabricError as error:
            if recording is not None:
                recording.end_attempt(error)
            self._health.record_failure(agent_id, error)
            _add_error_details(error, plan, candidate, [])
            if isinstance(error, LoginRequired):
                error.continuation = self._seal.seal(agent_id, LOGIN_CONTINUATION, call)
            raise
        if recording is not None:
            recording.end_attempt()
        self._health.record_success(agent_id, time.monotonic() - started)
        return result if result.asked is None else await self._forward_questions(result.asked, agent_id, emit, call)

    async def _ask_candidates(self, call: Call, emit: Emit, plan: RoutePlan) -> Result:
        target, stream = call.target, call.response.stream
        arguments, pending_check = self._bind_arguments(call, plan)
        if pending_check is not None:
            await pending_check
        if call.answers:
            plan, call = self._resume_plan(plan, call, call.answers)
        elif plan.replicas:
            plan = share_load(plan, self._count_calls, _make_conversation_key(call))
        hops = [f"{plan.agent_id}: capability_not_found"] if plan.skipped else []
        ends_at = time.monotonic() + target.timeout_ms / 1000
        last = len(plan.candidates) - 1
        tracker = None
        if last:
            tracker = _StreamTracker(emit)
            self._retries.count_call(plan.agent_id)
        recording = current_recording.get()
        if stream:
            await emit(status("running", agent_id=plan.candidates[0].manifest.agent_id))
        for number, candidate in enumerate(plan.candidates):
            agent_id = candidate.manifest.agent_id
            started, trace = time.monotonic(), call.trace
            if recording is not None:
                trace = recording.begin_attempt(candidate.manifest, candidate.reason)
            try:
                handler = self._get_handler(candidate.manifest)
                timeout = ends_at - started
                if last and must_leave_time(plan, number):
                    timeout *= self._policy.attempt_share
                attempt_call = self._make_attempt_call(call, candidate, timeout, arguments, trace)
                arguments = None  # an agent may change what it is given: each further attempt binds its own
                result = await handler(attempt_call, tracker or emit)
            except FabricError as error:
                if recording is not None:
                    recording.end_attempt(error)
                self._health.record_failure(agent_id, error)
                hops.append(f"{candidate.manifest.label}: {error.reason}")
                has_streamed = tracker is not None and tracker.has_streamed
                is_over = number == last or time.monotonic() >= ends_at
                may_continue = may_try_next(error, candidate.capability, has_streamed=has_streamed)
                if may_continue and not is_over and not self._retries.allow(plan.agent_id, error):
                    explain_exhausted_budget(error, plan.agent_id)
                    may_continue = False
                if is_over or not may_continue:
                    _add_error_details(error, plan, candidate, hops)
                    if isinstance(error, LoginRequired):
                        error.continuation = self._seal.seal(agent_id, LOGIN_CONTINUATION, call)
                    if may_continue and len(hops) > 1:
                        raise _make_all_failed_error(plan, hops, target.timeout_ms / 1000) from error
                    raise  # not `from error`: a cause of itself would keep the whole call alive
                await _announce(plan.candidates[number + 1], hops[-1], emit, call, has_streamed=has_streamed)
            else:
                if recording is not None:
                    recording.end_attempt()
                self._health.record_success(agent_id, time.monotonic() - started)
                if result.asked is not None:
                    result = await self._forward_questions(result.asked, agent_id, emit, call)
                if candidate.tier == "primary" and not hops:
                    return result
                result = _add_fallback(result, plan, candidate, hops, call)
                if result.fallback is not None and result.fallback.used != plan.agent_id:
                    self._on_fallback(plan.agent_id, agent_id, _classify_fallback(result.fallback))
                return result
        raise AssertionError("a plan has at least one candidate")

    def _bind_arguments(self, call: Call, plan: RoutePlan) -> tuple[dict[str, Any] | None, Awaitable[None] | None]:
        """The arguments for the named agent, checked; and, if the check takes long, what has to be awaited first.

        Without a schema there is nothing to check, and the runtime binds them, which may know more. Raises BadInput.
        """
        capability = plan.primary.capability if plan.primary is not None else None
        if plan.primary is None or capability is None or capability.input_schema is None:
            return None, None
        arguments = bind_arguments(capability, call.input)
        if not capability.input_schema:
            return arguments, None
        return arguments, self._validator.check(call, plan.primary.manifest, capability, arguments)

    def _resume_plan(self, plan: RoutePlan, call: Call, answers: Answers) -> tuple[RoutePlan, Call]:
        """An answer goes only to the agent that asked, and only from the caller that it asked. Raises BadInput."""
        agent_id, continuation = self._seal.open(answers.continuation, call, is_trusted=answers.is_trusted is True)
        single_agent_plan = restrict_to_agent(plan, agent_id)
        if single_agent_plan is None:
            raise unknown_continuation()
        agent_answers = Answers(continuation=continuation, answers=answers.answers)
        return single_agent_plan, msgspec.structs.replace(call, answers=agent_answers)

    async def _forward_questions(self, questions: Questions, agent_id: str, emit: Emit, call: Call) -> Result:
        """The agent's questions, with a continuation that names the agent and is valid for this caller."""
        result = make_input_required(questions.questions, self._seal.seal(agent_id, questions.continuation, call))
        if call.response.stream:
            await emit(Event("input_required", result.data["input_required"]))
        return result

    def _make_only_attempt(
        self, call: Call, candidate: Candidate, arguments: dict[str, Any] | None, trace: Trace
    ) -> Call:
        """As `_make_attempt_call`, with all of the time; most calls differ in their arguments and the chain only."""
        target, capability, call_input = call.target, candidate.capability, call.input
        if (
            arguments is None
            or capability is None
            or capability.max_timeout_ms is not None
            or capability.name != target.capability
            or candidate.manifest.agent_id != target.agent_id
            or call.any_agent is not msgspec.UNSET
        ):
            return self._make_attempt_call(call, candidate, target.timeout_ms / 1000, arguments, trace)
        return msgspec.structs.replace(
            call,
            trace=trace,
            input=Input(
                task=call_input.task,
                context=call_input.context,
                attachments=call_input.attachments,
                arguments=arguments,
            ),
            delegation_chain=self._delegation_guard.extend(call.delegation_chain, target.agent_id),
        )

    def _make_attempt_call(
        self, call: Call, candidate: Candidate, timeout: float, arguments: dict[str, Any] | None, trace: Trace
    ) -> Call:
        """The call as this candidate receives it. `arguments` are bound to the primary candidate's capability.

        `trace` has the span of the attempt, if attempts are recorded.
        """
        time_ms = timeout * 1000
        manifest, capability = candidate.manifest, candidate.capability
        name, call_input, response_form = call.target.capability, call.input, call.response
        if capability is not None:
            name = capability.name
            if capability.max_timeout_ms is not None and capability.max_timeout_ms < time_ms:
                time_ms = capability.max_timeout_ms
            if capability.input_schema is not None:
                if arguments is None or candidate.tier != "primary":
                    arguments = bind_arguments(capability, call_input)
                call_input = Input(
                    task=call_input.task,
                    context=call_input.context,
                    attachments=call_input.attachments,
                    arguments=arguments,
                )
        if response_form.stream != candidate.stream:
            response_form = ResponseForm(stream=candidate.stream, format=response_form.format)
        timeout_ms, target = int(time_ms) if time_ms > 1 else 1, call.target
        if timeout_ms != target.timeout_ms or name != target.capability or manifest.agent_id != target.agent_id:
            target = Target(agent_id=manifest.agent_id, capability=name, timeout_ms=timeout_ms)
        return Call(
            trace=trace,
            auth=call.auth,
            target=target,
            input=call_input,
            response=response_form,
            answers=call.answers,
            conversation_id=call.conversation_id,
            delegation_chain=self._delegation_guard.extend(call.delegation_chain, manifest.agent_id),
            on_behalf_of=call.on_behalf_of,
            original=call.original if manifest.agent_id == call.target.agent_id else msgspec.UNSET,
        )


class _StreamTracker:
    """An emitter that remembers whether parts of an answer have reached the caller."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.has_streamed = False

    def __call__(self, event: Event) -> Awaitable[None]:
        if event.kind in ("token", "artifact"):
            self.has_streamed = True
        return self._emit(event)


def _add_error_details(error: FabricError, plan: RoutePlan, candidate: Candidate, hops: list[str]) -> None:
    """Which agent failed at what; and which agents were asked before, if there were any."""
    error.details.setdefault("agent_id", candidate.manifest.agent_id)
    error.details.setdefault("capability", plan.capability)
    if len(hops) > 1:
        error.details["attempts"] = list(hops)


def _make_conversation_key(call: Call) -> str | None:
    """Two callers may use the same conversation id; theirs are different conversations."""
    return f"{owner_from_principal(call.auth)}\0{call.conversation_id}" if call.conversation_id else None


def _make_all_failed_error(plan: RoutePlan, hops: list[str], timeout: float) -> FabricError:
    """Names every hop. If all of them timed out, so did the call."""
    first, *rest = _put_primary_first(plan, hops)
    if all(hop.endswith(": timeout") for hop in hops):
        return CallTimeout(timeout, agent_id=plan.agent_id, capability=plan.capability, primary=first, fallbacks=rest)
    return AllAttemptsFailed(plan.agent_id, [first, *rest], capability=plan.capability)


def _classify_fallback(fallback: Fallback) -> str:
    """One of a few words, for metrics."""
    return "shared" if fallback.shared is True else fallback.reason.rpartition(" ")[2]


def _put_primary_first(plan: RoutePlan, hops: list[str]) -> list[str]:
    """The named agent comes first, even if it was asked last (or never) because it is known to be offline."""
    label = next((c.manifest.label for c in plan.candidates if c.tier == "primary"), plan.agent_id)
    rest = list(hops)
    primary_hop = next((hop for hop in hops if hop.startswith(f"{label}: ")), None)
    if primary_hop is not None:
        rest.remove(primary_hop)
    return [primary_hop or f"{label}: offline", *rest]


async def _announce(following: Candidate, hop: str, emit: Emit, call: Call, *, has_streamed: bool) -> None:
    """Tell a streaming caller that another agent continues; `reset` means: discard the text so far."""
    if call.response.stream:
        more = {"reset": True} if has_streamed else {}
        message = f"{hop}; trying {following.manifest.label} ({following.reason})"
        await emit(status("running", message, fallback=following.manifest.agent_id, **more))


def _add_fallback(result: Result, plan: RoutePlan, candidate: Candidate, hops: list[str], call: Call) -> Result:
    used = candidate.manifest.agent_id
    degraded = (
        "non-streaming" if call.response.stream and not candidate.stream and candidate.tier != "primary" else None
    )
    if used == plan.agent_id and not hops and degraded is None:
        return result
    shared = (
        candidate.tier == "pool" and not hops and any(c.tier == "primary" for c in plan.candidates[: plan.replicas])
    )
    if shared:
        reason = f"pool {candidate.manifest.pool} shares the work"
    else:
        reason = hops[-1].rpartition(": ")[2] if hops else f"{plan.agent_id} is {plan.status}"
    fallback = Fallback(
        requested=plan.agent_id,
        used=used,
        reason=reason,
        attempts=(*hops, f"{candidate.manifest.label}: ok"),
        degraded=degraded,
        shared=shared or msgspec.UNSET,
    )
    return msgspec.structs.replace(result, fallback=fallback)
