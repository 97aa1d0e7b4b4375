"""Decodes replies of A2A agents, of every version and binding, with msgspec.

The dialects differ mostly in field positions, so one struct per object has the fields of all of them. A
reply that does not fit is decoded a second time, field by field: values of the wrong type are dropped, and
names are accepted in camel case and snake case."""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from a2a_fabric.core.errors import FabricError, UpstreamFailed
from a2a_fabric.protocols.a2a.parts import Dialect, WirePart, parse_parts
from a2a_fabric.protocols.a2a.replies import (
    FINAL_STATES,
    A2AArtifactUpdate,
    A2AMessageReply,
    A2AReply,
    A2AReplyArtifact,
    A2AStatusUpdate,
    A2ATaskSnapshot,
    A2AWireState,
)
from a2a_fabric.runtimes.a2a.errors import A2ARPCError, error_from_rpc, error_from_status_object


def fit_to_type(value: Any, target_type: Any) -> Any:
    """As much of `value` as fits the type `shape`; None if nothing does."""
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
        return {"state": value}  # a status that is nothing but its state
    if not isinstance(value, dict):
        return None
    fitted = {}
    for field in msgspec.structs.fields(target_type):
        field_value = value.get(field.encode_name, value.get(field.name))
        if field_value is not None and (fit := fit_to_type(field_value, field.type)) is not None:
            fitted[field.encode_name] = fit
    return fitted


_STATES: dict[str, A2AWireState] = {state.replace("-", ""): state for state in get_args(A2AWireState)} | {
    "cancelled": "canceled"
}

_SNAKE_CASE_MARK = b'_id"'  # the sign of one who writes names as the protos do


class WireMessage(msgspec.Struct, rename="camel"):
    message_id: str | None = None
    context_id: str | None = None
    role: str | None = None
    parts: list[WirePart] | None = None
    content: list[WirePart] | None = None  # 0.3 in its proto form


class WireStatus(msgspec.Struct, rename="camel"):
    state: Any = None
    message: WireMessage | None = None
    update: WireMessage | None = None  # 0.3 in its proto form


class WireArtifact(msgspec.Struct, rename="camel"):
    artifact_id: str | None = None
    name: str | None = None
    description: str | None = None
    parts: list[WirePart] | None = None


class WireTask(msgspec.Struct, rename="camel"):
    id: str | None = None
    context_id: str | None = None
    status: WireStatus | None = None
    artifacts: list[WireArtifact] | None = None
    history: list[WireMessage] | None = None


class WireUpdate(msgspec.Struct, rename="camel"):
    """Of a task's status, or of one artifact."""

    task_id: str | None = None
    context_id: str | None = None
    status: WireStatus | None = None
    final: bool | None = None
    artifact: WireArtifact | None = None
    append: bool | None = None
    last_chunk: bool | None = None


class WireReply(msgspec.Struct, rename="camel"):
    """1.0 wraps what it says and names it; 0.3 says it as it is, and `tasks/get` of both does."""

    task: WireTask | None = None
    message: WireMessage | None = None
    msg: WireMessage | None = None
    status_update: WireUpdate | None = None
    artifact_update: WireUpdate | None = None
    id: str | None = None
    task_id: str | None = None
    context_id: str | None = None
    status: WireStatus | None = None
    artifacts: list[WireArtifact] | None = None
    history: list[WireMessage] | None = None
    final: bool | None = None
    artifact: WireArtifact | None = None
    append: bool | None = None
    last_chunk: bool | None = None
    role: str | None = None
    parts: list[WirePart] | None = None
    content: list[WirePart] | None = None
    error: Any = None  # over HTTP, in the middle of a stream


class WireTaskList(msgspec.Struct, rename="camel"):
    tasks: list[WireTask] | None = None


class A2ARPCReply(msgspec.Struct):
    result: WireReply | None = None
    error: A2ARPCError | None = None


class A2ARPCTaskList(msgspec.Struct):
    result: WireTaskList | None = None
    error: A2ARPCError | None = None


S = TypeVar("S", bound=msgspec.Struct)

_rpc_reply_decoder = msgspec.json.Decoder(A2ARPCReply)
_rpc_tasks_decoder = msgspec.json.Decoder(A2ARPCTaskList)
_reply_decoder = msgspec.json.Decoder(WireReply)
_tasks_decoder = msgspec.json.Decoder(WireTaskList)


def parse_rpc_reply(body: bytes, dialect: Dialect) -> A2AReply:
    """Raises FabricError: what the agent reports, or UpstreamFailed for what nobody could understand."""
    reply = _decode(body, _rpc_reply_decoder)
    if reply.error is not None:
        raise error_from_rpc(reply.error)
    return _require_reply(reply.result, dialect)


def parse_reply(body: bytes, dialect: Dialect) -> A2AReply:
    """Without JSON-RPC around it."""
    reply = _decode(body, _reply_decoder)
    if isinstance(reply.error, dict):
        raise error_from_status_object(reply.error)
    return _require_reply(reply, dialect)


def check_rpc_reply(body: bytes) -> None:
    """An answer that says nothing, unless it is no. Raises FabricError."""
    reply = _decode(body, _rpc_reply_decoder)
    if reply.error is not None:
        raise error_from_rpc(reply.error)


def parse_push(body: bytes) -> A2AReply | None:
    """What an agent says by itself: wrapped as 1.0 does, or bare as 0.3 does; None if nobody could understand it."""
    try:
        reply = _decode(body, _reply_decoder)
    except UpstreamFailed:
        return None
    is_wrapped = any((reply.task, reply.status_update, reply.artifact_update, reply.message))
    return reply_from_wire(reply, "1.0" if is_wrapped else "0.3")


