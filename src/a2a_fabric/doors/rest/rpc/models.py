"""What the RPC methods take and return: parameters, tasks, parts and artifacts, and errors, each with an HTTP status.

Tasks have the form of the platform's library: states are words, media are files, JSON is data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.core import errors
from a2a_fabric.core.call import KIND_KEY
from a2a_fabric.core.errors import BadInput, Conflict, FabricError
from a2a_fabric.core.job import Job, translate_state
from a2a_fabric.core.message import EXTENSION_KEY
from a2a_fabric.core.result import Part, format_timestamp
from a2a_fabric.doors.edge import DoorError, RefusedRequest
from a2a_fabric.doors.rest.http import ResourceNotFound, TaskAlreadyEnded, build_error_body, find_status
from a2a_fabric.doors.rest.models import Name, get_content
from a2a_fabric.doors.rest.models import Part as WirePart
from a2a_fabric.doors.rest.tasks import render_task
from a2a_fabric.messages.delivery import parts_from_result
from a2a_fabric.protocols.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JSONRPCError,
)

Parts = Annotated[tuple[WirePart, ...], Meta(max_length=1000)]


class RpcDiscoverParams(msgspec.Struct, frozen=True, kw_only=True):
    """`cursor` is `nextCursor` of a reply that could not hold all agents."""

    capability: Name | None = None
    cursor: Annotated[str, Meta(max_length=1000)] | None = None


class RpcSendParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name
    parts: Annotated[Parts, Meta(min_length=1)]
    context_id: Name | None = None
    capability: Name | None = None


class RpcTaskParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: Name


class RpcListTasksParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    since: Annotated[str | float | None, Meta(description="A time: ISO 8601, or milliseconds since 1970.")] = None
    agent_id: Name | None = None


class StatusTransition(msgspec.Struct, frozen=True, kw_only=True):
    to: Name
    from_: Name | None = msgspec.field(default=None, name="from")


class RpcUpdateStatusParams(RpcTaskParams, frozen=True, kw_only=True, rename="camel"):
    status: StatusTransition | Name


class RpcNewTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task as the client library holds it. Fields that only the gateway sets are ignored."""

    agent_id: Name
    id: Name | None = None
    name: str | None = None
    parts: Parts = ()
    input: dict[str, Any] = {}
    context_id: Name | None = None
    metadata: dict[str, Any] = {}
    created_at: str | None = None  # of a task that the client received from here


class RpcExecuteParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The client sends one of the last two fields when it wants the task's events."""

    task: RpcNewTask
    auth_token: str | None = None
    last_event_id: str | int | None = None


class RpcResubscribeParams(RpcTaskParams, frozen=True, kw_only=True, rename="camel"):
    last_event_id: str | int | None = None


class RpcArtifact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: Name
    type: Literal["text", "file", "data", "log"]
    content: dict[str, Any]
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    metadata: dict[str, Any] = {}


class RpcUploadParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    artifact: RpcArtifact


class RpcArtifactParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    artifact_id: Annotated[str, Meta(min_length=1, max_length=600)]


class RpcPushConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    endpoint: Annotated[str, Meta(max_length=2048)] | UnsetType = UNSET
    auth_token: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET
    events: tuple[str, ...] = ()


class RpcSetPushParams(RpcTaskParams, frozen=True, kw_only=True, rename="camel"):
    config: RpcPushConfig


class RpcStreamQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name | None = None
    task_id: Name | None = None


UNAUTHENTICATED, FORBIDDEN, FAILED = -32001, -32002, -32000
NO_PUSH_CONFIG, INVALID_STATE, TASK_NOT_FOUND, TASK_COMPLETED, TASK_CANCELED, TASK_FAILED = (
    -32005, -32010, -32011, -32012, -32013, -32014,
)  # fmt: skip


