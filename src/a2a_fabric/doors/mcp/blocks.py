"""Parts of a result as MCP's content blocks. MCP knows words, images, sounds, resources and links.

Other kinds are told as the nearest of these: video as a resource, JSON and functions
as text. `_meta` says what it was, and a note says that it is something else now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.content import KIND_KEY
from a2a_fabric.core.part import Part, PartKind

_encode = msgspec.json.Encoder().encode

_USUAL_MEDIA: dict[PartKind, str] = {"image": "image/png", "audio": "audio/wav"}
_TOLD_AS: dict[PartKind, str] = {
    "video": "a resource",
    "json": "text",
    "function_call": "text",
    "function_result": "text",
}
# What has a place of its own in a block; everything else that is said about a part stands in `_meta`.
_OF_LINKS = ("title", "description", "size")
_PLACED = frozenset({"_meta", "annotations", "uri", "resource_meta"})


def of(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Ready to be encoded; what JSON cannot hold raises here."""
    made = [_block(part, number) for number, part in enumerate(parts)]
    _encode(made)
    return made


def notes_on(parts: Sequence[Part]) -> list[str]:
    """One for each kind that is told as something else."""
    kinds = dict.fromkeys(part.kind for part in parts if _is_told_otherwise(part))
    return [f"{kind} content is told as {_TOLD_AS[kind]}: MCP has no word for it" for kind in kinds]


def _is_told_otherwise(part: Part) -> bool:
    return part.kind in _TOLD_AS and part.url is None


def _block(part: Part, number: int) -> dict[str, Any]:
    block = _content(part, number)
    meta = {name: value for name, value in part.meta.items() if name not in _PLACED and name not in block}
    theirs = part.meta.get("_meta")
    if isinstance(theirs, dict):
        meta |= theirs
    if part.kind in _TOLD_AS:
        meta[KIND_KEY] = part.kind
    annotations = part.meta.get("annotations")
    if isinstance(annotations, dict):
        block["annotations"] = annotations
    return {**block, "_meta": meta} if meta else block


def _content(part: Part, number: int) -> dict[str, Any]:
    if part.url is not None:
        about = {name: part.meta.get(name) for name in _OF_LINKS}
        link = {"type": "resource_link", "uri": part.url, "name": part.name or part.url, "mimeType": part.mime_type}
        return _without_none({**link, **about})
    if part.blob is not None and part.kind in _USUAL_MEDIA:
        return {"type": part.kind, "data": part.blob, "mimeType": part.mime_type or _USUAL_MEDIA[part.kind]}
    if part.blob is not None or (part.kind == "file" and part.text is not None):
        return {"type": "resource", "resource": _resource(part, number)}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": "text", "text": _encode(part.data).decode()}


def _resource(part: Part, number: int) -> dict[str, Any]:
    uri = part.meta.get("uri") or f"fabric://parts/{number}/{part.name or part.kind}"
    about = {"uri": uri, "mimeType": part.mime_type, "_meta": part.meta.get("resource_meta")}
    return _without_none({**about, "text": part.text, "blob": part.blob})


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
