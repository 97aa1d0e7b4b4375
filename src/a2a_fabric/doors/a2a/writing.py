"""Tasks, messages and updates as JSON, in each dialect: 1.0, 0.3, and 0.3 as its proto is written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect, WirePart, parts_in, written
from a2a_fabric.core.states import word_for
from a2a_fabric.doors.a2a.shapes import (
    Artifact,
    ArtifactUpdate,
    Message,
    PushConfig,
    State,
    Status,
    StatusUpdate,
    Task,
    Update,
)

_ROLES: Mapping[Dialect, dict[str, str]] = {
    "1.0": {"user": "ROLE_USER", "agent": "ROLE_AGENT"},
    "0.3": {"user": "user", "agent": "agent"},
    "0.3 proto": {"user": "ROLE_USER", "agent": "ROLE_AGENT"},
}
_AUTH: Mapping[Dialect, str] = {
    "1.0": "TASK_STATE_AUTH_REQUIRED",
    "0.3": "auth-required",
    "0.3 proto": "TASK_STATE_AUTH_REQUIRED",
}
_WRAPPED: Mapping[type, str] = {
    Task: "task",
    Message: "message",
    StatusUpdate: "statusUpdate",
    ArtifactUpdate: "artifactUpdate",
}
_OLD_KINDS: Mapping[type, str] = {
    Task: "task",
    Message: "message",
    StatusUpdate: "status-update",
    ArtifactUpdate: "artifact-update",
}


class Writer:
    """Of one dialect. What comes out is ready for an encoder."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect: Dialect = dialect
        self._is_old = dialect == "0.3"
        self._content = "content" if dialect == "0.3 proto" else "parts"

    def said(self, update: Update) -> dict[str, Any]:
        """As an answer to a message or as an event: 0.3 says it as it is, the others wrap it."""
        body = self.bare(update)
        if self._is_old:
            return body
        return {_WRAPPED[type(update)]: body}

    def bare(self, update: Update) -> dict[str, Any]:
        body = self._body(update)
        return {"kind": _OLD_KINDS[type(update)], **body} if self._is_old else body

    def _body(self, update: Update) -> dict[str, Any]:
        match update:
            case Task():
                return self._task(update)
            case Message():
                return self.message(update)
            case StatusUpdate():
                return self._status_update(update)
            case ArtifactUpdate():
                return self._artifact_update(update)

    def _task(self, task: Task) -> dict[str, Any]:
        body: dict[str, Any] = {"id": task.id, "contextId": task.context_id, "status": self._status(task.status)}
        if task.artifacts:
            body["artifacts"] = [self._artifact(each) for each in task.artifacts]
        if task.history:
            body["history"] = [self._spoken(each) for each in task.history]
        if task.metadata:
            body["metadata"] = task.metadata
        return body

    def _status_update(self, update: StatusUpdate) -> dict[str, Any]:
        body: dict[str, Any] = {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "status": self._status(update.status),
        }
        if self.dialect != "1.0":
            body["final"] = update.is_last
        return {**body, "metadata": update.metadata} if update.metadata else body

    def _artifact_update(self, update: ArtifactUpdate) -> dict[str, Any]:
        return {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "artifact": self._artifact(update.artifact),
            "append": update.append,
            "lastChunk": update.last_chunk,
        }

    def _status(self, status: Status) -> dict[str, Any]:
        body: dict[str, Any] = {"state": state_word(status.state, self.dialect), "timestamp": moment(status.at)}
        if status.message is not None:
            body["message"] = self._spoken(status.message)
        return body

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        body: dict[str, Any] = {
            "artifactId": artifact.id,
            "parts": [written(part, self.dialect) for part in artifact.parts],
        }
        if artifact.name:
            body["name"] = artifact.name
        return {**body, "metadata": artifact.metadata} if artifact.metadata else body

    def _spoken(self, message: Message) -> dict[str, Any]:
        """Inside something else."""
        body = self.message(message)
        return {"kind": "message", **body} if self._is_old else body

    def message(self, message: Message) -> dict[str, Any]:
        if message.raw is not None and message.dialect == self.dialect:
            return {**message.raw, **_placed(message)}
        made: dict[str, Any] = {
            "messageId": message.id,
            "role": _ROLES[self.dialect][message.role],
            self._content: [written(part, self.dialect) for part in _parts_of(message)],
            **_placed(message),
        }
        if metadata := message.metadata or (message.raw or {}).get("metadata"):
            made["metadata"] = metadata
        return made

    def push(self, config: PushConfig) -> dict[str, Any]:
        body: dict[str, Any] = {"id": config.id, "url": config.url}
        if config.token:
            body["token"] = config.token
        is_new = self.dialect == "1.0"
        if config.scheme:
            how: dict[str, Any] = {"scheme": config.scheme} if is_new else {"schemes": [config.scheme]}
            body["authentication"] = {**how, "credentials": config.credentials} if config.credentials else how
        if is_new:
            return {**body, "taskId": config.task_id}
        if self._is_old:
            return {"taskId": config.task_id, "pushNotificationConfig": body}
        name = f"tasks/{config.task_id}/pushNotificationConfigs/{config.id}"
        return {"name": name, "pushNotificationConfig": body}


def _placed(message: Message) -> dict[str, str]:
    places = (("contextId", message.context_id), ("taskId", message.task_id))
    return {name: value for name, value in places if value}


def _parts_of(message: Message) -> tuple[Any, ...]:
    if message.raw is None:
        return message.parts
    listed = message.raw.get("content" if message.dialect == "0.3 proto" else "parts", ())
    return parts_in(msgspec.convert(listed, list[WirePart]), message.dialect)


def state_word(state: State, dialect: Dialect) -> str:
    if state == "auth_required":
        return _AUTH[dialect]
    word = word_for(state, "a2a_0_3" if dialect == "0.3" else "a2a")
    return word if dialect != "0.3 proto" or word != "TASK_STATE_CANCELED" else "TASK_STATE_CANCELLED"


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


WRITERS: Mapping[Dialect, Writer] = {name: Writer(name) for name in ("1.0", "0.3", "0.3 proto")}
