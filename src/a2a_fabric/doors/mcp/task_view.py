"""Renders a job as a task of the extension `io.modelcontextprotocol/tasks`.

If the agent itself ended the job with an error, the task is completed and its result holds the error, as
without a task. The task has failed only if the gateway could not finish the job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from a2a_fabric.core.errors import CallerError, FabricError, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.job import Job, JobState, translate_state
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp import results
from a2a_fabric.doors.mcp.errors import to_error_body
from a2a_fabric.doors.mcp.questions import render_requests
from a2a_fabric.protocols import jsonrpc

POLL_INTERVAL_MS = 1000


class _TaskFields(msgspec.Struct, frozen=True, kw_only=True):
    """What a task tells of itself in every state."""

    job_id: str
    state: JobState
    created_at: float
    updated_at: float
    ended_at: float | None = None
    retention: float | None = None


def render_created_task(result: Result, trace: Trace, keep_seconds: float) -> dict[str, Any]:
    """The answer to a call that became a job; `result` shows it."""
    fields = msgspec.convert(result.data, _TaskFields)
    return {
        "resultType": "task",
        **_render_fields(fields, fields.state, keep_seconds),
        "_meta": {results.TRACE_KEY: trace},
    }


def render_task(job: Job, keep_seconds: float) -> dict[str, Any]:
    """The answer to `tasks/get`."""
    fields = msgspec.convert(job, _TaskFields, from_attributes=True)
    error = None if job.failure is None or job.state == "cancelled" else job.failure.to_error()
    has_run = isinstance(error, UpstreamRefused | UpstreamFailed)
    rendered = {"resultType": "complete", **_render_fields(fields, "completed" if has_run else job.state, keep_seconds)}
    if job.result is not None:
        rendered["result"] = results.render_result(job.result, job.call.trace)
    elif error is not None and has_run:
        rendered["result"] = results.render_error(error, job.call.trace)
    elif error is not None:
        rendered |= {"error": _render_rpc_error(error, job.call.trace), "statusMessage": error.message}
    questions = job.open_questions
    if questions is not None:
        rendered["inputRequests"] = render_requests(questions)
    return rendered


def _render_fields(fields: _TaskFields, state: JobState, keep_seconds: float) -> dict[str, Any]:
    ttl_ms = None
    if fields.ended_at is not None:  # before that nobody knows how long it will be there
        after_end = keep_seconds if fields.retention is None else fields.retention
        ttl_ms = max(1, int((fields.ended_at - fields.created_at + after_end) * 1000))
    return {
        "taskId": fields.job_id,
        "status": translate_state(state, "mcp"),
        "createdAt": _format_time(fields.created_at),
        "lastUpdatedAt": _format_time(fields.updated_at),
        "ttlMs": ttl_ms,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def _render_rpc_error(error: FabricError, trace: Trace) -> dict[str, Any]:
    code = jsonrpc.INVALID_PARAMS if isinstance(error, CallerError) else jsonrpc.INTERNAL_ERROR
    return {"code": code, "message": error.message, "data": to_error_body(error, trace)}


def _format_time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
