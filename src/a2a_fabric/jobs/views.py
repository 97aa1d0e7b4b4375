"""JSON views of a job, its events and its result for its owner. Of a webhook they show the URL, never the secret."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import Conflict
from a2a_fabric.core.job import PRIORITY_NAMES, Job, JobEvent, JobSummary, translate_state
from a2a_fabric.core.result import Event, Result

_TASK_CHARS, _CONTEXT_BYTES = 1000, 4000  # characters, bytes
_TIMESTAMPS = ("run_at", "expires_at", "created_at", "updated_at", "started_at", "ended_at")


def render_job(job: JobSummary) -> dict[str, Any]:
    """The handle of a job: `status` is the name of `state` in event streams. Times are seconds since 1970."""
    view: dict[str, Any] = {
        "job_id": job.job_id,
        "state": job.state,
        "status": translate_state(job.state, "stream"),
        "agent_id": job.agent_id,
        "capability": job.capability,
        "priority": PRIORITY_NAMES[job.priority],
        "attempt": job.attempt,
        "events": job.events,
        "cancel_requested": job.cancel_requested,
        "trace_id": job.meta.get("trace_id"),
        **{name: getattr(job, name) for name in _TIMESTAMPS},
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


def render_request(job: Job) -> dict[str, Any]:
    """A short view of the request, so that people can tell their jobs apart."""
    call_input = job.call.input
    view: dict[str, Any] = {"task": call_input.task[:_TASK_CHARS]} if call_input.task else {}
    if call_input.context and len(msgspec.json.encode(call_input.context)) <= _CONTEXT_BYTES:
        view["context"] = call_input.context
    return view


def handle_from_job(job: JobSummary) -> Result:
    """The result for a caller that does not wait."""
    return Result(data=render_job(job), job_id=job.job_id)


def event_from_log(job_event: JobEvent) -> Event:
    """The event with its number and time in the log."""
    return Event(job_event.event.kind, job_event.event.data, job_event.number, job_event.at)


def result_from_job(job: Job) -> Result:
    """The result of the call, or the handle if the job asks something. Raises the job's error, or Conflict."""
    if job.result is not None:
        return job.result
    if job.failure is not None:
        error = job.failure.to_error()
        error.details.setdefault("job_id", job.job_id)
        raise error
    if job.state == "input_required":
        return handle_from_job(job)
    raise Conflict(
        f"Job '{job.job_id}' is {job.state}: it has no result yet. Ask again when it has ended",
        job_id=job.job_id,
        state=job.state,
    )


def result_or_handle(job: Job) -> Result:
    """The result of an ended job, else its handle."""
    return result_from_job(job) if job.has_ended else handle_from_job(job)
