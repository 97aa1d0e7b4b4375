"""What has become of one caller's tasks since the last look, whichever door and node look after them."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from a2a_fabric.core.call import Principal
from a2a_fabric.core.job import JobSummary, owner_of
from a2a_fabric.core.states import JobState, word_for
from a2a_fabric.core.store_errors import JobNotFound, StoreError
from a2a_fabric.doors.directory.task import Kept, kept_in
from a2a_fabric.jobs.desk import JobDesk

_UNDER_WAY: tuple[JobState, ...] = ("queued", "running", "input_required")
_NEWEST = 100
_MOST = 1000


class Looks:
    """One look at a caller's jobs serves all who ask for it within a moment: subscribers are many, callers few."""

    def __init__(self, desk: JobDesk, seconds: float) -> None:
        self._desk = desk
        self._seconds = seconds
        self._latest: dict[str, tuple[float, asyncio.Task[dict[str, JobSummary]]]] = {}

    async def at_jobs_of(self, principal: Principal) -> dict[str, JobSummary]:
        """The newest, and all under way, the oldest first. Raises StoreError."""
        now, owner = asyncio.get_running_loop().time(), owner_of(principal)
        self._latest = {key: look for key, look in self._latest.items() if now - look[0] < self._seconds}
        if owner not in self._latest:
            look = asyncio.create_task(self._look(principal))
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # all who asked may have left
            self._latest[owner] = (now, look)
        return await asyncio.shield(self._latest[owner][1])

    async def _look(self, principal: Principal) -> dict[str, JobSummary]:
        newest = (await self._desk.list(principal, limit=_NEWEST)).jobs
        under_way = (await self._desk.list(principal, states=_UNDER_WAY, limit=_MOST)).jobs
        return {job.job_id: job for job in (*reversed(newest), *reversed(under_way))}


def _steps(before: JobState | None, job: JobSummary) -> list[JobSummary]:
    """How it came from the state at the last look to the one that it has now, also if nobody looked in between."""
    if before == job.state:
        return []
    passed: list[JobState] = ["queued"] if before is None and job.state != "queued" else []
    if before in (None, "queued") and job.attempt > 0 and job.state != "running":
        passed.append("running")
    return [*(replace(job, state=state) for state in passed), job]


class OwnTasks:
    """The first look tells of tasks under way; each further one of what changed."""

    def __init__(self, desk: JobDesk, looks: Looks, principal: Principal, task_id: str | None) -> None:
        self._desk = desk
        self._looks = looks
        self._principal = principal
        self._task_id = task_id
        self._seen: dict[str, JobState] | None = None

    async def news(self) -> list[dict[str, Any]]:
        """While the store is away there are none."""
        try:
            jobs = dict(await self._looks.at_jobs_of(self._principal))
        except StoreError:
            return []
        seen = self._seen
        if seen is None:
            self._seen = {job.job_id: job.state for job in jobs.values()}
            return [body for job in jobs.values() if not job.has_ended and (body := self._body(job)) is not None]
        for job_id, state in seen.items():
            if state in _UNDER_WAY and job_id not in jobs and (job := await self._gone(job_id)) is not None:
                jobs[job_id] = job
        self._seen = {job.job_id: job.state for job in jobs.values()}
        changed = [each for job in jobs.values() for each in _steps(seen.get(job.job_id), job)]
        return [body for job in changed if (body := self._body(job)) is not None]

    async def _gone(self, job_id: str) -> JobSummary | None:
        """It ended, and so many came after it that it is not among the newest."""
        try:
            return await self._desk.get(self._principal, job_id)
        except (JobNotFound, StoreError):
            return None

    def _body(self, job: JobSummary) -> dict[str, Any] | None:
        kept = kept_in(job) or Kept(task_id=job.job_id)
        if self._task_id is not None and kept.task_id != self._task_id:
            return None
        is_last = kept.hop == kept.count - 1
        status = word_for(job.state, "directory") if is_last or job.state != "completed" else "running"
        body: dict[str, Any] = {
            "type": f"task.{status}",
            "taskId": kept.task_id,
            "status": status,
            "agentId": job.agent_id,
            "action": job.capability,
        }
        return body if kept.count == 1 else {**body, "hop": kept.hop + 1}
