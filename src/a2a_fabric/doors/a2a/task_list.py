"""Lists of A2A tasks, newest first, page by page."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from a2a_fabric.core.job import JobSummary
from a2a_fabric.doors.a2a import task_view
from a2a_fabric.doors.a2a.errors import invalid_params_error
from a2a_fabric.doors.a2a.requests import A2ARequestContext, ListTasksParams
from a2a_fabric.doors.a2a.task_view import trim_history
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.protocols.a2a.models import A2ATask

_DEFAULT_PAGE_SIZE = 50
_MAX_PAGE_SIZE = 100
_MAX_JOBS_SCANNED = 10_000
_JOBS_PER_QUERY = 1000


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[A2ATask, ...]
    token: str
    size: int
    total: int


class _PageToken(msgspec.Struct, frozen=True, array_like=True):
    at: float
    task_id: str


class TaskListing:
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def load_page(self, params: ListTasksParams, context: A2ARequestContext) -> TaskPage:
        """Raises A2AProtocolError, StoreError."""
        size = _check_page_size(params.page_size)
        start = _decode_token(params.page_token) if params.page_token else None
        matches = [job for job in await self._load_jobs(params, context) if _matches_filter(job, params)]
        matches.sort(key=lambda job: (job.updated_at, job.job_id), reverse=True)
        remaining = matches if start is None else [job for job in matches if (job.updated_at, job.job_id) < start]
        page_jobs = remaining[:size]
        token = _encode_token(page_jobs[-1]) if len(remaining) > size else ""
        return TaskPage(
            tasks=await self._render_tasks(page_jobs, params, context), token=token, size=size, total=len(matches)
        )

    async def _load_jobs(self, params: ListTasksParams, context: A2ARequestContext) -> list[JobSummary]:
        agent_id = context.agent.agent_id if context.agent is not None else None
        jobs: list[JobSummary] = []
        cursor: str | None = None
        while len(jobs) < _MAX_JOBS_SCANNED:
            page = await self._jobs.list(
                context.principal, states=params.states or None, agent_id=agent_id, cursor=cursor, limit=_JOBS_PER_QUERY
            )
            jobs += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
        return jobs

    async def _render_tasks(
        self, jobs: list[JobSummary], params: ListTasksParams, context: A2ARequestContext
    ) -> tuple[A2ATask, ...]:
        history_length = params.history_length or 0
        full_jobs = [await self._jobs.get(context.principal, job.job_id) for job in jobs]
        artifacts = bool(params.include_artifacts)
        return tuple(
            trim_history(task_view.task_from_job(job, artifacts=artifacts), history_length) for job in full_jobs
        )


def _check_page_size(requested: int | None) -> int:
    if requested is None or requested == 0:
        return _DEFAULT_PAGE_SIZE
    if not 1 <= requested <= _MAX_PAGE_SIZE:
        raise invalid_params_error(f"pageSize must be between 1 and {_MAX_PAGE_SIZE}", "pageSize")
    return requested


def _matches_filter(job: JobSummary, params: ListTasksParams) -> bool:
    if params.context_id and task_view.find_context_id(job) != params.context_id:
        return False
    return job.updated_at >= params.changed_after


def _encode_token(job: JobSummary) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_PageToken(job.updated_at, job.job_id))).decode()


def _decode_token(token: str) -> tuple[float, str]:
    try:
        decoded: Any = msgspec.json.decode(base64.urlsafe_b64decode(token), type=_PageToken)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as exc:
        raise invalid_params_error("Invalid pageToken. Start again without one.", "pageToken") from exc
    return decoded.at, decoded.task_id
