"""Attachments as parts and back, and what to say when an agent's protocol cannot carry one.

The envelope of document 001 knows files, links and data; every other protocol knows
kinds of media. A runtime asks for the parts of a call, sends what its protocol can
carry, and notes the rest; a door turns the parts it was sent into attachments, and
the parts of a result into its own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.arguments import ATTACHMENTS
from a2a_fabric.core.call import Attachment, Input
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part, PartKind
from a2a_fabric.core.result import Result

KIND_KEY = "a2a-fabric/kind"  # where a protocol has no word for a kind of content: what it was

_MEDIA: dict[str, PartKind] = {"image": "image", "audio": "audio", "video": "video"}
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def kind_of(mime_type: str | None) -> PartKind:
    """Of bytes or a link of this media type."""
    return _MEDIA.get((mime_type or "").partition("/")[0].lower(), "file")


def parts_of(given: Input) -> tuple[Part, ...]:
    """All that came with the words."""
    return tuple(part_of(attachment) for attachment in given.attachments)


def part_of(attachment: Attachment) -> Part:
    content, media = attachment.content, attachment.mime_type
    kind = attachment.kind if attachment.kind is not msgspec.UNSET else None
    meta = attachment.meta if attachment.meta is not msgspec.UNSET else {}
    common: dict[str, Any] = {"mime_type": media, "name": attachment.name, "meta": meta}
    if attachment.type == "data":
        if isinstance(content, str) and kind in (None, "text", "file"):
            return Part(kind=kind or "text", text=content, **common)
        return Part(kind=kind or "json", data=content, **common)
    if attachment.type == "url":
        return Part(kind=kind or kind_of(media), url=str(content), **common)
    return Part(kind=kind or kind_of(media), blob=str(content or ""), **common)


def attachment_of(part: Part) -> Attachment:
    """The same content in the envelope; `kind` is said where the media type would not tell it."""
    kind, content = _type_and_content(part)
    implied: PartKind = kind_of(part.mime_type) if kind != "data" else "text" if isinstance(content, str) else "json"
    return Attachment(
        type=kind,
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


def check_attachments(given: Input) -> None:
    """Raises BadInput naming the first that is not what it says."""
    for number, attachment in enumerate(given.attachments):
        where, content = f"{ATTACHMENTS}[{number}].content", attachment.content
        if attachment.type == "file" and not (isinstance(content, str) and is_base64(content)):
            raise BadInput(f"{where} is not base64, as the content of a file must be", field=where)
        if attachment.type == "url" and not (isinstance(content, str) and content):
            raise BadInput(f"{where} is not a URL", field=where)


def is_base64(text: str) -> bool:
    """With padding and nothing else in between. Nothing is decoded, so that it costs little."""
    if len(text) % 4 or not text.isascii():
        return False
    raw = text.encode()
    rest = raw.translate(None, _BASE64)
    return rest in (b"", b"=", b"==") and raw.endswith(rest)


def result_of_parts(parts: Sequence[Part]) -> Result:
    """An answer that is nothing but content: its words are the answer, and words alone need no parts."""
    words = "\n".join(part.text for part in parts if part.kind == "text" and part.text)
    is_plain = len(parts) == 1 and parts[0].kind == "text" and not parts[0].meta
    return Result(data={"answer": words} if words else {}, parts=() if is_plain else tuple(parts))


def left_behind(given: Input, arguments: Mapping[str, Any], capability: str) -> tuple[str, ...]:
    """Notes on attachments that are not among the arguments, for agents that get nothing else."""
    if not given.attachments or ATTACHMENTS in arguments:
        return ()
    return not_taken(parts_of(given), capability)


def not_taken(parts: Iterable[Part], capability: str) -> tuple[str, ...]:
    """A note for each part that the agent has no place for."""
    return tuple(f"{_called(part)} was not sent: '{capability}' takes no attachments" for part in parts)


def not_carried(parts: Iterable[Part], protocol: str) -> tuple[str, ...]:
    """A note for each part that stays behind."""
    return tuple(f"{_called(part)} was not sent: {protocol} cannot carry {part.kind} content" for part in parts)


def _called(part: Part) -> str:
    return f"'{part.name}'" if part.name else f"an attachment of kind {part.kind}"


def noted(result: Result, notes: Sequence[str]) -> Result:
    """The result, with what was lost on the way."""
    return msgspec.structs.replace(result, notes=(*result.notes, *notes)) if notes else result
