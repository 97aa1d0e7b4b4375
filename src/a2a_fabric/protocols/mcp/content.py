"""Content between MCP and core: content blocks as parts, parts as content blocks.

MCP has blocks for text, images, audio, resources and links. Other kinds of parts become the nearest of these:
video a resource, JSON and function calls text. `_meta` keeps the original kind, so another node restores it,
and a note reports the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from a2a_fabric.core.call import KIND_KEY, part_kind_from_mime_type
from a2a_fabric.core.result import PART_KINDS, Part, PartKind

_encode = msgspec.json.Encoder().encode
_DEFAULT_MEDIA_TYPES: dict[PartKind, str] = {"image": "image/png", "audio": "audio/wav"}
_CONVERTED_TO: dict[PartKind, str] = {
    "video": "a resource",
    "json": "text",
    "function_call": "text",
    "function_result": "text",
}
AGENT_URI_PREFIX = "fabric://agents/"
OWNER_KEY = "a2a-fabric/agent"
ORIGINAL_KEY = "a2a-fabric/original"  # the name or URI that the agent itself uses

# Metadata of a part that has a field of its own in a block. All other metadata goes to `_meta`.
_LINK_FIELDS = ("title", "description", "size")
_KEYS_OUTSIDE_META = frozenset({"_meta", "annotations", "uri", "resource_meta"})


def make_resource_uri(agent_id: str, uri: str) -> str:
    """The URI at the gateway of a resource that an agent knows by `uri`."""
    return f"{AGENT_URI_PREFIX}{agent_id}/resources/{quote(uri, safe='')}"


def mark_owner(part: Part, agent_id: str) -> Part:
    """Note on a link to a resource of its own server whose resource it is; addresses of the web need no owner."""
    if part.url is None or part.url.startswith(("http://", "https://", "data:")):
        return part
    return msgspec.structs.replace(part, meta={**part.meta, OWNER_KEY: agent_id})


def render_blocks(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Ready to be encoded. Raises here, and not later, for values that JSON cannot hold."""
    blocks = [_render_block(part, number) for number, part in enumerate(parts)]
    _encode(blocks)
    return blocks


def list_conversions(parts: Sequence[Part]) -> list[str]:
    """A note for each kind of content that is converted."""
    kinds = dict.fromkeys(part.kind for part in parts if part.kind in _CONVERTED_TO and part.url is None)
    return [f"{kind} content is sent as {_CONVERTED_TO[kind]}: MCP has no block for it" for kind in kinds]


def _render_block(part: Part, number: int) -> dict[str, Any]:
    block = _render_content(part, number)
    meta = {name: value for name, value in part.meta.items() if name not in _KEYS_OUTSIDE_META and name not in block}
    own_meta = part.meta.get("_meta")
    if isinstance(own_meta, dict):
        meta |= own_meta
    if part.kind in _CONVERTED_TO:
        meta[KIND_KEY] = part.kind
    if part.url is not None and OWNER_KEY in meta:
        meta[ORIGINAL_KEY] = part.url
    annotations = part.meta.get("annotations")
    if isinstance(annotations, dict):
        block["annotations"] = annotations
    return {**block, "_meta": meta} if meta else block


def _render_content(part: Part, number: int) -> dict[str, Any]:
    if part.url is not None:
        link_fields = {name: part.meta.get(name) for name in _LINK_FIELDS}
        owner = part.meta.get(OWNER_KEY)
        uri = make_resource_uri(owner, part.url) if isinstance(owner, str) else part.url
        link = {"type": "resource_link", "uri": uri, "name": part.name or part.url, "mimeType": part.mime_type}
        return _drop_none({**link, **link_fields})
    if part.blob is not None and part.kind in _DEFAULT_MEDIA_TYPES:
        return {"type": part.kind, "data": part.blob, "mimeType": part.mime_type or _DEFAULT_MEDIA_TYPES[part.kind]}
    if part.blob is not None or (part.kind == "file" and part.text is not None):
        return {"type": "resource", "resource": _render_resource(part, number)}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": "text", "text": _encode(part.data).decode()}


def _render_resource(part: Part, number: int) -> dict[str, Any]:
    uri = part.meta.get("uri") or f"fabric://parts/{number}/{part.name or part.kind}"
    resource_fields = {"uri": uri, "mimeType": part.mime_type, "_meta": part.meta.get("resource_meta")}
    return _drop_none({**resource_fields, "text": part.text, "blob": part.blob})


def _drop_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


class McpContentBlock(msgspec.Struct, frozen=True, rename="camel"):
    """A content block of any type; each type uses some of the fields."""

    type: str
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None
    resource: dict[str, Any] | None = None
    uri: str | None = None
    name: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | None = None
    annotations: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_KINDS: dict[str, PartKind] = {"text": "text", "image": "image", "audio": "audio"}


def part_from_block(block: McpContentBlock) -> Part:
    meta = collect_block_meta(block)
    if block.type == "resource_link":
        link_kind = _pop_part_kind(meta) or part_kind_from_mime_type(block.mime_type)
        return Part(kind=link_kind, url=block.uri, name=block.name, mime_type=block.mime_type, meta=meta)
    if block.type == "resource" and block.resource is not None:
        return _part_from_resource(block.resource, meta)
    if block.type == "text" and (kind := _pop_part_kind(meta)) is not None:
        return _part_from_json_text(block.text or "", kind, meta)
    if block.type in _KINDS:
        return Part(kind=_KINDS[block.type], text=block.text, blob=block.data, mime_type=block.mime_type, meta=meta)
    return Part(kind="json", data=msgspec.to_builtins(block), meta=meta)


def _pop_part_kind(meta: dict[str, Any]) -> PartKind | None:
    """The original kind, which another Fabric node noted in `_meta`; it is removed from `meta`."""
    block_meta = meta.get("_meta")
    part_kind = block_meta.get(KIND_KEY) if isinstance(block_meta, dict) else None
    if part_kind not in PART_KINDS:
        return None
    remaining = {name: value for name, value in meta.pop("_meta").items() if name != KIND_KEY}
    if remaining:
        meta["_meta"] = remaining
    return cast(PartKind, part_kind)


def _part_from_json_text(text: str, kind: PartKind, meta: dict[str, Any]) -> Part:
    """Content for which MCP has no block, sent as JSON text by another Fabric node."""
    try:
        return Part(kind=kind, data=msgspec.json.decode(text), meta=meta)
    except (msgspec.DecodeError, RecursionError):
        return Part(kind=kind, text=text, meta=meta)


def _part_from_resource(resource: dict[str, Any], meta: dict[str, Any]) -> Part:
    """An embedded resource. Its URI is in `meta`, because it is a name and not an address to fetch from."""
    uri, media_type = str(resource.get("uri", "")), resource.get("mimeType")
    if resource_meta := resource.get("_meta"):
        meta["resource_meta"] = resource_meta
    return Part(
        kind=_pop_part_kind(meta) or ("video" if part_kind_from_mime_type(media_type) == "video" else "file"),
        text=resource.get("text"),
        blob=resource.get("blob"),
        mime_type=media_type,
        name=uri.rstrip("/").rpartition("/")[2] or None,
        meta={"uri": uri, **meta},
    )


def collect_block_meta(block: McpContentBlock) -> dict[str, Any]:
    if not (block.annotations or block.meta or block.title or block.description or block.size):
        return {}
    meta_fields = {
        "title": block.title,
        "description": block.description,
        "size": block.size,
        "annotations": block.annotations,
        "_meta": block.meta,
    }
    return {name: value for name, value in meta_fields.items() if value is not None}
