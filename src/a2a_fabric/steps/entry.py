"""The steps at the entry of the pipeline: observe (one log line, one metrics update), authorize, limit.

The last two refuse a call before an agent is asked: by policy, for delegation loops, and for limits. A job is counted
per minute when it is accepted, so that its caller is told at once when it is over the limit; when the job runs, it
takes a slot among the concurrent calls like any other call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import MAX_CAPABILITY_NAME, Manifest
from a2a_fabric.core.call import Call, Emit, Handler, Principal, Step, Target, has_rules, ignore_event
from a2a_fabric.core.coordination import CoordinationGuard
from a2a_fabric.core.disclosure import reveal_to_operator
from a2a_fabric.core.errors import BadInput, FabricError, RateLimited
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.node_limits import build_buckets
from a2a_fabric.core.policy import LASTING_MODES, MAX_REMEMBERED, find_refusal, find_refusal_of_unknown, refuse_call
from a2a_fabric.core.ports import AgentIndex
from a2a_fabric.core.propagation import DelegationGuard, current_trace
from a2a_fabric.core.receipts import ReceiptRecorder
from a2a_fabric.core.recording import CallRecording, current_recording
from a2a_fabric.core.result import Result
from a2a_fabric.core.shared_counts import SharedCounts

_MAX_HOPS = 32
_MAX_HOP = 200  # characters


class Observer(Protocol):
    """Records how calls end."""

    def record_success(self, call: Call, result: Result, seconds: float) -> None: ...

    def record_failure(self, call: Call, code: str, message: str, seconds: float, attempts: Sequence[str] = ()) -> None:
        """`code` is CANCELLED when the caller left. `attempts` are the agents that were asked, if several were."""
        ...


class CallRecorder(Protocol):
    """Keeps recordings of calls, for the history and for traces."""

    def begin(self, call: Call) -> tuple[Call, CallRecording | None]:
        """None if this call is not recorded. The trace of the call that goes on says whether its spans are sent."""
        ...

    def end(self, recording: CallRecording, result: Result | None) -> None:
        """The call has ended; `result` is None if it failed."""
        ...

    def begin_late(self, call: Call, seconds: float) -> CallRecording | None:
        """A recording of a call that was not recorded, and failed after so many seconds. None: it is not kept."""
        ...


def observe(observer: Observer, recorder: CallRecorder | None = None) -> Step:
    """One coroutine for all of it, because every call passes here."""

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            recording = recording_token = None
            if recorder is not None:
                call, recording = recorder.begin(call)
            if recording is not None:
                recording_token = current_recording.set(recording)
                if emit is not ignore_event:
                    emit = recording.listen(emit)
            started, trace_token = time.perf_counter(), current_trace.set(call.trace)
            try:
                result = await inner(call, emit)
            except BaseException as exc:
                code, message = _describe_failure(exc)
                seconds = time.perf_counter() - started
                observer.record_failure(call, code, message, seconds, _list_attempts(exc))
                if isinstance(exc, FabricError):
                    reveal_to_operator(exc, call.auth)
                if recorder is not None:
                    recording = recording or recorder.begin_late(call, seconds)
                    if recording is not None:
                        recording.fail(exc, code, message, seconds)
                        recorder.end(recording, None)
                raise
            finally:
                current_trace.reset(trace_token)
                if recording_token is not None:
                    current_recording.reset(recording_token)
            seconds = time.perf_counter() - started
            observer.record_success(call, result, seconds)
            if recorder is not None and recording is not None:
                recording.complete(result, seconds)
                recorder.end(recording, result)
            return result

        return handle

    return step


def _list_attempts(exc: BaseException) -> Sequence[str]:
    """The agents that were asked, each with its outcome. The details of another node's error may hold anything."""
    if not isinstance(exc, FabricError) or not exc.details:
        return ()
    details = exc.details
    hops = details.get("attempts") or [details.get("primary"), *_to_list(details.get("fallbacks"))]
    return [hop[:_MAX_HOP] for hop in _to_list(hops)[:_MAX_HOPS] if isinstance(hop, str)]


def _to_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _describe_failure(exc: BaseException) -> tuple[str, str]:
    if isinstance(exc, FabricError):
        exc.is_logged = True
        return exc.code, exc.full_message
    if isinstance(exc, asyncio.CancelledError):
        return "CANCELLED", "the caller left"
    return "INTERNAL_ERROR", "see the traceback under this trace id"