class RpcProtocolError(JSONRPCError, DoorError):
    """An error reply and its HTTP status."""

    def __init__(self, code: int, message: str, status: int, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.status = status


class NoPushConfig(BadInput):
    pass


class InvalidTaskState(Conflict):
    pass


class _RpcErrorRow(NamedTuple):
    code: int
    status: int = 0  # 0: the status of the REST door


# The first row that matches wins.
_ERROR_TABLE: dict[type[FabricError], _RpcErrorRow] = {
    errors.Unauthenticated: _RpcErrorRow(UNAUTHENTICATED),
    errors.AuthInvalid: _RpcErrorRow(UNAUTHENTICATED),
    errors.AuthExpired: _RpcErrorRow(UNAUTHENTICATED),
    errors.Forbidden: _RpcErrorRow(FORBIDDEN),
    errors.JobNotFound: _RpcErrorRow(TASK_NOT_FOUND),
    NoPushConfig: _RpcErrorRow(NO_PUSH_CONFIG, 404),
    InvalidTaskState: _RpcErrorRow(INVALID_STATE),
    TaskAlreadyEnded: _RpcErrorRow(TASK_COMPLETED),
    ResourceNotFound: _RpcErrorRow(METHOD_NOT_FOUND),
    BadInput: _RpcErrorRow(INVALID_PARAMS),
}


def protocol_error_from(error: Exception) -> RpcProtocolError:
    assert isinstance(error, FabricError)  # noqa: S101
    if isinstance(error, RefusedRequest):
        return RpcProtocolError(INVALID_REQUEST, f"Invalid Request: {error.message}", error.status)
    row = next((row for kind, row in _ERROR_TABLE.items() if isinstance(error, kind)), None)
    rest_status = find_status(error)
    body = build_error_body(error).error
    code = row.code if row is not None else INTERNAL_ERROR if rest_status == 500 else FAILED
    status = (row.status if row is not None else 0) or rest_status
    return RpcProtocolError(code, body.message, status, {**body.details, "code": body.code})


_PLAIN_KINDS = frozenset({"text", "file", "json"})


def render_rpc_task(job: Job) -> dict[str, Any]:
    rest_task = render_task(job)
    output = () if job.result is None else parts_from_result(job.result)
    task: dict[str, Any] = {
        "id": rest_task.id,
        "name": job.capability,
        "description": job.call.input.task[:200],
        "status": translate_state(job.state, "rpc"),
        "agentId": job.agent_id,
        "parts": [render_part(part) for part in output],
        "expectedParts": [],
        "artifacts": render_artifacts(job, output),
        "input": rest_task.input,
        "createdAt": rest_task.created_at,
        "updatedAt": rest_task.updated_at,
        "metadata": rest_task.metadata,
    }
    if job.result is not None:
        task["output"] = job.result.data
    if job.call.conversation_id:
        task["contextId"] = job.call.conversation_id
    if job.failure is not None:
        code = TASK_CANCELED if job.state == "cancelled" else TASK_FAILED
        data = {"code": job.failure.code, "details": job.failure.details}
        task["error"] = {"code": code, "message": job.failure.message, "data": data}
    return task


def render_artifacts(job: Job, output: Iterable[Part]) -> list[dict[str, Any]]:
    """The parts of the output that are not text. Their ids are the task's id and a number."""
    timestamp, task_id = format_timestamp(job.ended_at or job.updated_at), render_task(job).id
    return [
        {
            "id": f"{task_id}/{number}",
            "type": "data" if part.kind == "json" else "file",
            "content": render_part(part),
            "createdAt": timestamp,
            "updatedAt": timestamp,
        }
        for number, part in enumerate(output)
        if part.kind != "text"
    ]


def render_part(part: Part) -> dict[str, Any]:
    extension_type = part.meta.get(EXTENSION_KEY)
    kind = str(extension_type) if extension_type is not None else part.kind
    kind_metadata = {} if kind in _PLAIN_KINDS else {"metadata": {KIND_KEY: kind}}
    if part.kind == "text":
        return {"type": "text", "content": part.text or "", "format": "plain"}
    if part.blob is not None or part.url is not None or part.text is not None:
        media = part.mime_type or "application/octet-stream"
        return {
            "type": "file",
            "content": get_content(part),
            "mimeType": media,
            "name": part.name or kind,
            **kind_metadata,
        }
    data = part.data if isinstance(part.data, dict) else {"value": part.data}
    return {"type": "data", "content": data, **kind_metadata}