def parse_rpc_tasks(body: bytes, dialect: Dialect) -> list[A2ATaskSnapshot]:
    reply = _decode(body, _rpc_tasks_decoder)
    if reply.error is not None:
        raise error_from_rpc(reply.error)
    return tasks_from_wire(reply.result, dialect)


def parse_tasks(body: bytes, dialect: Dialect) -> list[A2ATaskSnapshot]:
    return tasks_from_wire(_decode(body, _tasks_decoder), dialect)


def reply_from_object(document: Any, dialect: Dialect) -> A2AReply:
    """What was JSON on another wire."""
    return _require_reply(msgspec.convert(document, WireReply), dialect)


def _decode(body: bytes, decoder: msgspec.json.Decoder[S]) -> S:
    """Raises UpstreamFailed if it is not JSON at all."""
    try:
        if _SNAKE_CASE_MARK not in body:
            return decoder.decode(body)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _unreadable_reply(exc) from exc
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _unreadable_reply(exc) from exc
    return msgspec.convert(fit_to_type(document, decoder.type) or {}, decoder.type)


def _unreadable_reply(exc: Exception) -> FabricError:
    return UpstreamFailed(f"The agent's answer cannot be read: {exc}"[:300])


def _require_reply(reply: WireReply | None, dialect: Dialect) -> A2AReply:
    parsed = reply_from_wire(reply, dialect) if reply is not None else None
    if parsed is None:
        raise UpstreamFailed("The agent's answer is neither a message nor a task")
    return parsed


def reply_from_wire(reply: WireReply, dialect: Dialect) -> A2AReply | None:
    if reply.task is not None:
        return task_from_wire(reply.task, dialect)
    if reply.status_update is not None:
        return _status_from_wire(reply.status_update, dialect)
    if reply.artifact_update is not None:
        return _artifact_update_from_wire(reply.artifact_update, dialect)
    message = reply.message or reply.msg
    if message is not None:
        return _message_from_wire(message, dialect)
    return _reply_from_unwrapped(reply, dialect)


def _reply_from_unwrapped(reply: WireReply, dialect: Dialect) -> A2AReply | None:
    if reply.artifact is not None:
        return _artifact_update_from_wire(reply, dialect)
    if reply.status is not None:
        return task_from_wire(reply, dialect) if reply.id is not None else _status_from_wire(reply, dialect)
    if reply.parts is not None or reply.content is not None:
        return _message_from_wire(reply, dialect)
    return None


def task_from_wire(task: WireTask | WireReply, dialect: Dialect) -> A2ATaskSnapshot:
    status, history = task.status or WireStatus(), task.history or []
    agent_messages = [message for message in history if "agent" in (message.role or "").lower()]
    return A2ATaskSnapshot(
        task_id=task.id or "",
        context_id=task.context_id or "",
        state=parse_state(status.state),
        status_parts=_status_parts(status, dialect),
        artifacts=tuple(_artifact_from_wire(each, dialect) for each in task.artifacts or ()),
        last_message_parts=_message_parts(agent_messages[-1], dialect) if agent_messages else (),
        message_ids=frozenset(message.message_id for message in history if message.message_id),
    )


def tasks_from_wire(reply: WireTaskList | None, dialect: Dialect) -> list[A2ATaskSnapshot]:
    return [task_from_wire(task, dialect) for task in (reply.tasks if reply else None) or ()]


def _status_from_wire(update: WireUpdate | WireReply, dialect: Dialect) -> A2AStatusUpdate:
    status = update.status or WireStatus()
    state = parse_state(status.state)
    return A2AStatusUpdate(
        task_id=update.task_id or "",
        context_id=update.context_id or "",
        state=state,
        status_parts=_status_parts(status, dialect),
        is_final=bool(update.final) or state in FINAL_STATES,
    )


def _artifact_update_from_wire(update: WireUpdate | WireReply, dialect: Dialect) -> A2AArtifactUpdate:
    return A2AArtifactUpdate(
        task_id=update.task_id or "",
        context_id=update.context_id or "",
        artifact=_artifact_from_wire(update.artifact or WireArtifact(), dialect),
        is_append=bool(update.append),
        is_complete=bool(update.last_chunk),
    )


def _message_from_wire(message: WireMessage | WireReply, dialect: Dialect) -> A2AMessageReply:
    return A2AMessageReply(parts=_message_parts(message, dialect), context_id=message.context_id or "")


def _artifact_from_wire(artifact: WireArtifact, dialect: Dialect) -> A2AReplyArtifact:
    return A2AReplyArtifact(
        id=artifact.artifact_id or artifact.name or "",
        name=artifact.name or "",
        description=artifact.description or "",
        parts=parse_parts(artifact.parts or (), dialect),
    )


def _status_parts(status: WireStatus, dialect: Dialect) -> tuple[Any, ...]:
    message = status.message or status.update
    return _message_parts(message, dialect) if message is not None else ()


def _message_parts(message: WireMessage | WireReply, dialect: Dialect) -> tuple[Any, ...]:
    return parse_parts(message.parts or message.content or (), dialect)


def parse_state(value: Any) -> A2AWireState:
    """`working`, `TASK_STATE_WORKING`, `Working`: all the same; a word of a later version is none of ours."""
    folded = str(value or "").lower().removeprefix("task_state_").replace("_", "").replace("-", "")
    return _STATES.get(folded, "unknown")
