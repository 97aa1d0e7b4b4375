"""Operations on jobs: status, stream, result, list, cancel, answer, retry. A caller sees only its own jobs."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from msgspec import Meta

from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import JobState
from a2a_fabric.core.result import Answer, Result
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.jobs.views import event_from_log, handle_from_job, render_job, render_request
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments

_JOB: dict[str, Any] = {
    "type": "object",
    "properties": {"job_id": {"type": "string"}, "state": {"type": "string"}, "status": {"type": "string"}},
    "required": ["job_id", "state", "status"],
}
_LIST: dict[str, Any] = {"type": "object", "properties": {"jobs": {"type": "array"}, "count": {"type": "integer"}}}


class JobIdArguments(TracedArguments, frozen=True, kw_only=True):
    job_id: Annotated[str, Meta(description="Which job.")]


class StreamArguments(JobIdArguments, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, lt=10**15, description="Begin after this event; 0: with the first.")] = 0
    stream: Annotated[bool, Meta(description="Send the events; false: wait for the end only.")] = True
    past_questions: Annotated[
        bool, Meta(description="Stay while the job waits for an answer; false: end there.")
    ] = False  # fmt: skip


class ResultArguments(JobIdArguments, frozen=True, kw_only=True):
    wait_ms: Annotated[int, Meta(ge=0, le=300_000, description="Wait so long for its end.")] = 0


class JobListArguments(TracedArguments, frozen=True, kw_only=True):
    state: Annotated[
        JobState | tuple[JobState, ...] | None, Meta(description="Only jobs in this state, or one of these.")
    ] = None
    agent_id: Annotated[str | None, Meta(description="Only jobs of this agent.")] = None
    cursor: Annotated[str | None, Meta(description="From the page before.")] = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many at most.")] = 100


class AnswerArguments(JobIdArguments, frozen=True, kw_only=True):
    answers: Annotated[dict[str, Answer], Meta(description="Under each question's key.")]


class JobOperations:
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.job.status", "Show how a job is.", JobIdArguments, self.status, output=_JOB, scopes=()),
            Operation("fabric.job.stream", "Follow a job's events from any number until its end, then its result.",
                      StreamArguments, self.stream, scopes=()),
            Operation("fabric.job.result", "Give a job's result, if it has ended.", ResultArguments, self.result,
                      scopes=()),
            Operation("fabric.job.list", "List your jobs, newest first.", JobListArguments, self.list, output=_LIST,
                      scopes=()),
            Operation("fabric.job.cancel", "Cancel a job; its agent is told.", JobIdArguments, self.cancel, output=_JOB,
                      scopes=(), read_only=False),
            Operation("fabric.job.answer", "Answer what a job's agent wants to know, so that it goes on.",
                      AnswerArguments, self.answer, output=_JOB, scopes=(), read_only=False),
            Operation("fabric.job.retry", "Run an ended job's call again, as a new job.", JobIdArguments, self.retry,
                      output=_JOB, scopes=(), read_only=False),
        ]  # fmt: skip

    async def status(self, arguments: JobIdArguments, request: OperationRequest, emit: Emit) -> Result:
        job = await self._jobs.get(request.principal, arguments.job_id)
        return Result(data={**render_job(job), **render_request(job)})

    async def stream(self, arguments: StreamArguments, request: OperationRequest, emit: Emit) -> Result:
        after = arguments.after if request.after is None else request.after
        events = self._jobs.events(
            request.principal, arguments.job_id, after, past_questions=arguments.past_questions
        )  # fmt: skip
        async with aclosing(events):
            async for event in events:
                await emit(event_from_log(event))
        return await self._jobs.result(request.principal, arguments.job_id)

    async def result(self, arguments: ResultArguments, request: OperationRequest, emit: Emit) -> Result:
        return await self._jobs.result(request.principal, arguments.job_id, arguments.wait_ms / 1000)

    async def list(self, arguments: JobListArguments, request: OperationRequest, emit: Emit) -> Result:
        state = arguments.state
        page = await self._jobs.list(
            request.principal,
            states=(state,) if isinstance(state, str) else state,
            agent_id=arguments.agent_id,
            cursor=arguments.cursor,
            limit=arguments.limit,
        )
        jobs = [render_job(job) for job in page.jobs]
        return Result(data={"jobs": jobs, "count": len(jobs), "cursor": page.cursor})

    async def cancel(self, arguments: JobIdArguments, request: OperationRequest, emit: Emit) -> Result:
        return Result(data=render_job(await self._jobs.cancel(request.principal, arguments.job_id)))

    async def answer(self, arguments: AnswerArguments, request: OperationRequest, emit: Emit) -> Result:
        if not arguments.answers:
            raise BadInput("answers: none given", field="answers")
        return Result(data=render_job(await self._jobs.answer(request.principal, arguments.job_id, arguments.answers)))

    async def retry(self, arguments: JobIdArguments, request: OperationRequest, emit: Emit) -> Result:
        return handle_from_job(await self._jobs.retry(request.principal, arguments.job_id))
