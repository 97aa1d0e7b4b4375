"""A log line when a job is accepted and one when it is left, each with the job's id and its trace."""

from __future__ import annotations

from a2a_fabric.core.job import JobSummary
from a2a_fabric.telemetry.logs import JobLine, LogWriter, timestamp

_LONGEST = 1000


class JobLines:
    def __init__(self, log: LogWriter) -> None:
        self._log = log

    def accepted(self, job: JobSummary) -> None:
        self._log.write(
            JobLine(
                time=timestamp(),
                event="job",
                level="info",
                trace_id=job.meta.get("trace_id", ""),
                job_id=job.job_id,
                owner=job.owner,
                target=job.agent_id,
                capability=job.capability,
                status="accepted",
            )
        )

    def left(self, job: JobSummary) -> None:
        error = job.error
        self._log.write(
            JobLine(
                time=timestamp(),
                event="job",
                level="warning" if job.state in ("failed", "timeout") else "info",
                trace_id=job.meta.get("trace_id", ""),
                job_id=job.job_id,
                owner=job.owner,
                target=job.agent_id,
                capability=job.capability,
                status=job.state,
                attempt=job.attempt,
                error_code=None if error is None else error.code,
                error=None if error is None else error.message[:_LONGEST],
                duration_ms=_milliseconds(job),
            )
        )


def _milliseconds(job: JobSummary) -> float | None:
    """Of the latest attempt, by the store's clock."""
    return None if job.started_at is None else round((job.updated_at - job.started_at) * 1000, 3)