def record_receipts(recorder: ReceiptRecorder) -> Step:
    """Leaves a receipt of each call, also of one that is refused or cancelled."""

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            input_digest, started = recorder.begin(call), time.perf_counter()
            try:
                result = await inner(call, emit)
            except BaseException as exc:
                code = exc.code if isinstance(exc, FabricError) else _describe_failure(exc)[0]
                recorder.end(call, input_digest, code, None, time.perf_counter() - started)
                raise
            recorder.end(call, input_digest, "ok", result, time.perf_counter() - started)
            return result

        return handle

    return step


class AgentRegistry(Protocol):
    @property
    def catalog(self) -> AgentIndex:
        """The catalog in force now; it is replaced as a whole."""
        ...


def authorize(
    registry: AgentRegistry,
    delegation_guard: DelegationGuard | None = None,
    active_policy: ActivePolicy | None = None,
    coordination: CoordinationGuard | None = None,
) -> Step:
    """Refuses calls that policy does not allow, calls that went in a circle, and what the calling agent's card forbids.

    Separators count once in names, so a name could be as long as a request and still name a capability. What the
    steps behind this one keep, log and store under the name is bounded here.
    """
    delegation_guard = delegation_guard or DelegationGuard()
    active_policy = active_policy or ActivePolicy()
    # The callers that may call a capability, by their identity: decided once, until the catalog changes.
    allowed: dict[tuple[int, str, str], Principal] = {}
    allowed_in: AgentIndex | None = None

    def check(auth: Principal, target: Target, manifest: Manifest | None) -> None:
        if manifest is not None:
            reason = find_refusal(auth, manifest, target.capability)
        else:
            reason = find_refusal_of_unknown(auth, target.agent_id, target.capability)
        if reason is not None:
            raise refuse_call(auth, reason, target.agent_id, target.capability)
        if manifest is not None and auth.mode in LASTING_MODES and not has_rules(auth):
            if len(allowed) >= MAX_REMEMBERED:
                allowed.clear()
            allowed[id(auth), target.agent_id, target.capability] = auth

    def step(inner: Handler) -> Handler:
        def handle(call: Call, emit: Emit) -> Awaitable[Result]:  # a check alone needs no coroutine of its own
            nonlocal allowed_in
            target = call.target
            if len(target.capability) > MAX_CAPABILITY_NAME:
                raise BadInput(
                    f"The name of a capability has at most {MAX_CAPABILITY_NAME} characters", field="capability"
                )
            if active_policy.policy is not None or call.auth.entry:
                call = active_policy.bind_call(call)
            catalog, auth = registry.catalog, call.auth
            if catalog is not allowed_in:
                allowed.clear()
                allowed_in = catalog
            manifest = catalog.get(target.agent_id)
            if call.delegation_chain:
                delegation_guard.check(call.delegation_chain, None if manifest is None else manifest.agent_id)
            if allowed.get((id(auth), target.agent_id, target.capability)) is not auth:
                check(auth, target, manifest)
            if call.delegation_chain and coordination is not None and manifest is not None:
                coordination.check(call.delegation_chain, manifest)
            return inner(call, emit)

        return handle

    return step


class CallRateLimit:
    """How many calls each principal may make in a minute; None means no limit."""

    def __init__(
        self,
        per_minute: int | None,
        clock: Callable[[], float] = time.monotonic,
        counts: SharedCounts | None = None,
    ) -> None:
        self._clock = clock
        self._counts = counts
        self.set_rate(per_minute)

    def set_rate(self, per_minute: int | None) -> None:
        """Every caller begins anew with the new rate."""
        self.per_minute = per_minute
        self._buckets = None if per_minute is None else build_buckets(self._counts, "calls", per_minute, self._clock)

    def count(self, principal_id: str | None, calls: int = 1) -> None:
        """Raises RateLimited."""
        if self._buckets is not None:
            _, wait = self._buckets.take(principal_id, calls)
            if wait:
                raise RateLimited(f"More than {self.per_minute} calls a minute; try again in {wait:.1f} s", wait)


def limit(calls: FairLimit, rate: CallRateLimit | None = None) -> Step:
    """Limits concurrent calls, shared fairly among principals, and the calls of each principal per minute.

    `rate` is None for calls that were counted before.
    """

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            caller = call.auth.principal_id
            calls.acquire(caller)
            try:
                if rate is not None and rate.per_minute is not None:
                    rate.count(caller)
                return await inner(call, emit)
            finally:
                calls.release(caller)

        return handle

    return step
