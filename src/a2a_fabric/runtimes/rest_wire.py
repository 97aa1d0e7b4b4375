"""The words of document 004, as a platform of its kind is asked and answers: parts, tasks and messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.arguments import ATTACHMENTS, arguments_for
from a2a_fabric.core.call import Input
from a2a_fabric.core.content import parts_of
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamRefused, reported_by_agent
from a2a_fabric.core.message import EXTENSION, extension
from a2a_fabric.core.part import PART_KINDS, Part
from a2a_fabric.core.question import Question
from a2a_fabric.core.result import Result, as_object, asking
from a2a_fabric.runtimes.answer import answer_in

UNDER_WAY = frozenset({"pending", "running", "submitted", "working", "queued", "in_progress"})
_MEDIA = frozenset({"image", "audio", "video", "file"})
_LINKS = ("http://", "https://")
_WORDS = 500
_CODES = {"INVALID_REQUEST": "BAD_INPUT"}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """As much of it as matters here; what else there is, is left alone."""

    id: str | int
    status: str | dict[str, Any]
    output: Any = None
    result: Any = None
    error: Any = None
    parts: Any = None
    metadata: Any = None

    @property
    def word(self) -> str:
        """Some say it with an object."""
        said = self.status.get("state", "") if isinstance(self.status, dict) else self.status
        return str(said).lower()

    @property
    def asked(self) -> dict[str, Any] | None:
        found = self.metadata.get("input_required") if isinstance(self.metadata, dict) else None
        return found if isinstance(found, dict) and self.is_under_way else None

    @property
    def is_under_way(self) -> bool:
        return self.word in UNDER_WAY

    @property
    def is_still(self) -> bool:
        """Whether there is nothing to wait for: it is over, or asks something."""
        return not self.is_under_way or self.asked is not None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    name: str = ""
    description: str = ""
    version: str = ""
    capabilities: tuple[Any, ...] = ()
    metadata: dict[str, Any] = {}


def input_for(capability: Capability | None, given: Input) -> dict[str, Any]:
    """Arguments, with the words among them; what is attached goes as parts."""
    has_schema = capability is not None and capability.input_schema is not None
    if has_schema or given.arguments is not msgspec.UNSET:
        return {key: value for key, value in arguments_for(capability, given).items() if key != ATTACHMENTS}
    return {**({"task": given.task} if given.task else {}), **given.context}


def message_parts(capability: Capability | None, given: Input) -> list[dict[str, Any]]:
    """The same as a message: words, then what belongs to them, then what is attached."""
    rest = input_for(capability, given)
    words = rest.pop("task", None) if isinstance(rest.get("task"), str) else None
    told = [{"type": "text", "content": words}] if words else []
    if rest:
        told.append({"type": "json", "content": rest})
    return [*told, *sent(parts_of(given))] or [{"type": "text", "content": ""}]


def sent(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [_sent(part) for part in parts]


def _sent(part: Part) -> dict[str, Any]:
    meta = dict(part.meta)
    kind = str(meta.pop(EXTENSION, part.kind))
    if part.mime_type is not None:
        meta.setdefault("mimeType", part.mime_type)
    if part.name is not None:
        meta.setdefault("name", part.name)
    held = (part.url, part.blob, part.text)
    content = next((each for each in held if each is not None), part.data)
    return {"type": kind, "content": content, **({"metadata": meta} if meta else {})}


def received(given: Any) -> tuple[Part, ...]:
    """Raises UpstreamFailed for what is no list of parts."""
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, dict) and "type" in each for each in given):
        raise UpstreamFailed("The agent's answer has parts that are none")
    return tuple(map(_received, given))


def _received(given: dict[str, Any]) -> Part:
    kind, content = str(given["type"]), given.get("content")
    meta = given.get("metadata")
    meta = dict(meta) if isinstance(meta, dict) else {}
    if kind == "data":
        kind = "json"
    if kind not in PART_KINDS:
        return extension(kind, content, meta)
    mime = given.get("mimeType") or meta.pop("mimeType", None) or meta.pop("mime_type", None)
    name = given.get("name") or meta.pop("name", None)
    about: dict[str, Any] = {"mime_type": _text(mime), "name": _text(name), "meta": meta}
    if kind in ("text", *_MEDIA) and isinstance(content, str):
        place = "text" if kind == "text" else "url" if content.startswith(_LINKS) else "blob"
        return Part(kind=kind, **{place: content}, **about)  # type: ignore[arg-type]  # one of ours
    return Part(kind="json" if kind in ("text", *_MEDIA) else kind, data=content, **about)  # type: ignore[arg-type]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def outcome_of(task: Task) -> Result:
    """Raises FabricError for what is no good outcome."""
    if task.asked is not None:
        return _asked(task)
    if task.word != "completed":
        raise ended_as(task)
    given = task.output if task.output is not None else task.result
    parts = received(task.parts)
    notes = task.metadata.get("notes", ()) if isinstance(task.metadata, dict) else ()
    told = tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ()
    if given is None and parts:
        answer = answer_in(parts)
        return msgspec.structs.replace(answer, notes=told)
    return Result(data=as_object(given), parts=parts, notes=told)


def answer_of(message: dict[str, Any]) -> Result:
    """A message from the agent."""
    return answer_in(received(message.get("parts")))


def _asked(task: Task) -> Result:
    asked = task.asked or {}
    try:
        questions = msgspec.convert(asked.get("questions"), dict[str, Question])
    except msgspec.ValidationError as exc:
        raise UpstreamFailed("The agent asks something, and does not say what") from exc
    return asking(questions, str(task.id))


def ended_as(task: Task) -> FabricError:
    return failure(task.error, task.word[:32], "task")


def failure(error: Any, word: str, what: str) -> FabricError:
    """Of a task or of a message's delivery that ended with this word."""
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        details = error.get("details")
        code = _CODES.get(error["code"]) or str(error["code"])
        return reported_by_agent(code, _said(error), details if isinstance(details, dict) else None)
    words = _said(error) if error else f"The agent's {what} ended as '{word}'"
    return UpstreamRefused(words, status=word)


def _said(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:_WORDS]


def replies_in(messages: Sequence[Any], sent_id: str, agent: str) -> list[dict[str, Any]]:
    """What the agent said to that message: it says so, or it comes after it."""
    found = [each for each in messages if isinstance(each, dict)]
    ids = [each.get("id") for each in found]
    after = found[ids.index(sent_id) + 1 :] if sent_id in ids else found
    named = [each for each in after if _in_reply_to(each) == sent_id]
    return named or [each for each in after if _in_reply_to(each) is None and _sender(each) == agent]


def _in_reply_to(message: dict[str, Any]) -> Any:
    metadata = message.get("metadata")
    return metadata.get("in_reply_to") if isinstance(metadata, dict) else None


def _sender(message: dict[str, Any]) -> Any:
    sender = message.get("sender")
    return sender.get("id") if isinstance(sender, dict) else None
