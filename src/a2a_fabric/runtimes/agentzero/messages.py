"""Messages to and from Agent Zero: the models of A2A 0.2.5, and calls and answers as plain text.

Unknown fields are skipped. A task has a state, the messages so far and, from some agents, artifacts."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import add_notes, part_kind_from_mime_type
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.prompt import build_format_instruction, build_prompt, find_json_object

RUNNING_STATES = frozenset({"submitted", "working"})


class FastA2AFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    bytes: str | None = None
    uri: str | None = None
    mime_type: str | None = None
    name: str | None = None


class FastA2APart(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    text: str | None = None
    file: FastA2AFile | None = None
    data: Any = None


class FastA2AMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    role: str = ""
    parts: list[FastA2APart] = []
    context_id: str | None = None


class FastA2AArtifact(msgspec.Struct, frozen=True, kw_only=True):
    parts: list[FastA2APart] = []


class FastA2ATaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    message: FastA2AMessage | None = None


class FastA2ATask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    status: FastA2ATaskStatus
    context_id: str | None = None
    history: list[FastA2AMessage] | None = None
    artifacts: list[FastA2AArtifact] | None = None

    @property
    def is_stopped(self) -> bool:
        """Done, or waiting for somebody; also in a state that nobody knows."""
        return self.status.state not in RUNNING_STATES

    @property
    def last_agent_message(self) -> FastA2AMessage | None:
        """Where these agents put their answer: the last message of theirs."""
        return next((each for each in reversed(self.history or ()) if each.role == "agent"), self.status.message)


class FastA2ARPCError(msgspec.Struct, frozen=True, kw_only=True):
    code: int = 0
    message: str = ""


class FastA2ARPCReply(msgspec.Struct, frozen=True, kw_only=True):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: FastA2ARPCError | None = None


class FastA2ASkill(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    tags: list[str] | None = None


class FastA2ACard(msgspec.Struct, frozen=True, kw_only=True):
    """Its `url` is not read: it is what the library's author had in mind."""

    name: str = ""
    description: str = ""
    version: str = ""
    skills: list[FastA2ASkill] | None = None


def parts_from_task(task: FastA2ATask) -> list[Part]:
    """The answer, and whatever the artifacts hold beyond it."""
    answer_parts = parts_from_message(task.last_agent_message) if task.last_agent_message is not None else []
    artifact_parts = [_part_from_wire(part) for artifact in task.artifacts or () for part in artifact.parts]
    return [*answer_parts, *(part for part in artifact_parts if part not in answer_parts)]


def parts_from_message(message: FastA2AMessage) -> list[Part]:
    return [_part_from_wire(part) for part in message.parts]


def join_text(parts: list[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "text" and part.text)


def _part_from_wire(part: FastA2APart) -> Part:
    if part.file is not None:
        file = part.file
        return Part(
            kind=part_kind_from_mime_type(file.mime_type),
            url=file.uri,
            blob=None if file.uri is not None else file.bytes or "",
            mime_type=file.mime_type,
            name=file.name,
        )
    if part.kind == "data" or part.text is None:
        return Part(kind="json", data=part.data)
    return Part(kind="text", text=part.text)


def prompt_from_call(manifest: Manifest, call: Call) -> str:
    """All but what is attached."""
    format_text = build_format_instruction(manifest.find_capability(call.target.capability))
    return "\n\n".join(filter(None, (build_prompt(manifest, call), format_text)))


def text_from_part(part: Part) -> str | None:
    """None for bytes, which words cannot carry."""
    if part.blob is not None:
        return None
    if part.text is None and part.url is None:
        return json_block(part.data if part.kind == "json" else {part.kind: part.data})
    content, separator = (part.text, "\n") if part.text is not None else (part.url or "", " ")
    return f"{part.name}:{separator}{content}" if part.name else content


def json_block(value: Any) -> str:
    return f"```json\n{msgspec.json.encode(value).decode()}\n```"


def extract_object(result: Result, manifest: Manifest, call: Call) -> Result:
    """If an object was wanted and the answer is words, the object in them."""
    answer = result.data.get("answer")
    if not isinstance(answer, str) or len(result.data) > 1:
        return result
    value, notes = find_json_object(answer, manifest.find_capability(call.target.capability))
    return add_notes(result if value is None else Result(data=value, parts=result.parts), notes)
