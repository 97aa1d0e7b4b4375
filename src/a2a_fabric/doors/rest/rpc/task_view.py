"""Tasks, parts and artifacts in the form of the platform's library: states are words, media files, JSON data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from a2a_fabric.core.content import KIND_KEY
from a2a_fabric.core.events import format_timestamp
from a2a_fabric.core.job import Job, translate_state
from a2a_fabric.core.message import EXTENSION_KEY
from a2a_fabric.core.part import Part
from a2a_fabric.doors.rest.parts import get_content
from a2a_fabric.doors.rest.rpc.errors import TASK_CANCELED, TASK_FAILED
from a2a_fabric.doors.rest.tasks import render_task
from a2a_fabric.messages.content import parts_from_result

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
