"""Renders tasks, messages and updates as JSON in each dialect: 1.0, 0.3, and the JSON form of the 0.3 protos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from a2a_fabric.core.result import format_timestamp
from a2a_fabric.protocols.a2a.models import (
    A2AArtifact,
    A2AMessage,
    A2APushConfig,
    A2ATask,
    A2ATaskStatus,
    A2AUpdate,
    Dialect,
    SendOptions,
    TaskArtifactUpdate,
    TaskStatusUpdate,
    WirePart,
    parse_parts,
    render_part,
    render_state,
)

_ROLES: Mapping[Dialect, dict[str, str]] = {
    "1.0": {"user": "ROLE_USER", "agent": "ROLE_AGENT"},
    "0.3": {"user": "user", "agent": "agent"},
    "0.3 proto": {"user": "ROLE_USER", "agent": "ROLE_AGENT"},
}
_WRAPPER_KEYS: Mapping[type, str] = {
    A2ATask: "task",
    A2AMessage: "message",
    TaskStatusUpdate: "statusUpdate",
    TaskArtifactUpdate: "artifactUpdate",
}
_PUSH_FIELDS: Mapping[Dialect, str] = {
    "1.0": "taskPushNotificationConfig",
    "0.3": "pushNotificationConfig",
    "0.3 proto": "pushNotification",
}
_KINDS_0_3: Mapping[type, str] = {
    A2ATask: "task",
    A2AMessage: "message",
    TaskStatusUpdate: "status-update",
    TaskArtifactUpdate: "artifact-update",
}


class DialectRenderer:
    """Writes one dialect, as objects that are ready to be encoded as JSON."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect: Dialect = dialect
        self._is_0_3 = dialect == "0.3"
        self._parts_field = "content" if dialect == "0.3 proto" else "parts"

    def render_response(self, update: A2AUpdate) -> dict[str, Any]:
        """The reply to a message, or an event of a stream: bare in 0.3, wrapped in the other dialects."""
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
            "timestamp": format_timestamp(status.at),
        }
        if status.message is not None:
            body["message"] = self._render_nested_message(status.message)
        return body

    def _render_artifact(self, artifact: A2AArtifact) -> dict[str, Any]:
        body: dict[str, Any] = {
            "artifactId": artifact.id,
            "parts": [render_part(part, self.dialect) for part in artifact.parts],
        }
        optional = {"name": artifact.name, "description": artifact.description, "metadata": artifact.metadata}
        optional["extensions"] = list(artifact.extensions)
        return {**body, **{name: value for name, value in optional.items() if value}}

    def _render_nested_message(self, message: A2AMessage) -> dict[str, Any]:
        """A message inside another object, where 0.3 also names its kind."""
        body = self.render_message(message)
        return {"kind": "message", **body} if self._is_0_3 else body

    def render_message(self, message: A2AMessage) -> dict[str, Any]:
        if message.raw is not None and message.dialect == self.dialect:
            metadata = {"metadata": message.metadata} if message.metadata else {}
            return {**message.raw, **metadata, **_render_ids(message)}
        body: dict[str, Any] = {
            "messageId": message.id,
            "role": _ROLES[self.dialect][message.role],
            self._parts_field: [render_part(part, self.dialect) for part in _read_parts(message)],
            **_render_ids(message),
        }
        raw = message.raw or {}
        optional = {
            "metadata": message.metadata or raw.get("metadata"),
            "extensions": list(message.extensions) or raw.get("extensions"),
            "referenceTaskIds": list(message.reference_task_ids) or raw.get("referenceTaskIds"),
        }
        if self.dialect == "0.3 proto":
            del optional["referenceTaskIds"]  # these protos have no such field
        return {**body, **{name: value for name, value in optional.items() if value}}

    def render_send_params(self, message: A2AMessage, options: SendOptions, tenant: str = "") -> dict[str, Any]:
        """The parameters with which a client sends a message."""
        params: dict[str, Any] = {
            "request" if self.dialect == "0.3 proto" else "message": self._render_nested_message(message)
        }
        if self.dialect == "1.0":
            configuration: dict[str, Any] = {"historyLength": 0, "returnImmediately": not options.blocking}
            if tenant:
                params["tenant"] = tenant
        else:
            configuration = {"blocking": options.blocking}
        if options.output_modes:
            configuration["acceptedOutputModes"] = options.output_modes
        if options.push is not None:
            configuration[_PUSH_FIELDS[self.dialect]] = self._render_push_fields(options.push)
        if options.metadata:
            params["metadata"] = options.metadata
        return {**params, "configuration": configuration}

    def render_push_config(self, config: A2APushConfig) -> dict[str, Any]:
        """A configuration as a reply has it."""
        fields = self._render_push_fields(config)
        if self.dialect == "1.0":
            return {**fields, "taskId": config.task_id}
        if self._is_0_3:
            return {"taskId": config.task_id, "pushNotificationConfig": fields}
        return {
            "name": f"tasks/{config.task_id}/pushNotificationConfigs/{config.id}",
            "pushNotificationConfig": fields,
        }

    def render_push_request(self, config: A2APushConfig) -> dict[str, Any]:
        """The parameters with which a client sets a configuration."""
        rendered = self.render_push_config(config)
        if self.dialect != "0.3 proto":
            return rendered
        return {"parent": f"tasks/{config.task_id}", "configId": config.id, "config": rendered}

    def _render_push_fields(self, config: A2APushConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": config.id, "url": config.url}
        if config.token:
            fields["token"] = config.token
        if config.scheme:
            is_1_0 = self.dialect == "1.0"
            authentication: dict[str, Any] = {"scheme": config.scheme} if is_1_0 else {"schemes": [config.scheme]}
            if config.credentials:
                authentication["credentials"] = config.credentials
            fields["authentication"] = authentication
        return fields


def _render_ids(message: A2AMessage) -> dict[str, str]:
    ids = (("contextId", message.context_id), ("taskId", message.task_id))
    return {name: value for name, value in ids if value}


def _read_parts(message: A2AMessage) -> tuple[Any, ...]:
    if message.raw is None:
        return message.parts
    wire_parts = message.raw.get("content" if message.dialect == "0.3 proto" else "parts", ())
    return parse_parts(msgspec.convert(wire_parts, list[WirePart]), message.dialect)


RENDERERS: Mapping[Dialect, DialectRenderer] = {name: DialectRenderer(name) for name in ("1.0", "0.3", "0.3 proto")}
