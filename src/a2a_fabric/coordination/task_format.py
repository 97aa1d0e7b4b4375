"""The standard task request and response that federated agents exchange, and their errors; pure functions.

A request names a capability (`type`) and its arguments (`payload`). A response has a status, and a result only if the
status is `completed`. Every error says whether repeating the request may help (`recoverable`). An id stands for one
request: the same request again is the same task, and another request with this id is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import LINE_PATTERN
from a2a_fabric.core.call import Input
from a2a_fabric.core.errors import (
    BadInput,
    FabricError,
    Forbidden,
    RateLimited,
)
from a2a_fabric.core.job import Job, JobPriority
from a2a_fabric.core.propagation import Trace, continue_trace
from a2a_fabric.core.result import Part, Questions, Result, format_timestamp
from a2a_fabric.core.retry import RetryPolicy, is_recoverable

TaskStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled", "input_required"]
TaskId = Annotated[
    str,
    Meta(min_length=1, max_length=256, pattern=LINE_PATTERN, description="The sender's own id; never used twice."),
]
ShortText = Annotated[str, Meta(max_length=256)]

_TEXT_KEYS = ("task", "text", "message", "query", "prompt")  # of a payload, for a capability that takes words alone
_MAX_MESSAGE = 1000  # characters
_MISSING = re.compile(r"missing required field `(\w+)`|[\"']([^\"']+)[\"'] is a required property")
_WRONG_TYPE = re.compile(r"Expected `.+`, got `|is not of type")
# The codes of the format for ours. Others keep their own names.
_CODES: Mapping[str, str] = {
    "AGENT_OFFLINE": "AGENT_UNAVAILABLE",
    "PAYLOAD_TOO_LARGE": "INVALID_INPUT",
    "STORE_UNAVAILABLE": "INTERNAL_ERROR",
    "STORE_ERROR": "INTERNAL_ERROR",
}
_DELEGATION_CODES: Mapping[str, str] = {  # by the cause of a refusal: the cards, a circle, too many hops
    "COORDINATION": "COORDINATION_FAILED",
    "LOOP": "DELEGATION_FAILED",
    "DEPTH": "DELEGATION_FAILED",
}
_MCP_CODES: Mapping[str, str] = {  # by `mcp_status`, for an MCP server that the agent needs
    "not_connected": "MCP_NOT_CONNECTED",
    "auth_failed": "MCP_AUTH_FAILED",
    "rate_limited": "MCP_RATE_LIMITED",
    "error": "MCP_ERROR",
}


class TaskContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Around a task. `user` is what the sender says; it grants nothing."""

    conversation_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    parent_task_id: ShortText | None = None
    user: ShortText | None = None
    timestamp: ShortText | None = None
    priority: JobPriority = "normal"


