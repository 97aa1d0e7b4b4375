"""Content between MCP and core: content blocks as parts, parts as content blocks.

MCP has blocks for text, images, audio, resources and links. Other kinds of parts become the nearest of these:
video a resource, JSON and function calls text. `_meta` keeps the original kind, so another node restores it,
and a note reports the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from a2a_fabric.core.call import KIND_KEY, Call, part_kind_from_mime_type
from a2a_fabric.core.json_text import decode_json_text
from a2a_fabric.core.result import PART_KINDS, OriginalMessage, Part, PartKind, Result
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION, drop_own_keys
from a2a_fabric.protocols.mcp.resource_uris import UI_SCHEME, make_resource_uri

_encode = msgspec.json.Encoder().encode
_DEFAULT_MEDIA_TYPES: dict[PartKind, str] = {"image": "image/png", "audio": "audio/wav"}
_CONVERTED_TO: dict[PartKind, str] = {
    "video": "a resource",
    "json": "text",
    "function_call": "text",
    "function_result": "text",
}
OWNER_KEY = "a2a-fabric/agent"
_ORIGINAL_PROTOCOL = "mcp"
ORIGINAL_KEY = "a2a-fabric/original"  # the name or URI that the agent itself uses

# Metadata of a part that has a field of its own in a block. All other metadata goes to `_meta`.
_LINK_FIELDS = ("title", "description", "size")
_KEYS_OUTSIDE_META = frozenset({"_meta", "annotations", "uri", "resource_meta"})


SHOWS_APPS = OriginalMessage(protocol=_ORIGINAL_PROTOCOL, content={"extensions": [UI_EXTENSION]})  # of a call


def can_show_apps(call: Call) -> bool:
    """Whether the call comes from an MCP client that shows the user interfaces of servers."""
    return call.original is not msgspec.UNSET and call.original == SHOWS_APPS


def original_from_meta(meta: dict[str, Any]) -> OriginalMessage:
    """The `_meta` of a server's result, for a client that speaks MCP, too."""
    return OriginalMessage(protocol=_ORIGINAL_PROTOCOL, content={"_meta": meta})


def find_original_meta(result: Result) -> dict[str, Any]:
    """The `_meta` of the server's own result; empty if the agent is no MCP server, or sent none."""
    original = result.original
    if not original or original.protocol != _ORIGINAL_PROTOCOL:
        return {}
    return drop_own_keys(original.content.get("_meta"))


def mark_owner(part: Part, agent_id: str) -> Part:
    """Note on a link to a resource of its own server, and on an embedded user interface, whose resource it is.

    Addresses of the web need no owner.
    """
    uri = str(part.meta.get("uri", "")) if part.url is None else part.url
    if not _is_owned(uri, is_link=part.url is not None):
        return part
    return msgspec.structs.replace(part, meta={**part.meta, OWNER_KEY: agent_id})


def to_public_block(block: Any, agent_id: str) -> Any:
    """A block of a server's prompt, whose address leads to that server at the gateway, too."""
    resource = block.get("resource") if isinstance(block, dict) else None
    named = resource if isinstance(resource, dict) else block
    uri = named.get("uri") if isinstance(named, dict) else None
    if not isinstance(uri, str) or not _is_owned(uri, is_link=named is block):
        return block
    public = {**named, "uri": make_resource_uri(agent_id, uri)}
    meta = {**drop_own_keys(block.get("_meta")), OWNER_KEY: agent_id, ORIGINAL_KEY: uri}
    return {**(public if named is block else {**block, "resource": public}), "_meta": meta}


def _is_owned(uri: str, *, is_link: bool) -> bool:
    return not uri.startswith(("http://", "https://", "data:")) if is_link else uri.startswith(UI_SCHEME)


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
    agents_meta = part.meta.get("_meta")
    if isinstance(agents_meta, dict):
        meta = drop_own_keys(agents_meta) | meta
    if part.kind in _CONVERTED_TO:
        meta[KIND_KEY] = part.kind
    if OWNER_KEY in meta:
        meta[ORIGINAL_KEY] = part.url if part.url is not None else part.meta.get("uri")
    annotations = part.meta.get("annotations")
    if isinstance(annotations, dict):
        block["annotations"] = annotations
    return {**block, "_meta": meta} if meta else block


def _render_content(part: Part, number: int) -> dict[str, Any]:
    if part.url is not None:
        link_fields = {name: part.meta.get(name) for name in _LINK_FIELDS}
        link = {
            "type": "resource_link",
            "uri": _to_public_uri(part, part.url),
            "name": part.name or part.url,
            "mimeType": part.mime_type,
        }
        return _drop_none({**link, **link_fields})
    if part.blob is not None and part.kind in _DEFAULT_MEDIA_TYPES:
        return {"type": part.kind, "data": part.blob, "mimeType": part.mime_type or _DEFAULT_MEDIA_TYPES[part.kind]}
    if part.blob is not None or (part.kind == "file" and part.text is not None):
        return {"type": "resource", "resource": _render_resource(part, number)}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": "text", "text": _encode(part.data).decode()}


def _render_resource(part: Part, number: int) -> dict[str, Any]:
    own_uri = part.meta.get("uri")
    uri = _to_public_uri(part, str(own_uri)) if own_uri else f"fabric://parts/{number}/{part.name or part.kind}"
    resource_fields = {"uri": uri, "mimeType": part.mime_type, "_meta": part.meta.get("resource_meta")}
    return _drop_none({**resource_fields, "text": part.text, "blob": part.blob})


def _to_public_uri(part: Part, uri: str) -> str:
    owner = part.meta.get(OWNER_KEY)
    return make_resource_uri(owner, uri) if isinstance(owner, str) else uri


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
        return Part(kind=kind, data=decode_json_text(text), meta=meta)
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
