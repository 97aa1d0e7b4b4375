"""Converts parts to content blocks of the Agent Client Protocol, and back.

Every agent takes text and links. Images, audio and embedded files need the matching flag in the agent's
`promptCapabilities`. JSON and function calls are sent as text, and `_meta` says which kind they are."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from acp import schema

from a2a_fabric.core.agent import Modality
from a2a_fabric.core.call import KIND_KEY, part_kind_from_mime_type
from a2a_fabric.core.json_text import decode_json_text
from a2a_fabric.core.result import Part

ContentBlock = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)

_URI_PREFIX = "attachment:///"
_DEFAULT_NAME = "attachment"
_KINDS_SENT_AS_TEXT = ("json", "function_call", "function_result")


def text_block(text: str) -> ContentBlock:
    return schema.TextContentBlock(type="text", text=text)


def blocks_from_parts(
    parts: Iterable[Part], capabilities: schema.PromptCapabilities
) -> tuple[list[ContentBlock], list[Part]]:
    """The blocks that the agent accepts, and notes on the parts that it does not."""
    blocks, unsupported = [], []
    for part in parts:
        block = _block_from_part(part, capabilities)
        if block is None:
            unsupported.append(part)
        else:
            blocks.append(block)
    return blocks, unsupported


def modalities_from_capabilities(capabilities: schema.PromptCapabilities) -> tuple[Modality, ...]:
    options: tuple[tuple[Modality, Any], ...] = (
        ("image", capabilities.image),
        ("audio", capabilities.audio),
        ("file", capabilities.embedded_context),
    )
    return ("text", "json", *(kind for kind, is_supported in options if is_supported))


def _block_from_part(part: Part, capabilities: schema.PromptCapabilities) -> ContentBlock | None:
    if part.url is not None:
        name = part.name or part.url.rstrip("/").rpartition("/")[2] or _DEFAULT_NAME
        return schema.ResourceContentBlock(type="resource_link", uri=part.url, name=name, mime_type=part.mime_type)
    if part.blob is not None:
        return _block_from_bytes(part, part.blob, capabilities)
    if part.kind == "file" and part.text is not None and capabilities.embedded_context:
        contents = schema.TextResourceContents(text=part.text, uri=_part_uri(part), mime_type=part.mime_type)
        return schema.EmbeddedResourceContentBlock(type="resource", resource=contents)
    if part.text is not None:
        return text_block(f"{part.name}:\n{part.text}" if part.name else part.text)
    encoded = msgspec.json.encode(part.data).decode()
    return schema.TextContentBlock(type="text", text=encoded, field_meta={KIND_KEY: part.kind})


def _block_from_bytes(part: Part, blob: str, capabilities: schema.PromptCapabilities) -> ContentBlock | None:
    if part.kind == "image" and capabilities.image:
        return schema.ImageContentBlock(type="image", data=blob, mime_type=part.mime_type or "image/png")
    if part.kind == "audio" and capabilities.audio:
        return schema.AudioContentBlock(type="audio", data=blob, mime_type=part.mime_type or "audio/wav")
    if capabilities.embedded_context:
        contents = schema.BlobResourceContents(blob=blob, uri=_part_uri(part), mime_type=part.mime_type)
        return schema.EmbeddedResourceContentBlock(type="resource", resource=contents)
    return None


def _part_uri(part: Part) -> str:
    """The URI that the file came from, if it has one; else a name, since the file cannot be fetched."""
    return str(part.meta.get("uri") or f"{_URI_PREFIX}{part.name or _DEFAULT_NAME}")


def part_from_block(block: dict[str, Any]) -> Part | None:
    """A block of the agent's answer, read from the JSON on the wire; None if its kind is unknown."""
    media_type = block.get("mimeType")
    media_type = media_type if isinstance(media_type, str) else None
    match block:
        case {"type": "text", "text": str(text)}:
            return _part_from_text(text, block.get("_meta"))
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return Part(kind=kind, blob=data, mime_type=media_type)
        case {"type": "resource_link", "uri": str(uri)}:
            return Part(
                kind=part_kind_from_mime_type(media_type),
                url=uri,
                name=_text_or_none(block.get("name")),
                mime_type=media_type,
            )
        case {"type": "resource", "resource": {"uri": str(uri)} as resource}:
            return _part_from_resource(uri, resource)
    return None


def _part_from_text(text: str, meta: Any) -> Part:
    kind = meta.get(KIND_KEY) if isinstance(meta, dict) else None
    if kind in _KINDS_SENT_AS_TEXT:
        with suppress(msgspec.DecodeError):
            return Part(kind=kind, data=decode_json_text(text))
    return Part(kind="text", text=text)


def _part_from_resource(uri: str, resource: dict[str, Any]) -> Part:
    """The URI of a resource is a name and cannot be fetched, so it is kept in `meta`."""
    media_type = _text_or_none(resource.get("mimeType"))
    return Part(
        kind=part_kind_from_mime_type(media_type),
        text=_text_or_none(resource.get("text")),
        blob=_text_or_none(resource.get("blob")),
        mime_type=media_type,
        name=uri.rstrip("/").rpartition("/")[2] or None,
        meta={"uri": uri},
    )


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
