"""How every operation that asks an agent makes its call: plainly, or as a job."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call, Format, Input, Principal, ResponseForm, Target
from a2a_fabric.core.delegation import longer
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import HIGH, LOW, NORMAL, URGENT
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result
from a2a_fabric.core.shares import Shares
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.wish import JobWish, Webhook
from a2a_fabric.operations.operation import Request, Traced

Priority = Literal["low", "normal", "high", "urgent"]
PRIORITIES: dict[Priority, int] = {"low": LOW, "normal": NORMAL, "high": HIGH, "urgent": URGENT}
_FOREVER = 10.0**11  # seconds since 1970; what is meant in milliseconds lies beyond


class JobArguments(Traced, frozen=True, kw_only=True):
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
    priority: Annotated[Priority, Meta(description="Of a job that waits for its turn.")] = "normal"
    run_at: Annotated[float | None, Meta(description="Not before this moment, in seconds since 1970.")] = None
    expires_at: Annotated[
        float | None, Meta(description="If not begun by then, it ends as timeout; seconds since 1970.")
    ] = None
    ttl_ms: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="The same, counted from now.")] = None
    webhook: Annotated[Webhook | None, Meta(description="Where to tell of the job's end.")] = None

    def wish(self) -> JobWish | None:
        """None if nothing is wished. Raises BadInput."""
        if not self._is_about_jobs():
            return None
        wished = JobWish(
            at_once=self.as_job,
            job_after=None if self.job_after_ms is None else self.job_after_ms / 1000,
            key=self.idempotency_key,
            priority=PRIORITIES[self.priority],
            run_at=_moment("run_at", self.run_at),
            expires_at=_moment("expires_at", self._expiry()),
            webhook=self.webhook,
        )
        return wished if wished.is_durable or wished.job_after is not None else None

    def _is_about_jobs(self) -> bool:
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

    def _expiry(self) -> float | None:
        return self.expires_at if self.ttl_ms is None else time.time() + self.ttl_ms / 1000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    capability: str
    input: Input
    timeout_ms: int | None = None
    format: Format = "text"
    answers: Answers | msgspec.UnsetType = msgspec.UNSET
    conversation_id: str | msgspec.UnsetType = msgspec.UNSET
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    on_behalf_of: Principal | msgspec.UnsetType = msgspec.UNSET
    job: JobWish | None = None
    known: Capability | None = None  # what `capability` names, if somebody has looked it up already


class Calls:
    """No store is touched by a call that nobody wants as a job and that is not slow."""

    def __init__(self, gateway: Gateway, desk: JobDesk) -> None:
        self._gateway = gateway
        self._desk = desk

    @property
    def waiting(self) -> Shares:
        """The requests that callers keep open until something happens."""
        return self._desk.waiting

    def make(self, asked: Asked, request: Request, emit: Emit) -> Awaitable[Result]:
        """Raises what the call does; BadInput at once."""
        wish = self._wish(asked)
        if wish is None:
            return self._gateway.call(_call(asked, request, self._gateway.time_for(asked.timeout_ms)), emit)
        time_ms = self._desk.settings.time_for(asked.timeout_ms)
        return self._desk.call(_call(asked, request, time_ms), emit, wish)

    def _wish(self, asked: Asked) -> JobWish | None:
        if asked.answers:
            return asked.job  # the agent holds an exchange open for whoever asks next; that is no new piece of work
        if asked.job is not None and (asked.job.at_once or asked.job.job_after is not None):
            return asked.job
        desk, known = self._desk, asked.known
        after = desk.job_after(asked.agent_id, asked.capability) if known is None else desk.job_after_for(known)
        if after is None:
            return asked.job
        return msgspec.structs.replace(asked.job or JobWish(), job_after=after, at_once=after == 0)


def _call(asked: Asked, request: Request, timeout_ms: int) -> Call:
    return Call(
        trace=request.trace,
        auth=request.principal,
        target=Target(agent_id=asked.agent_id, capability=asked.capability, timeout_ms=timeout_ms),
        input=asked.input,
        response=ResponseForm(stream=request.stream, format=asked.format),
        answers=asked.answers,
        conversation_id=asked.conversation_id,
        delegation_chain=(  # nearly always there is none
            longer(asked.delegation_chain, request.delegation_chain)
            if asked.delegation_chain
            else request.delegation_chain
        ),
        on_behalf_of=asked.on_behalf_of,
    )


def _moment(name: str, at: float | None) -> float | None:
    if at is not None and not 0 <= at < _FOREVER:
        raise BadInput(f"{name} is a moment in seconds since 1970", field=name)
    return at
