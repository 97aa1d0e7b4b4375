"""Operations on jobs: status, stream, result, list, cancel, answer, retry. Each caller sees their own."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from msgspec import Meta

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.question import Answer
from a2a_fabric.core.result import Result
from a2a_fabric.core.states import JobState
from a2a_fabric.jobs.desk import JobDesk
from a2a_fabric.jobs.views import handle, job_view, numbered, request_view
from a2a_fabric.operations.operation import Operation, Request, Traced

_JOB: dict[str, Any] = {
    "type": "object",
    "properties": {"job_id": {"type": "string"}, "state": {"type": "string"}, "status": {"type": "string"}},
    "required": ["job_id", "state", "status"],
}
_LIST: dict[str, Any] = {"type": "object", "properties": {"jobs": {"type": "array"}, "count": {"type": "integer"}}}
_OBJECT: dict[str, Any] = {"type": "object"}


class JobArgument(Traced, frozen=True, kw_only=True):
    job_id: Annotated[str, Meta(description="Which job.")]


class StreamArguments(JobArgument, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, lt=10**15, description="Begin after this event; 0: with the first.")] = 0
    stream: Annotated[bool, Meta(description="Send the events; false: wait for the end only.")] = True
    past_questions: Annotated[
        bool, Meta(description="Stay while the job waits for an answer; false: end there.")
    ] = False  # fmt: skip


class ResultArguments(JobArgument, frozen=True, kw_only=True):
    wait_ms: Annotated[int, Meta(ge=0, le=300_000, description="Wait so long for its end.")] = 0


class JobListArguments(Traced, frozen=True, kw_only=True):
    state: Annotated[
        JobState | tuple[JobState, ...] | None, Meta(description="Only jobs in this state, or one of these.")
    ] = None
    agent_id: Annotated[str | None, Meta(description="Only jobs of this agent.")] = None
    cursor: Annotated[str | None, Meta(description="From the page before.")] = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many at most.")] = 100


class AnswerArguments(JobArgument, frozen=True, kw_only=True):
    answers: Annotated[dict[str, Answer], Meta(description="Under each question's key.")]


class JobOperations:
    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.job.status", "Show how a job is.", JobArgument, self.status, output=_JOB, scopes=()),
            Operation("fabric.job.stream", "Follow a job's events from any number until its end, then its result.",
                      StreamArguments, self.stream, output=_OBJECT, scopes=()),
            Operation("fabric.job.result", "Give a job's result, if it has ended.", ResultArguments, self.result,
                      output=_OBJECT, scopes=()),
            Operation("fabric.job.list", "List your jobs, newest first.", JobListArguments, self.list, output=_LIST,
                      scopes=()),
            Operation("fabric.job.cancel", "Cancel a job; its agent is told.", JobArgument, self.cancel, output=_JOB,
                      scopes=(), read_only=False),
            Operation("fabric.job.answer", "Answer what a job's agent wants to know, so that it goes on.",
                      AnswerArguments, self.answer, output=_JOB, scopes=(), read_only=False),
            Operation("fabric.job.retry", "Run an ended job's call again, as a new job.", JobArgument, self.retry,
                      output=_JOB, scopes=(), read_only=False),
        ]  # fmt: skip

    async def status(self, arguments: JobArgument, request: Request, emit: Emit) -> Result:
        job = await self._desk.get(request.principal, arguments.job_id)
        return Result(data={**job_view(job), **request_view(job)})

    async def stream(self, arguments: StreamArguments, request: Request, emit: Emit) -> Result:
        after = arguments.after if request.after is None else request.after
        lines = self._desk.events(
            request.principal, arguments.job_id, after, past_questions=arguments.past_questions
        )  # fmt: skip
        async with aclosing(lines):
            async for line in lines:
                await emit(numbered(line))
        return await self._desk.result(request.principal, arguments.job_id)

    async def result(self, arguments: ResultArguments, request: Request, emit: Emit) -> Result:
        return await self._desk.result(request.principal, arguments.job_id, arguments.wait_ms / 1000)

    async def list(self, arguments: JobListArguments, request: Request, emit: Emit) -> Result:
        wanted = arguments.state
        page = await self._desk.list(
            request.principal,
            states=(wanted,) if isinstance(wanted, str) else wanted,
            agent_id=arguments.agent_id,
            cursor=arguments.cursor,
            limit=arguments.limit,
        )
        jobs = [job_view(job) for job in page.jobs]
        return Result(data={"jobs": jobs, "count": len(jobs), "cursor": page.cursor})

    async def cancel(self, arguments: JobArgument, request: Request, emit: Emit) -> Result:
        return Result(data=job_view(await self._desk.cancel(request.principal, arguments.job_id)))

    async def answer(self, arguments: AnswerArguments, request: Request, emit: Emit) -> Result:
        if not arguments.answers:
            raise BadInput("answers: none given", field="answers")
        return Result(data=job_view(await self._desk.answer(request.principal, arguments.job_id, arguments.answers)))

    async def retry(self, arguments: JobArgument, request: Request, emit: Emit) -> Result:
        return handle(await self._desk.retry(request.principal, arguments.job_id))
