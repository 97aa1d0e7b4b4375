"""Attachments as parts and back, and what to say when an agent's protocol cannot carry one.

The envelope of document 001 knows files, links and data; every other protocol knows
kinds of media. A runtime asks for the parts of a call, sends what its protocol can
carry, and notes the rest; a door turns the parts it was sent into attachments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.call import Attachment, Input
from a2a_fabric.core.part import Part, PartKind
from a2a_fabric.core.result import Result

_MEDIA: dict[str, PartKind] = {"image": "image", "audio": "audio", "video": "video"}


def kind_of(mime_type: str | None) -> PartKind:
    """Of bytes or a link of this media type."""
    return _MEDIA.get((mime_type or "").partition("/")[0].lower(), "file")


def parts_of(given: Input) -> tuple[Part, ...]:
    """All that came with the words."""
    return tuple(_part(attachment) for attachment in given.attachments)


def _part(attachment: Attachment) -> Part:
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


def not_carried(parts: Iterable[Part], protocol: str) -> tuple[str, ...]:
    """A note for each part that stays behind."""
    return tuple(f"{_called(part)} was not sent: {protocol} cannot carry {part.kind} content" for part in parts)


def _called(part: Part) -> str:
    return f"'{part.name}'" if part.name else f"an attachment of kind {part.kind}"


def noted(result: Result, notes: Sequence[str]) -> Result:
    """The result, with what was lost on the way."""
    return msgspec.structs.replace(result, notes=(*result.notes, *notes)) if notes else result
