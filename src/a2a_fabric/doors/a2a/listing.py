"""`ListTasks`: the caller's tasks of one agent, latest change first, page by page.

The store lists by age; here it goes by the last change, so the newest so many jobs are put in
order at each request. A page token says after which task the next page begins.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from a2a_fabric.core.job import JobSummary
from a2a_fabric.doors.a2a import seen
from a2a_fabric.doors.a2a.faults import invalid
from a2a_fabric.doors.a2a.incoming import ListParams
from a2a_fabric.doors.a2a.shapes import Task
from a2a_fabric.doors.a2a.tasks import with_history
from a2a_fabric.doors.a2a.visit import Visit
from a2a_fabric.jobs.desk import JobDesk

_PAGE = 50
_LARGEST_PAGE = 100
_MOST = 10_000  # jobs that are looked through
_AT_ONCE = 1000


class Page(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[Task, ...]
    token: str
    size: int
    total: int


class _Token(msgspec.Struct, frozen=True, array_like=True):
    at: float
    task_id: str


class Listing:
    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk

    async def page(self, params: ListParams, visit: Visit) -> Page:
        """Raises Fault, StoreError."""
        size = _size(params.page_size)
        begin = _decoded(params.page_token) if params.page_token else None
        found = [job for job in await self._jobs(params, visit) if _is_wanted(job, params)]
        found.sort(key=lambda job: (job.updated_at, job.job_id), reverse=True)
        rest = found if begin is None else [job for job in found if (job.updated_at, job.job_id) < begin]
        shown = rest[:size]
        token = _encoded(shown[-1]) if len(rest) > size else ""
        return Page(tasks=await self._tasks(shown, params, visit), token=token, size=size, total=len(found))

    async def _jobs(self, params: ListParams, visit: Visit) -> list[JobSummary]:
        agent_id = visit.agent.agent_id if visit.agent is not None else None
        jobs: list[JobSummary] = []
        cursor: str | None = None
        while len(jobs) < _MOST:
            page = await self._desk.list(
                visit.principal, states=params.states or None, agent_id=agent_id, cursor=cursor, limit=_AT_ONCE
            )
            jobs += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
        return jobs

    async def _tasks(self, jobs: list[JobSummary], params: ListParams, visit: Visit) -> tuple[Task, ...]:
        length = params.history_length or 0
        whole = [await self._desk.get(visit.principal, job.job_id) for job in jobs]
        artifacts = bool(params.include_artifacts)
        return tuple(with_history(seen.task_of(job, artifacts=artifacts), length) for job in whole)


def _size(wished: int | None) -> int:
    if wished is None or wished == 0:
        return _PAGE
    if not 1 <= wished <= _LARGEST_PAGE:
        raise invalid(f"pageSize is between 1 and {_LARGEST_PAGE}", "pageSize")
    return wished


def _is_wanted(job: JobSummary, params: ListParams) -> bool:
    if params.context_id and seen.context_of(job) != params.context_id:
        return False
    return job.updated_at >= params.after


def _encoded(job: JobSummary) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Token(job.updated_at, job.job_id))).decode()


def _decoded(token: str) -> tuple[float, str]:
    try:
        found: Any = msgspec.json.decode(base64.urlsafe_b64decode(token), type=_Token)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as exc:
        raise invalid("pageToken is none of ours", "pageToken") from exc
    return found.at, found.task_id