class TaskRouting(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who sends the task, to which agent, and which agents it has passed."""

    source: ShortText | None = None
    target: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    delegation_chain: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=64)
    ] = ()


class TaskObservability(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The trace that the task continues. The baggage comes back with the response."""

    trace_id: ShortText | None = None
    span_id: ShortText | None = None
    baggage: Annotated[dict[ShortText, ShortText], Meta(max_length=64)] = {}


class TaskRetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How often the task is tried, and how the pauses between attempts grow."""

    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    backoff_type: Literal["exponential", "linear"] = "exponential"
    initial_delay: Annotated[float, Meta(ge=0, le=60_000, description="Milliseconds.")] = 1000

    def to_policy(self) -> RetryPolicy:
        pause = self.initial_delay / 1000
        return RetryPolicy(max_attempts=self.max_attempts, pause_seconds=pause, backoff=self.backoff_type)


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A piece of work for an agent."""

    id: TaskId
    type: Annotated[str, Meta(min_length=1, max_length=256, description="The capability.")]
    payload: Annotated[dict[str, Any], Meta(description="Its arguments; `task` holds words.")]
    context: TaskContext = TaskContext()
    routing: TaskRouting = TaskRouting()
    observability: TaskObservability = TaskObservability()
    retry_policy: TaskRetryPolicy | None = None

    def continue_trace(self, trace: Trace) -> Trace:
        """The trace that the sender names, else that of the call. Raises BadInput."""
        trace_id = self.observability.trace_id
        if trace_id is None:
            return trace
        try:
            return continue_trace(_to_uuid_text(trace_id), _to_uuid_text(self.observability.span_id))
        except ValueError as exc:
            raise BadInput(f"observability: {exc}", field="observability.traceId") from exc

    def to_input(self, schema: Mapping[str, Any] | None) -> Input:
        """A text in the payload is the task, unless the capability has an argument of this name."""
        properties = (schema or {}).get("properties")
        known = properties if isinstance(properties, dict) else {}
        text_keys = _TEXT_KEYS if schema is None else ("task",)
        key = next((each for each in text_keys if isinstance(self.payload.get(each), str) and each not in known), None)
        if key is None:
            return Input(context=self.payload)
        return Input(task=self.payload[key], context={name: v for name, v in self.payload.items() if name != key})


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    recoverable: bool
    details: dict[str, Any] = {}


class TaskArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is text, JSON, base64 or a URL, as `encoding` says."""

    name: str
    type: str
    content: Any
    encoding: Literal["text", "json", "base64", "url"]


class TaskMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    agent: str | None = None
    started_at: str | None = msgspec.field(default=None, name="startedAt")
    completed_at: str | None = msgspec.field(default=None, name="completedAt")
    duration_ms: float | None = None
    retry_count: int = msgspec.field(default=0, name="retryCount")
    notes: tuple[str, ...] = ()


class TaskResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What became of a task."""

    id: str
    status: TaskStatus
    result: dict[str, Any] | None = None
    error: TaskError | None = None
    input_required: dict[str, Any] | None = None
    metadata: TaskMetadata = TaskMetadata()
    artifacts: tuple[TaskArtifact, ...] = ()
    observability: TaskObservability = TaskObservability()


def decode_request(value: Any) -> TaskRequest:
    """Raises BadInput, which names the field."""
    try:
        return msgspec.convert(value, TaskRequest)
    except msgspec.ValidationError as exc:
        text = str(exc)
        field = text.partition(" - at `$.")[2].rstrip("`") or None
        missing = _MISSING.search(text)
        if missing is not None:
            name = missing[1] or missing[2]
            field = f"{field}.{name}" if field else name
        raise BadInput(f"Bad task request: {text}", field=field) from exc


def error_from_failure(error: FabricError) -> TaskError:
    """The error in the words of the format. `recoverable`: the same request, or a corrected one, may succeed."""
    details = {key: value for key, value in error.details.items() if key != "delegation_chain"}
    return TaskError(
        code=_find_code(error),
        message=error.message[:_MAX_MESSAGE],
        recoverable=is_recoverable(error),
        details=details,
    )


def _find_code(error: FabricError) -> str:
    if isinstance(error, Forbidden) and (code := _DELEGATION_CODES.get(str(error.details.get("reason")))):
        return code
    if isinstance(error, BadInput):
        return _find_input_code(error)
    if isinstance(error, RateLimited):
        return "AGENT_BUSY" if error.details.get("reason") == "busy" else "RATE_LIMITED"
    match error.details.get("needs"):
        case "mcp":
            return _MCP_CODES.get(str(error.details.get("mcp_status")), "MCP_ERROR")
        case "knowledge":
            return "KNOWLEDGE_NOT_FOUND"
    return _CODES.get(error.code, error.code)


def _find_input_code(error: BadInput) -> str:
    if error.details.get("reason") == "TASK_GRAPH_CYCLE":
        return "TASK_GRAPH_CYCLE"
    if _MISSING.search(error.message):
        return "MISSING_REQUIRED_FIELD"
    if _WRONG_TYPE.search(error.message):
        return "INVALID_FIELD_TYPE"
    return "INVALID_FIELD_VALUE" if error.details.get("field") else "INVALID_INPUT"


def respond_failure(
    task_id: str, error: FabricError, agent_id: str | None, observability: TaskObservability, retries: int = 0
) -> TaskResponse:
    return TaskResponse(
        id=task_id[:256],
        status="failed",
        error=error_from_failure(error),
        metadata=TaskMetadata(agent=agent_id, retry_count=retries),
        observability=observability,
    )


def respond_result(
    request: TaskRequest, result: Result, metadata: TaskMetadata, observability: TaskObservability
) -> TaskResponse:
    """The response to a call that ended, or that asks something first."""
    if result.asked is not None:
        return TaskResponse(
            id=request.id,
            status="input_required",
            input_required=render_questions(result.asked),
            metadata=metadata,
            observability=observability,
        )
    return TaskResponse(
        id=request.id,
        status="completed",
        result=result.data,
        metadata=msgspec.structs.replace(metadata, notes=result.notes),
        artifacts=artifacts_from_parts(result.parts),
        observability=observability,
    )


def respond_job(job: Job, task_id: str, status: TaskStatus, observability: TaskObservability) -> TaskResponse:
    """The response to a task that is a job, as the job is now."""
    ended_at = job.ended_at
    duration = None if ended_at is None or job.started_at is None else round((ended_at - job.started_at) * 1000, 3)
    questions = job.open_questions
    result = job.result if status == "completed" else None
    return TaskResponse(
        id=task_id,
        status=status,
        result=None if result is None else result.data,
        error=None if job.failure is None or status == "cancelled" else error_from_failure(job.failure.to_error()),
        input_required=None if questions is None else render_questions(questions),
        metadata=TaskMetadata(
            agent=job.agent_id,
            started_at=None if job.started_at is None else format_timestamp(job.started_at),
            completed_at=None if ended_at is None else format_timestamp(ended_at),
            duration_ms=duration,
            retry_count=max(0, job.attempt - 1),
            notes=() if result is None else result.notes,
        ),
        artifacts=() if result is None else artifacts_from_parts(result.parts),
        observability=observability,
    )


def render_questions(questions: Questions) -> dict[str, Any]:
    return {"message": questions.message, "questions": msgspec.to_builtins(questions.questions)}


def artifacts_from_parts(parts: Sequence[Part]) -> tuple[TaskArtifact, ...]:
    return tuple(_artifact_from_part(part, number) for number, part in enumerate(parts, 1))


def _artifact_from_part(part: Part, number: int) -> TaskArtifact:
    name = part.name or f"{part.kind}-{number}"
    if part.blob is not None:
        return TaskArtifact(
            name=name, type=part.mime_type or "application/octet-stream", content=part.blob, encoding="base64"
        )
    if part.url is not None:
        return TaskArtifact(name=name, type=part.mime_type or "text/uri-list", content=part.url, encoding="url")
    if part.text is not None:
        return TaskArtifact(name=name, type=part.mime_type or "text/plain", content=part.text, encoding="text")
    return TaskArtifact(name=name, type=part.mime_type or "application/json", content=part.data, encoding="json")


def _to_uuid_text(text: str | None) -> str:
    """A span id of W3C has half the digits of a UUID; the rest is zero, as everywhere on this node."""
    return "" if text is None else f"{text}{'0' * 16}" if re.fullmatch(r"[0-9a-fA-F]{16}", text) else text
