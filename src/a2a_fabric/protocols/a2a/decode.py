"""Decodes the replies of A2A agents, of every version and binding, with msgspec.

The dialects differ mostly in where a field is, so one struct per object has the fields of all of them. A reply that
does not fit is decoded a second time, field by field: values of the wrong type are dropped, and names are accepted in
camel case and snake case. The SDK's strict parsing costs sixteen times as much and fails on careless agents."""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from a2a_fabric.core.errors import FabricError, UpstreamFailed
from a2a_fabric.protocols.a2a.errors import A2ARPCError, error_from_rpc, error_from_status_object
from a2a_fabric.protocols.a2a.models import (
    FINAL_TASK_STATES,
    A2AArtifact,
    A2AMessage,
    A2ATask,
    A2ATaskStatus,
    A2AUpdate,
    Dialect,
    TaskArtifactUpdate,
    TaskStatusUpdate,
    WirePart,
    parse_parts,
    parse_state,
)
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS


def fit_to_type(value: Any, target_type: Any) -> Any:
    """As much of `value` as fits the type; None if nothing does."""
    for option in get_args(target_type) if get_origin(target_type) in (Union, types.UnionType) else (target_type,):
        if option is Any:
            return value
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            if (fit := _fit_object(value, option)) is not None:
                return fit
        elif get_origin(option) is list and isinstance(value, list):
            return [fit for each in value if (fit := fit_to_type(each, get_args(option)[0])) is not None]
        elif option is str and isinstance(value, str | int | float):
            return str(value)
        elif option is bool and isinstance(value, bool):
            return value
    return None


def _fit_object(value: Any, target_type: type[msgspec.Struct]) -> dict[str, Any] | None:
    if isinstance(value, str) and "state" in target_type.__struct_fields__:
        return {"state": value}  # a status that is only the name of its state
    if not isinstance(value, dict):
        return None
    fitted = {}
    for field in msgspec.structs.fields(target_type):
        field_value = value.get(field.encode_name, value.get(field.name))
        if field_value is not None and (fit := fit_to_type(field_value, field.type)) is not None:
            fitted[field.encode_name] = fit
    return fitted


_SNAKE_CASE_MARK = b'_id"'  # in the replies of agents that write field names as the protos do


class WireStatus(msgspec.Struct, rename="camel"):
    state: Any = None
    message: WireObject | None = None
    update: WireObject | None = None  # of the 0.3 protos


class WireArtifact(msgspec.Struct, rename="camel"):
    artifact_id: str | None = None
    name: str | None = None
    description: str | None = None
    parts: list[WirePart] | None = None
    metadata: Any = None
    extensions: list[str] | None = None


class WireObject(msgspec.Struct, rename="camel"):
    """A task, a message, an update of a task, or a reply that holds one of them in one of the first five fields."""

    task: WireObject | None = None
    message: WireObject | None = None
    msg: WireObject | None = None  # of the 0.3 protos
    status_update: WireObject | None = None
    artifact_update: WireObject | None = None
    id: str | None = None
    task_id: str | None = None
    context_id: str | None = None
    message_id: str | None = None
    status: WireStatus | None = None
    artifacts: list[WireArtifact] | None = None
    history: list[WireObject] | None = None
    final: bool | None = None
    artifact: WireArtifact | None = None
    append: bool | None = None
    last_chunk: bool | None = None
    role: str | None = None
    parts: list[WirePart] | None = None
    content: list[WirePart] | None = None  # of the 0.3 protos
    metadata: Any = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None
    error: Any = None  # over HTTP, in the middle of a stream


class WireTaskList(msgspec.Struct, rename="camel"):
    tasks: list[WireObject] | None = None


class A2ARPCReply(msgspec.Struct):
    result: WireObject | None = None
    error: A2ARPCError | None = None


class A2ARPCTaskList(msgspec.Struct):
    result: WireTaskList | None = None
    error: A2ARPCError | None = None


S = TypeVar("S", bound=msgspec.Struct)

_rpc_reply_decoder = msgspec.json.Decoder(A2ARPCReply)
_rpc_tasks_decoder = msgspec.json.Decoder(A2ARPCTaskList)
_reply_decoder = msgspec.json.Decoder(WireObject)
_tasks_decoder = msgspec.json.Decoder(WireTaskList)


def parse_rpc_reply(body: bytes, dialect: Dialect) -> A2AUpdate:
    """Raises FabricError: the error that the agent reports, or UpstreamFailed for a reply that makes no sense."""
    reply = _decode(body, _rpc_reply_decoder)
    if reply.error is not None:
        raise error_from_rpc(reply.error)
    return _require_reply(reply.result, dialect)


def parse_reply(body: bytes, dialect: Dialect) -> A2AUpdate:
    """A reply without a JSON-RPC frame. Raises FabricError."""
    reply = _decode(body, _reply_decoder)
    if isinstance(reply.error, dict):
        raise error_from_status_object(reply.error)
    return _require_reply(reply, dialect)


def check_rpc_reply(body: bytes) -> None:
    """Only raises the error that the agent reports, as FabricError."""
    reply = _decode(body, _rpc_reply_decoder)
    if reply.error is not None:
        raise error_from_rpc(reply.error)


def parse_push(body: bytes) -> A2AUpdate | None:
    """The body of a push notification, wrapped as in 1.0 or bare as in 0.3; None if it makes no sense."""
    try:
        reply = _decode(body, _reply_decoder)
    except UpstreamFailed:
        return None
    is_wrapped = any((reply.task, reply.status_update, reply.artifact_update, reply.message))
    return reply_from_wire(reply, "1.0" if is_wrapped else "0.3")


