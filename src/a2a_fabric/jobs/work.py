"""What is to be done for a job: who is asked, and whether it may be asked again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Call
from a2a_fabric.core.job import JobSummary
from a2a_fabric.core.pipeline import Emit, Handler
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy

MAY_REPEAT = "may_repeat"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """`restarts`: whether it begins anew when its worker has died; None: if it may be repeated at all."""

    handler: Handler
    may_repeat: bool
    retry: RetryPolicy
    restarts: bool | None = None

    @property
    def may_restart(self) -> bool:
        return self.may_repeat if self.restarts is None else self.restarts


Around = Callable[[JobSummary, Work], Work]


def as_it_is(job: JobSummary, work: Work) -> Work:
    """Around work that nobody wants to change."""
    return work


class Assignment:
    """Most jobs are calls to agents, as `around` wants them; those with a `kind` are our own errands."""

    def __init__(
        self,
        handler: Handler,
        capability_of: Callable[[str, str], Capability | None],
        retry: RetryPolicy,
        errands: Mapping[str, Work],
        around: Around = as_it_is,
    ) -> None:
        self._handler = handler
        self._capability_of = capability_of
        self._retry = retry
        self._errands = errands
        self._around = around

    def of(self, job: JobSummary) -> Work:
        errand = self._errands.get(job.meta.get("kind", ""))
        return errand if errand is not None else self._around(job, self._call(job))

    def is_errand(self, job: JobSummary) -> bool:
        return job.meta.get("kind", "") in self._errands

    def is_sure_of(self, job: JobSummary) -> bool:
        """Whether it is known, now or since it was accepted, if it may run again; else the agent was not heard yet."""
        known = self.is_errand(job) or MAY_REPEAT in job.meta
        return known or self._capability_of(job.agent_id, job.capability) is not None

    def _call(self, job: JobSummary) -> Work:
        capability = self._capability_of(job.agent_id, job.capability)
        if capability is None:  # not known here, or not yet: then counts what was known when it was accepted
            return Work(handler=self._handler, may_repeat=job.meta.get(MAY_REPEAT, False), retry=self._retry)
        return Work(handler=self._handler, may_repeat=capability.may_repeat, retry=capability.retry or self._retry)


async def asked(handler: Handler, call: Call, emit: Emit) -> Result:
    """A handler's awaitable as a coroutine, which is what tasks are made of."""
    return await handler(call, emit)
