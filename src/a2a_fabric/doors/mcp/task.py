"""A job as a task of the extension `io.modelcontextprotocol/tasks`: plain functions from jobs to what clients read.

A task that its agent ended with an error of its own is completed, and its result says so,
as it would have been without a task; it has failed if the gateway could not see it through.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from a2a_fabric.core.errors import CallerError, FabricError, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.job import Job
from a2a_fabric.core.result import Result
from a2a_fabric.core.states import JobState, word_for
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp import answer, jsonrpc
from a2a_fabric.doors.mcp.questions import requests_of

POLL_MS = 1000


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a task tells of itself in every state."""

    job_id: str
    state: JobState
    created_at: float
    updated_at: float
    ended_at: float | None = None
    retention: float | None = None


def created(result: Result, trace: Trace, keep: float) -> dict[str, Any]:
    """The answer to a call that became a job; `result` shows it."""
    shown = msgspec.convert(result.data, _Shown)
    return {"resultType": "task", **_task(shown, shown.state, keep), "_meta": {answer.TRACE_KEY: trace}}


def detailed(job: Job, keep: float) -> dict[str, Any]:
    """The answer to `tasks/get`."""
    shown = msgspec.convert(job, _Shown, from_attributes=True)
    error = None if job.failure is None or job.state == "cancelled" else job.failure.as_raised()
    has_run = isinstance(error, UpstreamRefused | UpstreamFailed)
    told = {"resultType": "complete", **_task(shown, "completed" if has_run else job.state, keep)}
    if job.result is not None:
        told["result"] = answer.success(job.result, job.call.trace)
    elif error is not None and has_run:
        told["result"] = answer.failure(error, job.call.trace)
    elif error is not None:
        told |= {"error": _rpc_error(error, job.call.trace), "statusMessage": error.message}
    asked = job.unanswered
    if asked is not None:
        told["inputRequests"] = requests_of(asked)
    return told


def _task(shown: _Shown, state: JobState, keep: float) -> dict[str, Any]:
    kept = None
    if shown.ended_at is not None:  # before that nobody knows how long it will be there
        after_end = keep if shown.retention is None else shown.retention
        kept = max(1, int((shown.ended_at - shown.created_at + after_end) * 1000))
    return {
        "taskId": shown.job_id,
        "status": word_for(state, "mcp"),
        "createdAt": _moment(shown.created_at),
        "lastUpdatedAt": _moment(shown.updated_at),
        "ttlMs": kept,
        "pollIntervalMs": POLL_MS,
    }


def _rpc_error(error: FabricError, trace: Trace) -> dict[str, Any]:
    code = jsonrpc.INVALID_PARAMS if isinstance(error, CallerError) else jsonrpc.INTERNAL_ERROR
    return {"code": code, "message": error.message, "data": answer.error_body(error, trace)}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
