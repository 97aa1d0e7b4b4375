"""A part: content of any kind as every protocol carries it. Text, JSON, bytes or a link, with media type and name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

PartKind = Literal["text", "image", "audio", "video", "file", "json", "function_call", "function_result"]
# Spelled out for clients that take no schema without a type; nothing is narrower than `Any`.
ANY_JSON: dict[str, Any] = {
    "anyOf": [{"type": kind} for kind in ("object", "array", "string", "number", "boolean", "null")]
}
AnyJSON = Annotated[Any, Meta(extra_json_schema=ANY_JSON)]
PART_KINDS: frozenset[str] = frozenset(get_args(PartKind))


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of text, data, blob and url holds the content; `blob` is base64."""

    kind: PartKind
    text: str | None = None
    data: Any = None
    blob: str | None = None
    url: str | None = None
    mime_type: str | None = None
    name: str | None = None
    meta: dict[str, Any] = {}
