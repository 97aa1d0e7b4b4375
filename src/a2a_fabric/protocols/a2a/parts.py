"""Content parts in the three A2A dialects: 1.0, 0.3, and the JSON form of the 0.3 protos.

A property that a dialect has no field for is carried in the part's `metadata`: the name and media
type of text in 0.3, and in every dialect the mark that a part is a function call or its result."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from a2a_fabric.core.content import part_kind_from_mime_type
from a2a_fabric.core.part import Part, PartKind

Dialect = Literal["1.0", "0.3", "0.3 proto"]

KIND = "kind"
_WRAPPED_MARK = "data_part_compat"  # the SDK's own mark for a value that was wrapped in an object for 0.3
_MAX_EXACT_FLOAT = 2.0**53  # a larger float may differ from the integer that it came from
_FUNCTION_KINDS: dict[Any, PartKind] = {
    "function_call": "function_call",
    "function_result": "function_result",
    "function_response": "function_result",
}


class WirePart(msgspec.Struct, rename="camel"):
    """A part of any dialect; every field may hold anything."""

    text: Any = None
    raw: Any = None
    url: Any = None
    data: Any = msgspec.UNSET
    file: Any = None
    filename: Any = None
    media_type: Any = None
    name: Any = None
    mime_type: Any = None
    metadata: Any = None


def parse_parts(wire_parts: Iterable[WirePart], dialect: Dialect) -> tuple[Part, ...]:
    """Parts of an unknown kind are left out."""
    return tuple(part for each in wire_parts if (part := parse_part(each, dialect)) is not None)


def parse_part(part: WirePart, dialect: Dialect, *, exact: bool = False) -> Part | None:
    """None for an unknown kind, which a later version may have. `exact`: numbers stay as they were written."""
    meta = dict(part.metadata) if isinstance(part.metadata, dict) else {}
    if isinstance(part.file, dict):
        return _parse_file(part.file, meta, dialect)
    name = _text_or_none(part.filename or part.name or meta.pop("name", None))
    media_type = _text_or_none(part.media_type or part.mime_type or meta.pop("mimeType", None))
    if isinstance(part.text, str):
        return Part(kind="file" if name else "text", text=part.text, mime_type=media_type, name=name, meta=meta)
    if isinstance(part.raw, str):
        return Part(
            kind=part_kind_from_mime_type(media_type),
            blob=_standard_base64(part.raw),
            mime_type=media_type,
            name=name,
            meta=meta,
        )
    if isinstance(part.url, str):
        return Part(kind=part_kind_from_mime_type(media_type), url=part.url, mime_type=media_type, name=name, meta=meta)
    if part.data is msgspec.UNSET:
        return None
    kind = _FUNCTION_KINDS.get(meta.pop(KIND, None)) or _FUNCTION_KINDS.get(meta.get("adk_type")) or "json"
    data = _unwrap_data(part.data, meta, dialect, exact=exact)
    return Part(kind=kind, data=data, mime_type=media_type, name=name, meta=meta)


def _parse_file(file: dict[str, Any], meta: dict[str, Any], dialect: Dialect) -> Part | None:
    media_type, name = _text_or_none(file.get("mimeType") or file.get("mime_type")), _text_or_none(file.get("name"))
    url = file.get("uri") or file.get("fileWithUri") or file.get("file_with_uri")
    if isinstance(url, str):
        return Part(kind=part_kind_from_mime_type(media_type), url=url, mime_type=media_type, name=name, meta=meta)
    blob = file.get("bytes") or file.get("fileWithBytes") or file.get("file_with_bytes")
    if not isinstance(blob, str):
        return None
    blob = _undo_double_base64(blob) if dialect == "0.3 proto" else _standard_base64(blob)
    return Part(kind=part_kind_from_mime_type(media_type), blob=blob, mime_type=media_type, name=name, meta=meta)


def _unwrap_data(data: Any, meta: dict[str, Any], dialect: Dialect, *, exact: bool) -> Any:
    if dialect == "0.3 proto" and isinstance(data, dict) and data.keys() == {"data"}:
        data = data["data"]
    if meta.pop(_WRAPPED_MARK, False) and isinstance(data, dict):
        data = data.get("value")
    return data if exact else restore_integers(data)


def restore_integers(value: Any) -> Any:
    """Protos have no integers in free data, so that most agents send a 7 back as 7.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT else value
    if isinstance(value, dict):
        return {key: restore_integers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [restore_integers(inner) for inner in value]
    return value


def _standard_base64(blob: str) -> str:
    """Some agents write URL-safe base64, or leave the padding out."""
    plain = blob.replace("-", "+").replace("_", "/").rstrip("=")
    return plain + "=" * (-len(plain) % 4)


def _undo_double_base64(blob: str) -> str:
    """The SDK of 0.3 puts base64 into a bytes field, which JSON encodes as base64 again; other SDKs do not."""
    try:
        inner = base64.b64decode(_standard_base64(blob))
        base64.b64decode(inner, validate=True)
    except (binascii.Error, ValueError):
        return _standard_base64(blob)
    return inner.decode("ascii")


def render_part(part: Part, dialect: Dialect) -> dict[str, Any]:
    """The part in this dialect. Every dialect can carry every part."""
    meta = dict(part.meta)
    if part.kind in ("function_call", "function_result"):
        meta[KIND] = part.kind
    wire_part = _render_v1(part, meta) if dialect == "1.0" else _render_v03(part, meta, dialect)
    return {**wire_part, "metadata": meta} if meta else wire_part


def _render_v1(part: Part, meta: dict[str, Any]) -> dict[str, Any]:
    wire_part: dict[str, Any]
    if part.text is not None:
        wire_part = {"text": part.text}
    elif part.blob is not None:
        wire_part = {"raw": part.blob}
    elif part.url is not None:
        wire_part = {"url": part.url}
    else:
        wire_part = {"data": part.data}
    if part.name:
        wire_part["filename"] = part.name
    if part.mime_type:
        wire_part["mediaType"] = part.mime_type
    return wire_part


def _render_v03(part: Part, meta: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if part.url is not None or part.blob is not None or (part.text is not None and part.kind != "text"):
        return _render_v03_file(part, dialect)
    labels = {"name": part.name, "mimeType": part.mime_type}
    meta.update({key: value for key, value in labels.items() if value})
    if part.text is not None:
        return {"kind": "text", "text": part.text} if dialect == "0.3" else {"text": part.text}
    data = part.data
    if not isinstance(data, dict):
        data = {"value": data}
        meta[_WRAPPED_MARK] = True
    return {"kind": "data", "data": data} if dialect == "0.3" else {"data": {"data": data}}


def _render_v03_file(part: Part, dialect: Dialect) -> dict[str, Any]:
    file = {key: value for key, value in (("name", part.name), ("mimeType", part.mime_type)) if value}
    if part.url is not None:
        file["uri" if dialect == "0.3" else "fileWithUri"] = part.url
    else:
        blob = part.blob if part.blob is not None else base64.b64encode((part.text or "").encode()).decode()
        if dialect == "0.3":
            file["bytes"] = blob
        else:
            file["fileWithBytes"] = base64.b64encode(blob.encode()).decode()  # encoded twice, as the SDK of 0.3 expects
    return {"kind": "file", "file": file} if dialect == "0.3" else {"file": file}


def _text_or_none(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None
