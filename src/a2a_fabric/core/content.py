"""The content of a call: its input as arguments, its attachments as parts, and notes on what could not be sent.

Arguments are bound the same way for every door. A capability with an input schema gets
`context` as its arguments. `task` fills the property called `task`, or else the only required
string property that is still missing; attachments fill a list called `attachments`, if the
schema has one. A capability without a schema gets task, context and attachments as they are.

Attachments are files, links and data in the envelope; most other protocols have media parts
instead. A runtime takes the parts of a call, sends what its protocol can carry and adds a note
for the rest. A door turns the parts of a request into attachments, and the parts of a result
into its own format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Attachment, Input
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part, PartKind
from a2a_fabric.core.result import Result

ATTACHMENTS = "attachments"


def bind_arguments(capability: Capability | None, call_input: Input) -> dict[str, Any]:
    """Arguments that routing has already bound are kept, since routing uses the current catalog."""
    if call_input.arguments is not msgspec.UNSET:
        return call_input.arguments
    schema = capability.input_schema if capability else None
    if schema is None:
        return _arguments_without_schema(call_input)
    arguments = dict(call_input.context)
    if call_input.task and (task_property := _find_task_property(schema, arguments)) is not None:
        arguments[task_property] = call_input.task
    if call_input.attachments and ATTACHMENTS not in arguments and accepts_attachments(schema):
        arguments[ATTACHMENTS] = msgspec.to_builtins(list(call_input.attachments))
    return arguments


def accepts_attachments(schema: dict[str, Any] | None) -> bool:
    """Whether a capability with this schema has a place for what comes with the words: a list of objects."""
    if schema is None:
        return True
    properties = schema.get("properties")
    attachment_schema = properties.get(ATTACHMENTS) if isinstance(properties, dict) else None
    if not isinstance(attachment_schema, dict):
        return attachment_schema is True
    items = attachment_schema.get("items", True)
    item_type = items.get("type", "object") if isinstance(items, dict) else "object" if items else "nothing"
    return _allows_type(attachment_schema.get("type", "array"), "array") and _allows_type(item_type, "object")


def _allows_type(types: Any, type_name: str) -> bool:
    return type_name in types if isinstance(types, list) else bool(types == type_name)


def _arguments_without_schema(call_input: Input) -> dict[str, Any]:
    arguments: dict[str, Any] = {"task": call_input.task, "context": call_input.context}
    if call_input.attachments:
        arguments[ATTACHMENTS] = msgspec.to_builtins(list(call_input.attachments))
    return arguments


def _find_task_property(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None
    if "task" in properties:
        return None if "task" in arguments else "task"
    missing = [
        name for name in schema.get("required", ()) if name not in arguments and _is_string_schema(properties.get(name))
    ]
    return missing[0] if len(missing) == 1 else None


def _is_string_schema(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"  # `true` is a schema too


KIND_KEY = "a2a-fabric/kind"  # the original kind of content that a protocol has no name for

_KIND_BY_MEDIA_TYPE: dict[str, PartKind] = {"image": "image", "audio": "audio", "video": "video"}
_BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def part_kind_from_mime_type(mime_type: str | None) -> PartKind:
    """Of bytes or a link of this media type."""
    return _KIND_BY_MEDIA_TYPE.get((mime_type or "").partition("/")[0].lower(), "file")


def parts_from_input(call_input: Input) -> tuple[Part, ...]:
    """All that came with the words."""
    return tuple(part_from_attachment(attachment) for attachment in call_input.attachments)


def part_from_attachment(attachment: Attachment) -> Part:
    content, media = attachment.content, attachment.mime_type
    kind = attachment.kind if attachment.kind is not msgspec.UNSET else None
    meta = attachment.meta if attachment.meta is not msgspec.UNSET else {}
    common: dict[str, Any] = {"mime_type": media, "name": attachment.name, "meta": meta}
    if attachment.type == "data":
        if isinstance(content, str) and kind in (None, "text", "file"):
            return Part(kind=kind or "text", text=content, **common)
        return Part(kind=kind or "json", data=content, **common)
    if attachment.type == "url":
        return Part(kind=kind or part_kind_from_mime_type(media), url=str(content), **common)
    return Part(kind=kind or part_kind_from_mime_type(media), blob=str(content or ""), **common)


def attachment_from_part(part: Part) -> Attachment:
    """The same content in the envelope; `kind` is said where the media type would not tell it."""
    attachment_type, content = _type_and_content(part)
    implied: PartKind = (
        part_kind_from_mime_type(part.mime_type)
        if attachment_type != "data"
        else "text"
        if isinstance(content, str)
        else "json"
    )
    return Attachment(
        type=attachment_type,
        content=content,
        mime_type=part.mime_type,
        name=part.name,
        kind=msgspec.UNSET if part.kind == implied else part.kind,
        meta=part.meta or msgspec.UNSET,
    )


def _type_and_content(part: Part) -> tuple[Any, Any]:
    if part.url is not None:
        return "url", part.url
    if part.blob is not None:
        return "file", part.blob
    return "data", part.text if part.text is not None else part.data


def check_attachments(call_input: Input) -> None:
    """Raises BadInput naming the first that is not what it says."""
    for number, attachment in enumerate(call_input.attachments):
        path, content = f"{ATTACHMENTS}[{number}].content", attachment.content
        if attachment.type == "file" and not (isinstance(content, str) and is_base64(content)):
            raise BadInput(f"{path} is not base64, as the content of a file must be", field=path)
        if attachment.type == "url" and not (isinstance(content, str) and content):
            raise BadInput(f"{path} is not a URL", field=path)


def is_base64(text: str) -> bool:
    """With padding and nothing else in between. Nothing is decoded, so that it costs little."""
    if len(text) % 4 or not text.isascii():
        return False
    raw = text.encode()
    rest = raw.translate(None, _BASE64_ALPHABET)
    return rest in (b"", b"=", b"==") and raw.endswith(rest)


def join_text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "text" and part.text)


def result_from_parts(parts: Sequence[Part]) -> Result:
    """An answer that is nothing but content: its words are the answer, and words alone need no parts."""
    text = join_text(parts)
    is_plain = len(parts) == 1 and parts[0].kind == "text" and not parts[0].meta
    return Result(data={"answer": text} if text else {}, parts=() if is_plain else tuple(parts))


def describe_unbound_attachments(call_input: Input, arguments: Mapping[str, Any], capability: str) -> tuple[str, ...]:
    """Notes on attachments that are not among the arguments, for agents that get nothing else."""
    if not call_input.attachments or ATTACHMENTS in arguments:
        return ()
    return describe_rejected_parts(parts_from_input(call_input), capability)


def describe_rejected_parts(parts: Iterable[Part], capability: str) -> tuple[str, ...]:
    """A note for each part that the agent has no place for."""
    return tuple(f"{_describe_part(part)} was not sent: '{capability}' takes no attachments" for part in parts)


def describe_unsupported_parts(parts: Iterable[Part], protocol: str) -> tuple[str, ...]:
    """A note for each part that stays behind."""
    return tuple(f"{_describe_part(part)} was not sent: {protocol} cannot carry {part.kind} content" for part in parts)


def _describe_part(part: Part) -> str:
    return f"'{part.name}'" if part.name else f"an attachment of kind {part.kind}"


def add_notes(result: Result, notes: Sequence[str]) -> Result:
    """The result, with what was lost on the way."""
    return msgspec.structs.replace(result, notes=(*result.notes, *notes)) if notes else result
