"""Renders results, errors, questions and jobs of calls as MCP results.

A job is a task of the extension `io.modelcontextprotocol/tasks`. If the agent itself ended the job with an
error, the task is completed and its result holds the error, as without a task. The task has failed only if the
gateway could not finish the job."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import CallerError, FabricError, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.events import format_timestamp
from a2a_fabric.core.job import Job, JobState, translate_state
from a2a_fabric.core.question import Questions
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.edge import JSON_ENCODE_ERRORS
from a2a_fabric.doors.mcp.errors import to_error_body
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp.content import list_conversions, render_blocks
from a2a_fabric.protocols.mcp.questions import request_from_question
from a2a_fabric.protocols.mcp.versions import INPUT_REQUIRED

TRACE_KEY = "a2a-fabric/trace"
FALLBACK_KEY = "a2a-fabric/fallback"
NOTES_KEY = "a2a-fabric/notes"

_encode = msgspec.json.Encoder().encode


def render_result(result: Result, trace: Trace) -> dict[str, Any]:
    """Ready to be encoded. Raises UpstreamFailed if an agent in this process answered with more than JSON can hold."""
    try:
        text = _encode(result.data)
        content = render_blocks(result.parts) if result.parts else []
    except JSON_ENCODE_ERRORS as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    if not content or not any(part.kind == "text" for part in result.parts):
        answer = result.data.get("answer") if len(result.data) == 1 else None
        content.insert(0, {"type": "text", "text": answer if isinstance(answer, str) else text.decode()})
    meta: dict[str, Any] = {TRACE_KEY: trace}
    if result.fallback is not None:
        meta[FALLBACK_KEY] = result.fallback
        if result.fallback.note is not None:  # last, because clients read the first block as the answer
            content.append({"type": "text", "text": result.fallback.note})
    notes = (*result.notes, *list_conversions(result.parts)) if result.parts else result.notes
    if notes:
        meta[NOTES_KEY] = notes
    return {
        "content": content,
        "structuredContent": msgspec.Raw(text),
        "isError": False,
        "resultType": "complete",
        "_meta": meta,
    }


def render_error(error: FabricError, trace: Trace) -> dict[str, Any]:
    """The canonical error object, as structured content for programs and as text for models."""
    body = to_error_body(error, trace)
    return {
        "content": [{"type": "text", "text": f"{body['error']['code']}: {body['error']['message']}"}],
        "structuredContent": body,
        "isError": True,
        "resultType": "complete",
        "_meta": {TRACE_KEY: body["trace"]},
    }


def render_input_required(questions: Questions, trace: Trace) -> dict[str, Any]:
    """The result that asks, in the stateless era."""
    result: dict[str, Any] = {"resultType": INPUT_REQUIRED, "_meta": {TRACE_KEY: trace}}
    if questions.questions:
        result["inputRequests"] = render_requests(questions)
    return {**result, "requestState": questions.continuation}


def render_requests(questions: Questions) -> dict[str, Any]:
    return {key: request_from_question(question) for key, question in questions.questions.items()}


POLL_INTERVAL_MS = 1000


class _TaskFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a task has in every state."""

    job_id: str
    state: JobState
    created_at: float
    updated_at: float
    ended_at: float | None = None
    retention: float | None = None


def render_created_task(result: Result, trace: Trace, keep_seconds: float) -> dict[str, Any]:
    """The answer to a call that became a job; `result` describes the job."""
    fields = msgspec.convert(result.data, _TaskFields)
    return {
        "resultType": "task",
        **_render_fields(fields, fields.state, keep_seconds),
        "_meta": {TRACE_KEY: trace},
    }


def render_task(job: Job, keep_seconds: float) -> dict[str, Any]:
    """The answer to `tasks/get`."""
    fields = msgspec.convert(job, _TaskFields, from_attributes=True)
    error = None if job.failure is None or job.state == "cancelled" else job.failure.to_error()
    has_run = isinstance(error, UpstreamRefused | UpstreamFailed)
    rendered = {"resultType": "complete", **_render_fields(fields, "completed" if has_run else job.state, keep_seconds)}
    if job.result is not None:
        rendered["result"] = render_result(job.result, job.call.trace)
    elif error is not None and has_run:
        rendered["result"] = render_error(error, job.call.trace)
    elif error is not None:
        code = jsonrpc.INVALID_PARAMS if isinstance(error, CallerError) else jsonrpc.INTERNAL_ERROR
        rpc_error = {"code": code, "message": error.message, "data": to_error_body(error, job.call.trace)}
        rendered |= {"error": rpc_error, "statusMessage": error.message}
    questions = job.open_questions
    if questions is not None:
        rendered["inputRequests"] = render_requests(questions)
    return rendered


def _render_fields(fields: _TaskFields, state: JobState, keep_seconds: float) -> dict[str, Any]:
    ttl_ms = None
    if fields.ended_at is not None:  # until then it is unknown how long the job will be kept
        after_end = keep_seconds if fields.retention is None else fields.retention
        ttl_ms = max(1, int((fields.ended_at - fields.created_at + after_end) * 1000))
    return {
        "taskId": fields.job_id,
        "status": translate_state(state, "mcp"),
        "createdAt": format_timestamp(fields.created_at),
        "lastUpdatedAt": format_timestamp(fields.updated_at),
        "ttlMs": ttl_ms,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }
