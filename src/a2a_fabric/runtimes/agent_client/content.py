"""Our parts as the protocol's content blocks, as far as the agent takes them, and its blocks as our parts.

Words and links reach every agent. Images, sounds and embedded files need its word for it
in `promptCapabilities`. JSON and function calls go as words, and `_meta` says what they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from acp import schema

from a2a_fabric.core.agent import Modality
from a2a_fabric.core.content import KIND_KEY, kind_of
from a2a_fabric.core.part import Part

Block = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)

_SCHEME = "attachment:///"
_NAMELESS = "attachment"
_TOLD_AS_WORDS = ("json", "function_call", "function_result")


def text_block(words: str) -> Block:
    return schema.TextContentBlock(type="text", text=words)


def blocks_of(parts: Iterable[Part], takes: schema.PromptCapabilities) -> tuple[list[Block], list[Part]]:
    """What the agent takes, and what stays behind."""
    blocks, left = [], []
    for part in parts:
        block = _block(part, takes)
        if block is None:
            left.append(part)
        else:
            blocks.append(block)
    return blocks, left


def modalities(takes: schema.PromptCapabilities) -> tuple[Modality, ...]:
    taken: tuple[tuple[Modality, Any], ...] = (
        ("image", takes.image),
        ("audio", takes.audio),
        ("file", takes.embedded_context),
    )
    return ("text", "json", *(kind for kind, is_taken in taken if is_taken))


def _block(part: Part, takes: schema.PromptCapabilities) -> Block | None:
    if part.url is not None:
        name = part.name or part.url.rstrip("/").rpartition("/")[2] or _NAMELESS
        return schema.ResourceContentBlock(type="resource_link", uri=part.url, name=name, mime_type=part.mime_type)
    if part.blob is not None:
        return _bytes_block(part, part.blob, takes)
    if part.kind == "file" and part.text is not None and takes.embedded_context:
        text = schema.TextResourceContents(text=part.text, uri=_uri(part), mime_type=part.mime_type)
        return schema.EmbeddedResourceContentBlock(type="resource", resource=text)
    if part.text is not None:
        return text_block(f"{part.name}:\n{part.text}" if part.name else part.text)
    words = msgspec.json.encode(part.data).decode()
    return schema.TextContentBlock(type="text", text=words, field_meta={KIND_KEY: part.kind})


def _bytes_block(part: Part, blob: str, takes: schema.PromptCapabilities) -> Block | None:
    if part.kind == "image" and takes.image:
        return schema.ImageContentBlock(type="image", data=blob, mime_type=part.mime_type or "image/png")
    if part.kind == "audio" and takes.audio:
        return schema.AudioContentBlock(type="audio", data=blob, mime_type=part.mime_type or "audio/wav")
    if takes.embedded_context:
        held = schema.BlobResourceContents(blob=blob, uri=_uri(part), mime_type=part.mime_type)
        return schema.EmbeddedResourceContentBlock(type="resource", resource=held)
    return None


def _uri(part: Part) -> str:
    """Where the file came from if it says so; else a name, for it is nowhere to be fetched from."""
    return str(part.meta.get("uri") or f"{_SCHEME}{part.name or _NAMELESS}")


def part_of(block: dict[str, Any]) -> Part | None:
    """A block of the agent's answer, read from the wire's own JSON; None if it is of no known shape."""
    mime = block.get("mimeType")
    mime = mime if isinstance(mime, str) else None
    match block:
        case {"type": "text", "text": str(text)}:
            return _in_words(text, block.get("_meta"))
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return Part(kind=kind, blob=data, mime_type=mime)
        case {"type": "resource_link", "uri": str(uri)}:
            return Part(kind=kind_of(mime), url=uri, name=_text(block.get("name")), mime_type=mime)
        case {"type": "resource", "resource": {"uri": str(uri)} as resource}:
            return _embedded(uri, resource)
    return None


def _in_words(text: str, meta: Any) -> Part:
    told = meta.get(KIND_KEY) if isinstance(meta, dict) else None
    if told in _TOLD_AS_WORDS:
        with suppress(msgspec.DecodeError):
            return Part(kind=told, data=msgspec.json.decode(text))
    return Part(kind="text", text=text)


def _embedded(uri: str, resource: dict[str, Any]) -> Part:
    """Its URI is a name, not a place to fetch it from, so it stands in `meta`."""
    mime = _text(resource.get("mimeType"))
    return Part(
        kind=kind_of(mime),
        text=_text(resource.get("text")),
        blob=_text(resource.get("blob")),
        mime_type=mime,
        name=uri.rstrip("/").rpartition("/")[2] or None,
        meta={"uri": uri},
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
