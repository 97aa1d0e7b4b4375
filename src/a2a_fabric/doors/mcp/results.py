"""Renders results, errors, events, questions and jobs of calls as MCP has them. One table maps errors to statuses.

MCP wants progress to rise with every notification. Percentages are sent as they are; an event without one raises
progress by a millionth. Progress never passes its total: after 100 no total is named.

A job is a task of the extension `io.modelcontextprotocol/tasks`. If the agent itself ended the job with an error, the
task is completed and its result holds the error, as without a task. The task has failed only if the gateway could not
finish the job."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from a2a_fabric.core.errors import (
    AgentError,
    AgentNotFound,
    AgentOffline,
    AuthExpired,
    AuthInvalid,
    CallerError,
    CallTimeout,
    CapabilityNotFound,
    FabricError,
    Forbidden,
    PayloadTooLarge,
    RateLimited,
    StoreUnavailable,
    Unauthenticated,
    UpstreamFailed,
    UpstreamRefused,
    error_from_code,
)
from a2a_fabric.core.job import Job, JobState, translate_state
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.result import Event, Questions, Result, format_timestamp
from a2a_fabric.doors.edge import JSON_ENCODE_ERRORS, RefusedRequest, to_encodable_text
from a2a_fabric.protocols import jsonrpc
from a2a_fabric.protocols.mcp.content import find_original_meta, list_conversions, render_blocks
from a2a_fabric.protocols.mcp.questions import request_from_question
from a2a_fabric.protocols.mcp.wire import INPUT_REQUIRED, McpProtocolError

# The first match wins.
_STATUS: dict[type[FabricError], int] = {
    Unauthenticated: 401,
    AuthInvalid: 401,
    AuthExpired: 401,
    Forbidden: 403,
    AgentNotFound: 404,
    CapabilityNotFound: 404,
    PayloadTooLarge: 413,
    RateLimited: 429,
    CallerError: 400,
    AgentOffline: 503,
    CallTimeout: 504,
    AgentError: 502,
    StoreUnavailable: 503,
}
_DEFAULT_STATUS = 500

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def http_status_of(error: FabricError) -> int:
    if isinstance(error, RefusedRequest):
        return error.status
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), _DEFAULT_STATUS)


def to_protocol_error(error: FabricError, trace: Trace) -> McpProtocolError:
    """The error as a JSON-RPC error, whose data is the canonical error object."""
    code = jsonrpc.INVALID_REQUEST if isinstance(error, CallerError | RateLimited) else jsonrpc.INTERNAL_ERROR
    return McpProtocolError(code, error.message, to_error_body(error, trace), status=http_status_of(error))


def to_error_body(error: FabricError, trace: Trace) -> dict[str, Any]:
    """The canonical error object. Details that JSON cannot hold are left out: agents in this process may set any."""
    error_object = {"code": error.code, "message": error.message, "details": error.details}
    try:
        error_object = _decode(_encode(error_object))
    except JSON_ENCODE_ERRORS:
        known_error = error_from_code(error.code, to_encodable_text(error.message))
        error_object = {"code": known_error.code, "message": known_error.message, "details": {}}
    return {"ok": False, "error": error_object, "trace": msgspec.to_builtins(trace)}


EVENT_KEY = "a2a-fabric/event"
LOGGER = "a2a-fabric"
EVENT_LOG_LEVEL = "info"
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
_LEVEL_ORDER: dict[str, int] = {level: order for order, level in enumerate(get_args(LogLevel))}

_TOTAL = 100.0
_SMALLEST_STEP = 1e-6

Notification = tuple[str, dict[str, Any]]


class McpEventWriter:
    """Writes the events of one call as notifications, for a progress token, as log messages, or both."""

    def __init__(self, token: str | int | None, log_level: str | None) -> None:
        self._token = token
        self._least_level = _LEVEL_ORDER.get(log_level) if log_level is not None else None
        self._progress = 0.0

    @property
    def has_recipient(self) -> bool:
        return self._token is not None or self._least_level is not None

    def to_notifications(self, event: Event, trace: Trace) -> list[Notification]:
        payload = {"event": event.kind, "data": _to_plain_json(event.data), "trace": msgspec.to_builtins(trace)}
        notifications: list[Notification] = []
        if self._token is not None:
            notifications.append(("notifications/progress", self._progress_params(event, payload)))
        if self._least_level is not None:
            params = _log_params(event, payload)
            if _LEVEL_ORDER[params["level"]] >= self._least_level:
                notifications.append(("notifications/message", params))
        return notifications

    def _progress_params(self, event: Event, payload: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"progressToken": self._token, "progress": self._next_progress(event)}
        if params["progress"] <= _TOTAL:
            params["total"] = _TOTAL
        message = _progress_message(event)
        if message:
            params["message"] = to_encodable_text(message)
        params["_meta"] = {EVENT_KEY: payload}
        return params

    def _next_progress(self, event: Event) -> float:
        percent = event.data.get("percent") if event.kind == "progress" else None
        is_further = isinstance(percent, int | float) and self._progress < percent <= _TOTAL
        self._progress = percent if is_further and percent is not None else self._progress + _SMALLEST_STEP
        return round(self._progress, 6)


def _log_params(event: Event, payload: dict[str, Any]) -> dict[str, Any]:
    """A log message of an MCP server keeps its level, logger and data; any other event is a message of the node."""
    level = event.data.get("level")
    if event.kind != "status" or level not in _LEVEL_ORDER:
        return {"level": EVENT_LOG_LEVEL, "logger": LOGGER, "data": payload}
    data = payload["data"]
    params = {"level": level, "data": data.get("data", data.get("message", "")), "_meta": {EVENT_KEY: payload}}
    return {**params, "logger": data["logger"]} if isinstance(data.get("logger"), str) else params


def _progress_message(event: Event) -> str:
    data = event.data
    match event.kind:
        case "token":
            return str(data.get("text", ""))
        case "tool_call":
            return f"calls {data.get('tool', 'a tool')}"
        case "artifact":
            return f"artifact {data.get('name', '')}".rstrip()
        case "input_required":
            return str(data.get("message", "input required"))
        case _:
            return str(data.get("message") or data.get("status") or "")


def _to_plain_json(data: dict[str, Any]) -> Any:
    """Agents in this process may emit any value; one that JSON cannot hold is sent as text."""
    try:
        return _decode(_encode(data))
    except JSON_ENCODE_ERRORS:
        return {"text": to_encodable_text(repr(data))[:1000]}


TRACE_KEY = "a2a-fabric/trace"
FALLBACK_KEY = "a2a-fabric/fallback"
NOTES_KEY = "a2a-fabric/notes"
_PLAIN_RESULT = (
    b'{"content":[{"type":"text","text":%%b}],"structuredContent":%%b,"isError":false,"resultType":"complete",'
    b'"_meta":{"%b":%%b%%b}}' % TRACE_KEY.encode()
)


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
    meta: dict[str, Any] = {**find_original_meta(result), TRACE_KEY: trace} if result.original else {TRACE_KEY: trace}
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


def encode_plain_result(result: Result, trace: Trace, more_meta: bytes) -> bytes | None:
    """`render_result` as JSON, for a result that is nothing but data, as most are; None for any other.

    `more_meta` are further members of `_meta`, encoded, with a comma before them. Raises UpstreamFailed.
    """
    if (
        result.parts
        or result.notes
        or result.original
        or result.fallback is not None
        or result.asked is not None
        or result.job_id is not None
    ):
        return None
    data = result.data
    try:
        structured = _encode(data)
        answer = data.get("answer") if len(data) == 1 else None
        text = _encode(answer if isinstance(answer, str) else structured.decode())
    except JSON_ENCODE_ERRORS as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    return _PLAIN_RESULT % (text, structured, _encode(trace), more_meta)


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
