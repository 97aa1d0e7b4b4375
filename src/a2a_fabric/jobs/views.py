"""How a job looks to its owner. No secret passes here: of a webhook only the address is shown."""

from __future__ import annotations

from typing import Any

from a2a_fabric.core.job import HIGH, LOW, NORMAL, URGENT, Job, JobSummary
from a2a_fabric.core.states import word_for

PRIORITY_WORDS = {LOW: "low", NORMAL: "normal", HIGH: "high", URGENT: "urgent"}
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
    if job.error is not None:
        view["error"] = {"code": job.error.code, "message": job.error.message, "details": job.error.details}
    if "webhook" in job.meta:
        view["webhook"] = {"url": job.meta["webhook"]["url"]}
    if isinstance(job, Job) and job.question is not None:
        view["input_required"] = job.question
    return view
