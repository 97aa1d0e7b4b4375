"""The operation `fabric.call`, and what all operations that make calls share: a call goes through the gateway, or
becomes a job."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import LINE_PATTERN, Capability
from a2a_fabric.core.call import Attachment, Call, Emit, Format, Input, Principal, ResponseForm, Target
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import PRIORITY_BY_NAME, JobPriority
from a2a_fabric.core.propagation import WireChain, pick_longer_chain
from a2a_fabric.core.result import Answer, Answers, Result
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.settings import JobOptions, Webhook
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments

_MAX_TIMESTAMP = 10.0**11  # seconds since 1970; a timestamp in milliseconds is larger


Continuation = Annotated[
    str | None, Meta(description="From a result with `input_required`: repeat the call with it and the answers.")
]
QuestionAnswers = Annotated[dict[str, Answer], Meta(description="Under each question's key.")]


class JobOptionArguments(TracedArguments, frozen=True, kw_only=True):
    """The arguments with which a caller makes a call a job."""

    as_job: Annotated[bool, Meta(description="Answer at once with a job_id; see fabric.job.status.")] = field(
        default=False, name="async"
    )
    job_after_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="If it takes longer, answer with a job_id; the work goes on."),
    ] = None
    idempotency_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE_PATTERN)] | None,
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
        """None if the caller set none of them. Raises BadInput."""
        if not (  # nearly all calls set none of them
            self.as_job
            or self.job_after_ms is not None
            or self.idempotency_key is not None
            or self.priority != "normal"
            or self.run_at is not None
            or self.expires_at is not None
            or self.ttl_ms is not None
            or self.webhook is not None
        ):
            return None
        expires_at = self.expires_at if self.ttl_ms is None else time.time() + self.ttl_ms / 1000
        options = JobOptions(
            at_once=self.as_job,
            job_after=None if self.job_after_ms is None else self.job_after_ms / 1000,
            key=self.idempotency_key,
            priority=PRIORITY_BY_NAME[self.priority],
            run_at=_check_timestamp("run_at", self.run_at),
            expires_at=_check_timestamp("expires_at", expires_at),
            webhook=self.webhook,
        )
        return options if options.is_durable or options.job_after is not None else None


class CallArguments(JobOptionArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(description="Which agent to ask.")]
    capability: Annotated[str, Meta(description="Which of its capabilities.")]
    task: Annotated[str, Meta(description="What is to be done, in words.")]
    context: Annotated[dict[str, Any], Meta(description="Arguments and background, as JSON.")] = field(
        default_factory=dict
    )
    attachments: Annotated[tuple[Attachment, ...], Meta(description="Files, links and data.")] = ()
    stream: Annotated[bool, Meta(description="Send events while the agent works.")] = False
    format: Annotated[Format, Meta(description="Preferred form of the answer.")] = "text"
    timeout_ms: Annotated[int | None, Meta(description="How long to wait; 60000 if unset.")] = None
    conversation_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | msgspec.UnsetType,
        Meta(description="Calls with the same id share the agent's memory, if it keeps one."),
    ] = msgspec.UNSET
    delegation_chain: Annotated[
        WireChain | msgspec.UnsetType,
        Meta(description="What the call has passed, as it came with it; a node that finds itself there refuses."),
    ] = msgspec.UNSET
    on_behalf_of: Annotated[
        dict[str, Any] | msgspec.UnsetType,
        Meta(description="The `auth` of the caller's own caller. The agent receives it; it grants nothing."),
    ] = msgspec.UNSET
    continuation: Continuation = None
    answers: QuestionAnswers = field(default_factory=dict)


class CallOperations:
    """`fabric.call`, and the functions of all operations that make calls. Only calls that become jobs use the store."""

    def __init__(self, gateway: Gateway, jobs: Jobs) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._settings = jobs.settings

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.call", "Ask an agent to do something with one of its capabilities.", CallArguments,
                      self.call, scopes=(), is_call=True, read_only=False),
        ]  # fmt: skip

    def call(self, arguments: CallArguments, request: OperationRequest, emit: Emit) -> Awaitable[Result]:
        """Raises the errors of the call; BadInput before the call begins."""
        manifest = self._gateway.registry.catalog_for(request.principal).get(arguments.agent_id)
        capability = None if manifest is None else manifest.find_capability(arguments.capability)
        answers = choose_answers(request, arguments.continuation, arguments.answers)
        options = self.choose_options(arguments.to_options() or request.job_options, capability, answers)
        call = Call(
            trace=request.trace,
            auth=request.principal,
            target=Target(
                agent_id=arguments.agent_id,
                capability=arguments.capability,
                timeout_ms=self.clamp_timeout(arguments.timeout_ms, options),
            ),
            input=Input(task=arguments.task, context=arguments.context, attachments=arguments.attachments),
            response=ResponseForm(stream=request.stream, format=arguments.format),
            answers=answers,
            conversation_id=arguments.conversation_id,
            delegation_chain=(
                pick_longer_chain(arguments.delegation_chain, request.delegation_chain)
                if arguments.delegation_chain
                else request.delegation_chain
            ),
            on_behalf_of=_parse_principal(arguments.on_behalf_of)
            if arguments.on_behalf_of is not msgspec.UNSET
            else msgspec.UNSET,
            original=request.original,
        )
        return self.start(call, options, emit)

    def choose_options(
        self, options: JobOptions | None, capability: Capability | None, answers: Answers | msgspec.UnsetType
    ) -> JobOptions | None:
        """Whether and how the call becomes a job: the caller decides, else the capability, else the node.

        A follow-up with answers continues a call that its agent holds open, so only its caller can make it a job.
        """
        if answers or (options is not None and (options.at_once or options.job_after is not None)):
            return options
        if self._settings.job_after_ms is None and (capability is None or capability.job_after_ms is None):
            return options
        job_after = self._jobs.job_after_of_capability(capability)
        return msgspec.structs.replace(options or JobOptions(), job_after=job_after, at_once=job_after == 0)

    def clamp_timeout(self, timeout_ms: int | None, options: JobOptions | None) -> int:
        """The caller's timeout within the limits for calls or for jobs. Raises BadInput."""
        if options is not None:
            return self._settings.clamp_timeout(timeout_ms)
        return self._gateway.default_timeout_ms if timeout_ms is None else self._gateway.clamp_timeout(timeout_ms)

    def start(self, call: Call, options: JobOptions | None, emit: Emit) -> Awaitable[Result]:
        return self._gateway.call(call, emit) if options is None else self._jobs.call(call, emit, options)


def _parse_principal(auth: dict[str, Any]) -> Principal:
    try:
        return msgspec.convert(auth, Principal)
    except msgspec.ValidationError as exc:
        raise BadInput(f"on_behalf_of is not an `auth` block: {exc}"[:300], field="on_behalf_of") from exc


def choose_answers(
    request: OperationRequest, continuation: str | None, answers: dict[str, Answer]
) -> Answers | msgspec.UnsetType:
    """Answers of the request take precedence, since their questions are newer than those of the arguments."""
    if continuation is None or request.answers:
        return request.answers
    return Answers(continuation=continuation, answers=answers)


def _check_timestamp(name: str, timestamp: float | None) -> float | None:
    if timestamp is not None and not 0 <= timestamp < _MAX_TIMESTAMP:
        raise BadInput(f"{name} must be a moment in seconds since 1970", field=name)
    return timestamp
