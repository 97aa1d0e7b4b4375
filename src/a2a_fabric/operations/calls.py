"""Makes the calls of all operations: directly through the gateway, or as a job."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Format, Input, Principal, ResponseForm, Target
from a2a_fabric.core.delegation import pick_longer_chain
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import HIGH, LOW, NORMAL, URGENT
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.settings import JobOptions, Webhook
from a2a_fabric.operations.operation import OperationRequest, TracedArguments

JobPriority = Literal["low", "normal", "high", "urgent"]
PRIORITIES: dict[JobPriority, int] = {"low": LOW, "normal": NORMAL, "high": HIGH, "urgent": URGENT}
_MAX_TIMESTAMP = 10.0**11  # seconds since 1970; what is meant in milliseconds lies beyond


class JobOptionArguments(TracedArguments, frozen=True, kw_only=True):
    """What a call may say about being a job."""

    as_job: Annotated[bool, Meta(description="Answer at once with a job_id; see fabric.job.status.")] = field(
        default=False, name="async"
    )
    job_after_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="If it takes longer, answer with a job_id; the work goes on."),
    ] = None
    idempotency_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")] | None,
        Meta(description="The same key again gives the same job instead of a second one."),
    ] = None
    priority: Annotated[JobPriority, Meta(description="Of a job that waits for its turn.")] = "normal"
    run_at: Annotated[float | None, Meta(description="Not before this moment, in seconds since 1970.")] = None
    expires_at: Annotated[
        float | None, Meta(description="If not begun by then, it ends as timeout; seconds since 1970.")
    ] = None
    ttl_ms: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="The same, counted from now.")] = None
    webhook: Annotated[Webhook | None, Meta(description="Where to tell of the job's end.")] = None

    def to_options(self) -> JobOptions | None:
        """None if nothing is wished. Raises BadInput."""
        if not self._has_job_options():
            return None
        options = JobOptions(
            at_once=self.as_job,
            job_after=None if self.job_after_ms is None else self.job_after_ms / 1000,
            key=self.idempotency_key,
            priority=PRIORITIES[self.priority],
            run_at=_check_timestamp("run_at", self.run_at),
            expires_at=_check_timestamp("expires_at", self._compute_expiry()),
            webhook=self.webhook,
        )
        return options if options.is_durable or options.job_after is not None else None

    def _has_job_options(self) -> bool:
        """Nearly all calls are not, and are not looked at any further."""
        return (
            self.as_job
            or self.job_after_ms is not None
            or self.idempotency_key is not None
            or self.priority != "normal"
            or self.run_at is not None
            or self.expires_at is not None
            or self.ttl_ms is not None
            or self.webhook is not None
        )

    def _compute_expiry(self) -> float | None:
        return self.expires_at if self.ttl_ms is None else time.time() + self.ttl_ms / 1000


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    capability: str
    input: Input
    timeout_ms: int | None = None
    format: Format = "text"
    answers: Answers | msgspec.UnsetType = msgspec.UNSET
    conversation_id: str | msgspec.UnsetType = msgspec.UNSET
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    on_behalf_of: Principal | msgspec.UnsetType = msgspec.UNSET
    job_options: JobOptions | None = None
    resolved_capability: Capability | None = None  # what `capability` names, if somebody has looked it up already


class CallDispatcher:
    """No store is touched by a call that nobody wants as a job and that is not slow."""

    def __init__(self, gateway: Gateway, jobs: Jobs) -> None:
        self._gateway = gateway
        self._jobs = jobs

    @property
    def waiting_requests(self) -> FairLimit:
        """The requests that callers keep open until something happens."""
        return self._jobs.waiting_requests

    def dispatch(self, call_request: CallRequest, request: OperationRequest, emit: Emit) -> Awaitable[Result]:
        """Raises what the call does; BadInput at once."""
        options = self._choose_options(call_request)
        if options is None:
            return self._gateway.call(
                _build_call(call_request, request, self._gateway.clamp_timeout(call_request.timeout_ms)), emit
            )
        timeout_ms = self._jobs.settings.clamp_timeout(call_request.timeout_ms)
        return self._jobs.call(_build_call(call_request, request, timeout_ms), emit, options)

    def _choose_options(self, call_request: CallRequest) -> JobOptions | None:
        if call_request.answers:
            return (
                call_request.job_options
            )  # the agent holds an exchange open for whoever asks next; that is no new piece of work
        if call_request.job_options is not None and (
            call_request.job_options.at_once or call_request.job_options.job_after is not None
        ):
            return call_request.job_options
        jobs, capability = self._jobs, call_request.resolved_capability
        job_after = (
            jobs.find_job_after(call_request.agent_id, call_request.capability)
            if capability is None
            else jobs.job_after_of_capability(capability)
        )
        if job_after is None:
            return call_request.job_options
        return msgspec.structs.replace(
            call_request.job_options or JobOptions(), job_after=job_after, at_once=job_after == 0
        )


def _build_call(call_request: CallRequest, request: OperationRequest, timeout_ms: int) -> Call:
    return Call(
        trace=request.trace,
        auth=request.principal,
        target=Target(agent_id=call_request.agent_id, capability=call_request.capability, timeout_ms=timeout_ms),
        input=call_request.input,
        response=ResponseForm(stream=request.stream, format=call_request.format),
        answers=call_request.answers,
        conversation_id=call_request.conversation_id,
        delegation_chain=(  # nearly always there is none
            pick_longer_chain(call_request.delegation_chain, request.delegation_chain)
            if call_request.delegation_chain
            else request.delegation_chain
        ),
        on_behalf_of=call_request.on_behalf_of,
    )


def _check_timestamp(name: str, timestamp: float | None) -> float | None:
    if timestamp is not None and not 0 <= timestamp < _MAX_TIMESTAMP:
        raise BadInput(f"{name} is a moment in seconds since 1970", field=name)
    return timestamp
