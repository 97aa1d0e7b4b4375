"""Content in the three forms that A2A has for it: 1.0, 0.3, and 0.3 as its proto is written in JSON.

What a form has no place for stands in the part's `metadata`: its name and media type if it is
text of 0.3, and always that it is a function's call or result.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from a2a_fabric.core.content import kind_of
from a2a_fabric.core.part import Part, PartKind

Dialect = Literal["1.0", "0.3", "0.3 proto"]

KIND = "kind"
_WRAPPED = "data_part_compat"  # the SDK's own sign that a bare value was put into an object for 0.3
_EXACT = 2.0**53  # beyond, a float is not the integer that it was
_FUNCTIONS: dict[Any, PartKind] = {
    "function_call": "function_call",
    "function_result": "function_result",
    "function_response": "function_result",
}


class WirePart(msgspec.Struct, rename="camel"):
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


def parts_in(listed: Iterable[WirePart], dialect: Dialect) -> tuple[Part, ...]:
    """Parts of a kind that a later version may have are left out."""
    return tuple(part for each in listed if (part := part_in(each, dialect)) is not None)


def part_in(part: WirePart, dialect: Dialect, *, exact: bool = False) -> Part | None:
    """None for a kind of part that a later version may have. `exact`: numbers stay as they were written."""
    meta = dict(part.metadata) if isinstance(part.metadata, dict) else {}
    if isinstance(part.file, dict):
        return _read_file(part.file, meta, dialect)
    name = _text(part.filename or part.name or meta.pop("name", None))
    media = _text(part.media_type or part.mime_type or meta.pop("mimeType", None))
    if isinstance(part.text, str):
        return Part(kind="file" if name else "text", text=part.text, mime_type=media, name=name, meta=meta)
    if isinstance(part.raw, str):
        return Part(kind=kind_of(media), blob=_standard(part.raw), mime_type=media, name=name, meta=meta)
    if isinstance(part.url, str):
        return Part(kind=kind_of(media), url=part.url, mime_type=media, name=name, meta=meta)
    if part.data is msgspec.UNSET:
        return None
    kind = _FUNCTIONS.get(meta.pop(KIND, None)) or _FUNCTIONS.get(meta.get("adk_type")) or "json"
    data = _unwrapped(part.data, meta, dialect, exact=exact)
    return Part(kind=kind, data=data, mime_type=media, name=name, meta=meta)


def _read_file(file: dict[str, Any], meta: dict[str, Any], dialect: Dialect) -> Part | None:
    media, name = _text(file.get("mimeType") or file.get("mime_type")), _text(file.get("name"))
    url = file.get("uri") or file.get("fileWithUri") or file.get("file_with_uri")
    if isinstance(url, str):
        return Part(kind=kind_of(media), url=url, mime_type=media, name=name, meta=meta)
    blob = file.get("bytes") or file.get("fileWithBytes") or file.get("file_with_bytes")
    if not isinstance(blob, str):
        return None
    blob = _once(blob) if dialect == "0.3 proto" else _standard(blob)
    return Part(kind=kind_of(media), blob=blob, mime_type=media, name=name, meta=meta)


def _unwrapped(data: Any, meta: dict[str, Any], dialect: Dialect, *, exact: bool) -> Any:
    if dialect == "0.3 proto" and isinstance(data, dict) and data.keys() == {"data"}:
        data = data["data"]
    if meta.pop(_WRAPPED, False) and isinstance(data, dict):
        data = data.get("value")
    return data if exact else with_whole_numbers(data)


def with_whole_numbers(value: Any) -> Any:
    """The protos behind most agents know no integers in free data, so that a 7 comes back as 7.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, dict):
        return {key: with_whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(inner) for inner in value]
    return value


def _standard(blob: str) -> str:
    """Some write base64 as it stands in URLs, and without its padding."""
    plain = blob.replace("-", "+").replace("_", "/").rstrip("=")
    return plain + "=" * (-len(plain) % 4)


def _once(blob: str) -> str:
    """The SDK of 0.3 puts base64 into bytes, which JSON then writes as base64 again; other SDKs do not."""
    try:
        inner = base64.b64decode(_standard(blob))
        base64.b64decode(inner, validate=True)
    except (binascii.Error, ValueError):
        return _standard(blob)
    return inner.decode("ascii")


def written(part: Part, dialect: Dialect) -> dict[str, Any]:
    """A part as this form has it. There is none that it could not carry."""
    meta = dict(part.meta)
    if part.kind in ("function_call", "function_result"):
        meta[KIND] = part.kind
    made = _v1(part, meta) if dialect == "1.0" else _v03(part, meta, dialect)
    return {**made, "metadata": meta} if meta else made


def _v1(part: Part, meta: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any]
    if part.text is not None:
        made = {"text": part.text}
    elif part.blob is not None:
        made = {"raw": part.blob}
    elif part.url is not None:
        made = {"url": part.url}
    else:
        made = {"data": part.data}
    if part.name:
        made["filename"] = part.name
    if part.mime_type:
        made["mediaType"] = part.mime_type
    return made


def _v03(part: Part, meta: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if part.url is not None or part.blob is not None or (part.text is not None and part.kind != "text"):
        return _v03_file(part, dialect)
    named = {"name": part.name, "mimeType": part.mime_type}
    meta.update({key: value for key, value in named.items() if value})
    if part.text is not None:
        return {"kind": "text", "text": part.text} if dialect == "0.3" else {"text": part.text}
    data = part.data
    if not isinstance(data, dict):
        data = {"value": data}
        meta[_WRAPPED] = True
    return {"kind": "data", "data": data} if dialect == "0.3" else {"data": {"data": data}}


def _v03_file(part: Part, dialect: Dialect) -> dict[str, Any]:
    file = {key: value for key, value in (("name", part.name), ("mimeType", part.mime_type)) if value}
    if part.url is not None:
        file["uri" if dialect == "0.3" else "fileWithUri"] = part.url
    else:
        blob = part.blob if part.blob is not None else base64.b64encode((part.text or "").encode()).decode()
        if dialect == "0.3":
            file["bytes"] = blob
        else:
            file["fileWithBytes"] = base64.b64encode(blob.encode()).decode()  # twice, as the SDK of 0.3 reads it
    return {"kind": "file", "file": file} if dialect == "0.3" else {"file": file}


def _text(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None
