"""Renders tasks, messages and updates as JSON in each dialect: 1.0, 0.3, and the JSON form of the 0.3 protos."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from a2a_fabric.core.job import translate_state
from a2a_fabric.protocols.a2a.models import (
    A2AArtifact,
    A2AMessage,
    A2APushConfig,
    A2ATask,
    A2ATaskState,
    A2ATaskStatus,
    A2AUpdate,
    TaskArtifactUpdate,
    TaskStatusUpdate,
)
from a2a_fabric.protocols.a2a.parts import Dialect, WirePart, parse_parts, render_part

_ROLES: Mapping[Dialect, dict[str, str]] = {
    "1.0": {"user": "ROLE_USER", "agent": "ROLE_AGENT"},
    "0.3": {"user": "user", "agent": "agent"},
    "0.3 proto": {"user": "ROLE_USER", "agent": "ROLE_AGENT"},
}
_AUTH_REQUIRED_STATES: Mapping[Dialect, str] = {
    "1.0": "TASK_STATE_AUTH_REQUIRED",
    "0.3": "auth-required",
    "0.3 proto": "TASK_STATE_AUTH_REQUIRED",
}
_WRAPPER_KEYS: Mapping[type, str] = {
    A2ATask: "task",
    A2AMessage: "message",
    TaskStatusUpdate: "statusUpdate",
    TaskArtifactUpdate: "artifactUpdate",
}
_KINDS_0_3: Mapping[type, str] = {
    A2ATask: "task",
    A2AMessage: "message",
    TaskStatusUpdate: "status-update",
    TaskArtifactUpdate: "artifact-update",
}


class DialectRenderer:
    """Of one dialect. What comes out is ready for an encoder."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect: Dialect = dialect
        self._is_0_3 = dialect == "0.3"
        self._parts_field = "content" if dialect == "0.3 proto" else "parts"

    def render_response(self, update: A2AUpdate) -> dict[str, Any]:
        """As an answer to a message or as an event: 0.3 says it as it is, the others wrap it."""
        body = self.render_bare(update)
        if self._is_0_3:
            return body
        return {_WRAPPER_KEYS[type(update)]: body}

    def render_bare(self, update: A2AUpdate) -> dict[str, Any]:
        body = self._render_body(update)
        return {"kind": _KINDS_0_3[type(update)], **body} if self._is_0_3 else body

    def _render_body(self, update: A2AUpdate) -> dict[str, Any]:
        match update:
            case A2ATask():
                return self._render_task(update)
            case A2AMessage():
                return self.render_message(update)
            case TaskStatusUpdate():
                return self._render_status_update(update)
            case TaskArtifactUpdate():
                return self._render_artifact_update(update)

    def _render_task(self, task: A2ATask) -> dict[str, Any]:
        body: dict[str, Any] = {"id": task.id, "contextId": task.context_id, "status": self._render_status(task.status)}
        if task.artifacts:
            body["artifacts"] = [self._render_artifact(each) for each in task.artifacts]
        if task.history:
            body["history"] = [self._render_nested_message(each) for each in task.history]
        if task.metadata:
            body["metadata"] = task.metadata
        return body

    def _render_status_update(self, update: TaskStatusUpdate) -> dict[str, Any]:
        body: dict[str, Any] = {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "status": self._render_status(update.status),
        }
        if self.dialect != "1.0":
            body["final"] = update.is_last
        return {**body, "metadata": update.metadata} if update.metadata else body

    def _render_artifact_update(self, update: TaskArtifactUpdate) -> dict[str, Any]:
        return {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "artifact": self._render_artifact(update.artifact),
            "append": update.append,
            "lastChunk": update.last_chunk,
        }

    def _render_status(self, status: A2ATaskStatus) -> dict[str, Any]:
        body: dict[str, Any] = {
            "state": render_state(status.state, self.dialect),
            "timestamp": render_timestamp(status.at),
        }
        if status.message is not None:
            body["message"] = self._render_nested_message(status.message)
        return body

    def _render_artifact(self, artifact: A2AArtifact) -> dict[str, Any]:
        body: dict[str, Any] = {
            "artifactId": artifact.id,
            "parts": [render_part(part, self.dialect) for part in artifact.parts],
        }
        if artifact.name:
            body["name"] = artifact.name
        return {**body, "metadata": artifact.metadata} if artifact.metadata else body

    def _render_nested_message(self, message: A2AMessage) -> dict[str, Any]:
        """Inside something else."""
        body = self.render_message(message)
        return {"kind": "message", **body} if self._is_0_3 else body

    def render_message(self, message: A2AMessage) -> dict[str, Any]:
        if message.raw is not None and message.dialect == self.dialect:
            return {**message.raw, **_render_ids(message)}
        body: dict[str, Any] = {
            "messageId": message.id,
            "role": _ROLES[self.dialect][message.role],
            self._parts_field: [render_part(part, self.dialect) for part in _read_parts(message)],
            **_render_ids(message),
        }
        if metadata := message.metadata or (message.raw or {}).get("metadata"):
            body["metadata"] = metadata
        return body

    def render_push_config(self, config: A2APushConfig) -> dict[str, Any]:
        body: dict[str, Any] = {"id": config.id, "url": config.url}
        if config.token:
            body["token"] = config.token
        is_1_0 = self.dialect == "1.0"
        if config.scheme:
            authentication: dict[str, Any] = {"scheme": config.scheme} if is_1_0 else {"schemes": [config.scheme]}
            body["authentication"] = (
                {**authentication, "credentials": config.credentials} if config.credentials else authentication
            )
        if is_1_0:
            return {**body, "taskId": config.task_id}
        if self._is_0_3:
            return {"taskId": config.task_id, "pushNotificationConfig": body}
        name = f"tasks/{config.task_id}/pushNotificationConfigs/{config.id}"
        return {"name": name, "pushNotificationConfig": body}


def _render_ids(message: A2AMessage) -> dict[str, str]:
    ids = (("contextId", message.context_id), ("taskId", message.task_id))
    return {name: value for name, value in ids if value}


def _read_parts(message: A2AMessage) -> tuple[Any, ...]:
    if message.raw is None:
        return message.parts
    listed = message.raw.get("content" if message.dialect == "0.3 proto" else "parts", ())
    return parse_parts(msgspec.convert(listed, list[WirePart]), message.dialect)


def render_state(state: A2ATaskState, dialect: Dialect) -> str:
    if state == "auth_required":
        return _AUTH_REQUIRED_STATES[dialect]
    word = translate_state(state, "a2a_0_3" if dialect == "0.3" else "a2a")
    return word if dialect != "0.3 proto" or word != "TASK_STATE_CANCELED" else "TASK_STATE_CANCELLED"


def render_timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


RENDERERS: Mapping[Dialect, DialectRenderer] = {name: DialectRenderer(name) for name in ("1.0", "0.3", "0.3 proto")}
