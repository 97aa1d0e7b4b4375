"""Tasks, parts and agents as that platform's library has them: `status` is a word, media are files, JSON is data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from a2a_fabric.core.content import KIND_KEY
from a2a_fabric.core.job import Job
from a2a_fabric.core.message import EXTENSION
from a2a_fabric.core.part import Part
from a2a_fabric.core.states import JobState, word_for
from a2a_fabric.doors.rest.moments import iso
from a2a_fabric.doors.rest.parts import content_of
from a2a_fabric.doors.rest.rpc.faults import TASK_CANCELED, TASK_FAILED
from a2a_fabric.doors.rest.tasks import view_of
from a2a_fabric.messages.content import parts_of_result

_PLAIN = frozenset({"text", "file", "json"})


def task_of(job: Job) -> dict[str, Any]:
    shared = view_of(job)
    output = () if job.result is None else parts_of_result(job.result)
    task: dict[str, Any] = {
        "id": shared.id,
        "name": job.capability,
        "description": job.call.input.task[:200],
        "status": word_for(job.state, "rpc"),
        "agentId": job.agent_id,
        "parts": parts_of(output),
        "expectedParts": [],
        "artifacts": artifacts_of(job, output),
        "input": shared.input,
        "createdAt": shared.created_at,
        "updatedAt": shared.updated_at,
        "metadata": shared.metadata,
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


def artifacts_of(job: Job, output: Iterable[Part]) -> list[dict[str, Any]]:
    """What came out of it that is not words, each under the task's id and a number."""
    moment, task_id = iso(job.ended_at or job.updated_at), view_of(job).id
    return [
        {
            "id": f"{task_id}/{number}",
            "type": "data" if part.kind == "json" else "file",
            "content": part_of(part),
            "createdAt": moment,
            "updatedAt": moment,
        }
        for number, part in enumerate(output)
        if part.kind != "text"
    ]


def parts_of(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [part_of(part) for part in parts]


def part_of(part: Part) -> dict[str, Any]:
    own = part.meta.get(EXTENSION)
    kind = str(own) if own is not None else part.kind
    said = {} if kind in _PLAIN else {"metadata": {KIND_KEY: kind}}
    if part.kind == "text":
        return {"type": "text", "content": part.text or "", "format": "plain"}
    if part.blob is not None or part.url is not None or part.text is not None:
        media = part.mime_type or "application/octet-stream"
        return {"type": "file", "content": content_of(part), "mimeType": media, "name": part.name or kind, **said}
    data = part.data if isinstance(part.data, dict) else {"value": part.data}
    return {"type": "data", "content": data, **said}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text, "format": "plain"}


def update(task: dict[str, Any]) -> dict[str, Any]:
    return {"type": "taskUpdate", "task": task}


def state_word(state: JobState) -> str:
    return word_for(state, "rpc")
