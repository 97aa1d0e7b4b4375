"""Renders results and errors of calls as MCP tool results: structured content, blocks, error objects.

MCP has blocks for text, images, audio, resources and links. Other kinds of parts become the nearest of these:
video a resource, JSON and function calls text. `_meta` keeps the original kind, and a note reports the
conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.content import KIND_KEY
from a2a_fabric.core.errors import FabricError, UpstreamFailed
from a2a_fabric.core.part import Part, PartKind
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp.errors import JSON_ERRORS, to_error_body

_encode_block = msgspec.json.Encoder().encode

_DEFAULT_MEDIA_TYPES: dict[PartKind, str] = {"image": "image/png", "audio": "audio/wav"}
_CONVERTED_TO: dict[PartKind, str] = {
    "video": "a resource",
    "json": "text",
    "function_call": "text",
    "function_result": "text",
}
# What has a place of its own in a block; everything else that is said about a part stands in `_meta`.
_LINK_FIELDS = ("title", "description", "size")
_KEYS_OUTSIDE_META = frozenset({"_meta", "annotations", "uri", "resource_meta"})


def render_blocks(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Ready to be encoded; what JSON cannot hold raises here."""
    blocks = [_render_block(part, number) for number, part in enumerate(parts)]
    _encode_block(blocks)
    return blocks


def list_conversions(parts: Sequence[Part]) -> list[str]:
    """One for each kind that is told as something else."""
    kinds = dict.fromkeys(part.kind for part in parts if _is_converted(part))
    return [f"{kind} content is told as {_CONVERTED_TO[kind]}: MCP has no word for it" for kind in kinds]


def _is_converted(part: Part) -> bool:
    return part.kind in _CONVERTED_TO and part.url is None


def _render_block(part: Part, number: int) -> dict[str, Any]:
    block = _render_content(part, number)
    meta = {name: value for name, value in part.meta.items() if name not in _KEYS_OUTSIDE_META and name not in block}
    own_meta = part.meta.get("_meta")
    if isinstance(own_meta, dict):
        meta |= own_meta
    if part.kind in _CONVERTED_TO:
        meta[KIND_KEY] = part.kind
    annotations = part.meta.get("annotations")
    if isinstance(annotations, dict):
        block["annotations"] = annotations
    return {**block, "_meta": meta} if meta else block


def _render_content(part: Part, number: int) -> dict[str, Any]:
    if part.url is not None:
        link_fields = {name: part.meta.get(name) for name in _LINK_FIELDS}
        link = {"type": "resource_link", "uri": part.url, "name": part.name or part.url, "mimeType": part.mime_type}
        return _drop_none({**link, **link_fields})
    if part.blob is not None and part.kind in _DEFAULT_MEDIA_TYPES:
        return {"type": part.kind, "data": part.blob, "mimeType": part.mime_type or _DEFAULT_MEDIA_TYPES[part.kind]}
    if part.blob is not None or (part.kind == "file" and part.text is not None):
        return {"type": "resource", "resource": _render_resource(part, number)}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": "text", "text": _encode_block(part.data).decode()}


def _render_resource(part: Part, number: int) -> dict[str, Any]:
    uri = part.meta.get("uri") or f"fabric://parts/{number}/{part.name or part.kind}"
    resource_fields = {"uri": uri, "mimeType": part.mime_type, "_meta": part.meta.get("resource_meta")}
    return _drop_none({**resource_fields, "text": part.text, "blob": part.blob})


def _drop_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


TRACE_KEY = "a2a-fabric/trace"
FALLBACK_KEY = "a2a-fabric/fallback"
NOTES_KEY = "a2a-fabric/notes"

_encode = msgspec.json.Encoder().encode


def render_result(result: Result, trace: Trace) -> dict[str, Any]:
    """Ready to be encoded. Raises UpstreamFailed: agents in this process may answer with what JSON cannot hold."""
    try:
        text = _encode(result.data)
        content = render_blocks(result.parts) if result.parts else []
    except JSON_ERRORS as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    if not content or not any(part.kind == "text" for part in result.parts):
        content.insert(0, {"type": "text", "text": _text_for(result.data, text)})
    meta: dict[str, Any] = {TRACE_KEY: trace}
    if result.fallback is not None:
        meta[FALLBACK_KEY] = result.fallback
        if result.fallback.note is not None:  # last: clients read the first block as the answer
            content.append({"type": "text", "text": result.fallback.note})
    notes = (*result.notes, *list_conversions(result.parts)) if result.parts else result.notes
    if notes:
        meta[NOTES_KEY] = notes
    return {
        "content": content,
        "structuredContent": msgspec.Raw(text),
        "isError": False,
        "resultType": "complete",
        "_meta": meta,
    }


def render_error(error: FabricError, trace: Trace) -> dict[str, Any]:
    """The canonical error object, where programs look and where models look."""
    body = to_error_body(error, trace)
    return {
        "content": [{"type": "text", "text": f"{body['error']['code']}: {body['error']['message']}"}],
        "structuredContent": body,
        "isError": True,
        "resultType": "complete",
        "_meta": {TRACE_KEY: body["trace"]},
    }


def _text_for(data: dict[str, Any], encoded: bytes) -> str:
    text = data.get("answer")
    return text if isinstance(text, str) and len(data) == 1 else encoded.decode()
