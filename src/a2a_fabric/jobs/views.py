"""How a job, its log and its outcome look to its owner. Of a webhook only the address is shown, never a secret."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.events import Event
from a2a_fabric.core.job import HIGH, LOW, NORMAL, URGENT, Job, JobEvent, JobSummary
from a2a_fabric.core.result import Result
from a2a_fabric.core.states import word_for

PRIORITY_WORDS = {LOW: "low", NORMAL: "normal", HIGH: "high", URGENT: "urgent"}
_TASK, _CONTEXT = 1000, 4000  # characters, bytes
_SHOWN = ("run_at", "expires_at", "created_at", "updated_at", "started_at", "ended_at")


def job_view(job: JobSummary) -> dict[str, Any]:
    """The handle: `state` in our own words, `status` in those of document 001. Moments are seconds since 1970."""
    view: dict[str, Any] = {
        "job_id": job.job_id,
        "state": job.state,
        "status": word_for(job.state, "stream"),
        "agent_id": job.agent_id,
        "capability": job.capability,
        "priority": PRIORITY_WORDS[job.priority],
        "attempt": job.attempt,
        "events": job.events,
        "cancel_requested": job.cancel_requested,
        "trace_id": job.meta.get("trace_id"),
        **{name: getattr(job, name) for name in _SHOWN},
    }
    if job.key is not None:
        view["idempotency_key"] = job.key
    if job.failure is not None:
        view["error"] = {"code": job.failure.code, "message": job.failure.message, "details": job.failure.details}
    if "webhook" in job.meta:
        view["webhook"] = {"url": job.meta["webhook"]["url"]}
    if isinstance(job, Job) and job.question is not None:
        view["input_required"] = job.question
    return view


def request_view(job: Job) -> dict[str, Any]:
    """What was asked, so that people can tell their jobs apart: as much as a glance takes in."""
    asked = job.call.input
    view: dict[str, Any] = {"task": asked.task[:_TASK]} if asked.task else {}
    if asked.context and len(msgspec.json.encode(asked.context)) <= _CONTEXT:
        view["context"] = asked.context
    return view


def handle(job: JobSummary) -> Result:
    """What a caller gets who need not wait."""
    return Result(data=job_view(job), job_id=job.job_id)


def numbered(line: JobEvent) -> Event:
    """As readers of the log get it: with its place and its moment."""
    return Event(line.event.kind, line.event.data, line.number, line.at)


def outcome_of(job: Job) -> Result:
    """What a caller who had waited would have got; a question says whose it is. Raises the job's error, or Conflict."""
    if job.result is not None:
        return job.result
    if job.failure is not None:
        error = job.failure.as_raised()
        error.details.setdefault("job_id", job.job_id)
        raise error
    if job.state == "input_required":
        return handle(job)
    raise Conflict(
        f"Job '{job.job_id}' is {job.state}: its result is not there yet", job_id=job.job_id, state=job.state
    )


def answer_or_handle(job: Job) -> Result:
    """What a caller gets whose patience is over, one way or the other."""
    return outcome_of(job) if job.has_ended else handle(job)
