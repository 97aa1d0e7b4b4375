"""Replies of A2A agents as raw JSON, of every version and binding, read once with msgspec.

The forms differ in where a thing stands more than in what it is, so one struct per thing
knows all its places. Whoever breaks even these is read a second time, piece by piece: what
does not fit is left out, and names may be written in either case.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect, WirePart, parts_in
from a2a_fabric.core.errors import FabricError, UpstreamFailed
from a2a_fabric.runtimes.a2a.mending import mended
from a2a_fabric.runtimes.a2a.refusals import RPCError, by_number, by_object
from a2a_fabric.runtimes.a2a.said import ENDED, Artifact, ArtifactSaid, MessageSaid, Said, State, StatusSaid, TaskSaid

_STATES: dict[str, State] = {state.replace("-", ""): state for state in get_args(State)} | {"cancelled": "canceled"}

_OTHER_CASE = b'_id"'  # the sign of one who writes names as the protos do


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


class WireTasks(msgspec.Struct, rename="camel"):
    tasks: list[WireTask] | None = None


class RPCReply(msgspec.Struct):
    result: WireReply | None = None
    error: RPCError | None = None


class RPCTasks(msgspec.Struct):
    result: WireTasks | None = None
    error: RPCError | None = None


S = TypeVar("S", bound=msgspec.Struct)

_rpc_replies = msgspec.json.Decoder(RPCReply)
_rpc_tasks = msgspec.json.Decoder(RPCTasks)
_replies = msgspec.json.Decoder(WireReply)
_tasks = msgspec.json.Decoder(WireTasks)


def read_rpc(body: bytes, dialect: Dialect) -> Said:
    """Raises FabricError: what the agent reports, or UpstreamFailed for what nobody could understand."""
    reply = _decoded(body, _rpc_replies)
    if reply.error is not None:
        raise by_number(reply.error)
    return _understood(reply.result, dialect)


def read_reply(body: bytes, dialect: Dialect) -> Said:
    """Without JSON-RPC around it."""
    reply = _decoded(body, _replies)
    if isinstance(reply.error, dict):
        raise by_object(reply.error)
    return _understood(reply, dialect)


def heed_rpc(body: bytes) -> None:
    """An answer that says nothing, unless it is no. Raises FabricError."""
    reply = _decoded(body, _rpc_replies)
    if reply.error is not None:
        raise by_number(reply.error)


def read_push(body: bytes) -> Said | None:
    """What an agent says by itself: wrapped as 1.0 does, or bare as 0.3 does; None if nobody could understand it."""
    try:
        reply = _decoded(body, _replies)
    except UpstreamFailed:
        return None
    is_wrapped = any((reply.task, reply.status_update, reply.artifact_update, reply.message))
    return said_by(reply, "1.0" if is_wrapped else "0.3")


def read_rpc_tasks(body: bytes, dialect: Dialect) -> list[TaskSaid]:
    reply = _decoded(body, _rpc_tasks)
    if reply.error is not None:
        raise by_number(reply.error)
    return tasks_said(reply.result, dialect)


def read_tasks(body: bytes, dialect: Dialect) -> list[TaskSaid]:
    return tasks_said(_decoded(body, _tasks), dialect)


def read_object(found: Any, dialect: Dialect) -> Said:
    """What was JSON on another wire."""
    return _understood(msgspec.convert(found, WireReply), dialect)


def _decoded(body: bytes, decoder: msgspec.json.Decoder[S]) -> S:
    """Raises UpstreamFailed if it is not JSON at all."""
    try:
        if _OTHER_CASE not in body:
            return decoder.decode(body)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _unreadable(exc) from exc
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _unreadable(exc) from exc
    return msgspec.convert(mended(found, decoder.type) or {}, decoder.type)


def _unreadable(exc: Exception) -> FabricError:
    return UpstreamFailed(f"The agent's answer cannot be read: {exc}"[:300])


def _understood(reply: WireReply | None, dialect: Dialect) -> Said:
    said = said_by(reply, dialect) if reply is not None else None
    if said is None:
        raise UpstreamFailed("The agent's answer is neither a message nor a task")
    return said


def said_by(reply: WireReply, dialect: Dialect) -> Said | None:
    if reply.task is not None:
        return task_said(reply.task, dialect)
    if reply.status_update is not None:
        return _status_said(reply.status_update, dialect)
    if reply.artifact_update is not None:
        return _artifact_said(reply.artifact_update, dialect)
    message = reply.message or reply.msg
    if message is not None:
        return _message_said(message, dialect)
    return _bare(reply, dialect)


def _bare(reply: WireReply, dialect: Dialect) -> Said | None:
    if reply.artifact is not None:
        return _artifact_said(reply, dialect)
    if reply.status is not None:
        return task_said(reply, dialect) if reply.id is not None else _status_said(reply, dialect)
    if reply.parts is not None or reply.content is not None:
        return _message_said(reply, dialect)
    return None


def task_said(task: WireTask | WireReply, dialect: Dialect) -> TaskSaid:
    status, history = task.status or WireStatus(), task.history or []
    agents = [message for message in history if "agent" in (message.role or "").lower()]
    return TaskSaid(
        task_id=task.id or "",
        context_id=task.context_id or "",
        state=state_of(status.state),
        words=_words(status, dialect),
        artifacts=tuple(_artifact(each, dialect) for each in task.artifacts or ()),
        last_words=_parts(agents[-1], dialect) if agents else (),
        message_ids=frozenset(message.message_id for message in history if message.message_id),
    )


def tasks_said(reply: WireTasks | None, dialect: Dialect) -> list[TaskSaid]:
    return [task_said(task, dialect) for task in (reply.tasks if reply else None) or ()]


def _status_said(update: WireUpdate | WireReply, dialect: Dialect) -> StatusSaid:
    status = update.status or WireStatus()
    state = state_of(status.state)
    return StatusSaid(
        task_id=update.task_id or "",
        context_id=update.context_id or "",
        state=state,
        words=_words(status, dialect),
        is_last=bool(update.final) or state in ENDED,
    )


def _artifact_said(update: WireUpdate | WireReply, dialect: Dialect) -> ArtifactSaid:
    return ArtifactSaid(
        task_id=update.task_id or "",
        context_id=update.context_id or "",
        artifact=_artifact(update.artifact or WireArtifact(), dialect),
        is_continued=bool(update.append),
        is_complete=bool(update.last_chunk),
    )


def _message_said(message: WireMessage | WireReply, dialect: Dialect) -> MessageSaid:
    return MessageSaid(parts=_parts(message, dialect), context_id=message.context_id or "")


def _artifact(artifact: WireArtifact, dialect: Dialect) -> Artifact:
    return Artifact(
        id=artifact.artifact_id or artifact.name or "",
        name=artifact.name or "",
        description=artifact.description or "",
        parts=parts_in(artifact.parts or (), dialect),
    )


def _words(status: WireStatus, dialect: Dialect) -> tuple[Any, ...]:
    message = status.message or status.update
    return _parts(message, dialect) if message is not None else ()


def _parts(message: WireMessage | WireReply, dialect: Dialect) -> tuple[Any, ...]:
    return parts_in(message.parts or message.content or (), dialect)


def state_of(word: Any) -> State:
    """`working`, `TASK_STATE_WORKING`, `Working`: all the same; a word of a later version is none of ours."""
    folded = str(word or "").lower().removeprefix("task_state_").replace("_", "").replace("-", "")
    return _STATES.get(folded, "unknown")