def parse_rpc_tasks(body: bytes, dialect: Dialect) -> list[A2ATask]:
    reply = _decode(body, _rpc_tasks_decoder)
    if reply.error is not None:
        raise error_from_rpc(reply.error)
    return tasks_from_wire(reply.result, dialect)


def parse_tasks(body: bytes, dialect: Dialect) -> list[A2ATask]:
    return tasks_from_wire(_decode(body, _tasks_decoder), dialect)


def reply_from_object(document: Any, dialect: Dialect) -> A2AUpdate:
    """A reply that gRPC converted to the JSON form of its proto."""
    return _require_reply(msgspec.convert(document, WireObject), dialect)


def _decode(body: bytes, decoder: msgspec.json.Decoder[S]) -> S:
    """Raises UpstreamFailed if the body is not JSON."""
    try:
        if _SNAKE_CASE_MARK not in body:
            return decoder.decode(body)
    except msgspec.ValidationError:
        pass
    except DECODE_ERRORS as exc:
        raise _unreadable_reply(exc) from exc
    try:
        document = msgspec.json.decode(body)
    except DECODE_ERRORS as exc:
        raise _unreadable_reply(exc) from exc
    return msgspec.convert(fit_to_type(document, decoder.type) or {}, decoder.type)


def _unreadable_reply(exc: Exception) -> FabricError:
    return UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300])


def _require_reply(reply: WireObject | None, dialect: Dialect) -> A2AUpdate:
    parsed = reply_from_wire(reply, dialect) if reply is not None else None
    if parsed is None:
        raise UpstreamFailed("The agent's answer is neither a message nor a task")
    return parsed


def reply_from_wire(reply: WireObject, dialect: Dialect) -> A2AUpdate | None:
    if reply.task is not None:
        return task_from_wire(reply.task, dialect)
    if reply.status_update is not None:
        return _status_update_from_wire(reply.status_update, dialect)
    if reply.artifact_update is not None:
        return _artifact_update_from_wire(reply.artifact_update, dialect)
    message = reply.message or reply.msg
    if message is not None:
        return _message_from_wire(message, dialect)
    return _reply_from_unwrapped(reply, dialect)


def _reply_from_unwrapped(reply: WireObject, dialect: Dialect) -> A2AUpdate | None:
    if reply.artifact is not None:
        return _artifact_update_from_wire(reply, dialect)
    if reply.status is not None:
        return task_from_wire(reply, dialect) if reply.id is not None else _status_update_from_wire(reply, dialect)
    if reply.parts is not None or reply.content is not None:
        return _message_from_wire(reply, dialect)
    return None


def task_from_wire(task: WireObject, dialect: Dialect) -> A2ATask:
    return A2ATask(
        id=task.id or "",
        context_id=task.context_id or "",
        status=_status_from_wire(task.status, dialect),
        artifacts=tuple(_artifact_from_wire(each, dialect) for each in task.artifacts or ()),
        history=tuple(_message_from_wire(message, dialect) for message in task.history or ()),
        metadata=_read_metadata(task.metadata),
    )


def tasks_from_wire(reply: WireTaskList | None, dialect: Dialect) -> list[A2ATask]:
    return [task_from_wire(task, dialect) for task in (reply.tasks if reply else None) or ()]


def _status_from_wire(status: WireStatus | None, dialect: Dialect) -> A2ATaskStatus:
    status = status or WireStatus()
    message = status.message or status.update
    return A2ATaskStatus(
        state=parse_state(status.state), message=_message_from_wire(message, dialect) if message is not None else None
    )


def _status_update_from_wire(update: WireObject, dialect: Dialect) -> TaskStatusUpdate:
    status = _status_from_wire(update.status, dialect)
    return TaskStatusUpdate(
        task_id=update.task_id or "",
        context_id=update.context_id or "",
        status=status,
        metadata=_read_metadata(update.metadata),
        is_last=bool(update.final) or status.state in FINAL_TASK_STATES,
    )


def _artifact_update_from_wire(update: WireObject, dialect: Dialect) -> TaskArtifactUpdate:
    return TaskArtifactUpdate(
        task_id=update.task_id or "",
        context_id=update.context_id or "",
        artifact=_artifact_from_wire(update.artifact or WireArtifact(), dialect),
        append=bool(update.append),
        last_chunk=bool(update.last_chunk),
    )


def _message_from_wire(message: WireObject, dialect: Dialect) -> A2AMessage:
    return A2AMessage(
        id=message.message_id or "",
        role="agent" if "agent" in (message.role or "").lower() else "user",
        parts=parse_parts(message.parts or message.content or (), dialect),
        context_id=message.context_id or "",
        task_id=message.task_id or "",
        metadata=_read_metadata(message.metadata),
        extensions=tuple(message.extensions or ()),
        reference_task_ids=tuple(message.reference_task_ids or ()),
    )


def _artifact_from_wire(artifact: WireArtifact, dialect: Dialect) -> A2AArtifact:
    return A2AArtifact(
        id=artifact.artifact_id or artifact.name or "",
        name=artifact.name or "",
        description=artifact.description or "",
        parts=parse_parts(artifact.parts or (), dialect),
        metadata=_read_metadata(artifact.metadata),
        extensions=tuple(artifact.extensions or ()),
    )


def _read_metadata(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
