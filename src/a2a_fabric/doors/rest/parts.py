"""Content parts of the REST door to core parts and back. A part of an unknown type is kept as it came."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from a2a_fabric.core.content import is_base64
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.message import EXTENSION_KEY, make_extension_part
from a2a_fabric.core.part import PART_KINDS, Part
from a2a_fabric.doors.rest import models

_MEDIA_KINDS = frozenset({"image", "audio", "video", "file"})
_URL_PREFIXES = ("http://", "https://")
_MIME_KEYS = ("mimeType", "mime_type", "contentType", "content_type")
_NAME_KEYS = ("name", "filename", "fileName")
_ALIASES = {"data": "json"}  # the name in the client library of the platform


def parts_from_wire(parts: Iterable[models.Part]) -> tuple[Part, ...]:
    """Raises BadInput, which names the part."""
    return tuple(_part_from_wire(part, f"parts[{number}].content") for number, part in enumerate(parts))


def _part_from_wire(part: models.Part, field_path: str) -> Part:
    kind = _ALIASES.get(part.type, part.type)
    if kind not in PART_KINDS:
        return make_extension_part(part.type, part.content, part.metadata)
    attributes: dict[str, Any] = {
        "mime_type": part.mime_type or _find_text(part.metadata, _MIME_KEYS),
        "name": part.name or _find_text(part.metadata, _NAME_KEYS),
        "meta": {key: value for key, value in part.metadata.items() if key != EXTENSION_KEY},
    }
    if kind == "text":
        return Part(kind="text", text=_require_text(part.content, field_path), **attributes)
    if kind in _MEDIA_KINDS:
        return _media_from_content(kind, part.content, field_path, attributes)
    if kind == "function_call" and not isinstance(part.content, dict):
        raise BadInput(
            f"{field_path} is not an object. A function call is one.", field=field_path, issue="not an object"
        )
    return Part(kind=kind, data=part.content, **attributes)  # type: ignore[arg-type]  # a known kind


def _media_from_content(kind: Any, content: Any, field_path: str, attributes: dict[str, Any]) -> Part:
    """Media are base64 or a URL. Some clients send them as an object with `data` or `url`."""
    if isinstance(content, dict):
        attributes["mime_type"] = attributes["mime_type"] or _find_text(content, _MIME_KEYS)
        attributes["name"] = attributes["name"] or _find_text(content, _NAME_KEYS)
        content = content.get("url") or content.get("data")
    text = _require_text(content, field_path)
    if text.startswith(_URL_PREFIXES):
        return Part(kind=kind, url=text, **attributes)
    if text.startswith("data:"):
        media, is_encoded, text = _split_data_url(text)
        attributes["mime_type"] = attributes["mime_type"] or media
        text = text if is_encoded else ""
    if not text or not is_base64(text):
        raise BadInput(f"{field_path} is neither base64 nor a URL", field=field_path, issue="neither base64 nor a URL")
    return Part(kind=kind, blob=text, **attributes)


def _split_data_url(text: str) -> tuple[str | None, bool, str]:
    head, _, body = text.removeprefix("data:").partition(",")
    media, _, encoding = head.rpartition(";")
    return media.partition(";")[0] or None, encoding == "base64", unquote_to_bytes(body).decode("ascii", "replace")


def _require_text(content: Any, field_path: str) -> str:
    if not isinstance(content, str):
        raise BadInput(f"{field_path} is not text", field=field_path, issue="not text")
    return content


def _find_text(fields: dict[str, Any], names: Iterable[str]) -> str | None:
    return next((fields[name] for name in names if isinstance(fields.get(name), str)), None)


def parts_to_wire(parts: Iterable[Part]) -> tuple[models.ShownPart, ...]:
    return tuple(map(_part_to_wire, parts))


def _part_to_wire(part: Part) -> models.ShownPart:
    meta = dict(part.meta)
    if (extension_type := meta.pop(EXTENSION_KEY, None)) is not None:
        return models.ShownPart(type=str(extension_type), content=part.data, metadata=meta)
    if part.mime_type is not None and _find_text(meta, _MIME_KEYS) is None:
        meta["mimeType"] = part.mime_type
    if part.name is not None and _find_text(meta, _NAME_KEYS) is None:
        meta["name"] = part.name
    return models.ShownPart(type=part.kind, content=get_content(part), metadata=meta)


def get_content(part: Part) -> Any:
    candidates = (part.url, part.blob, part.text)
    return next((each for each in candidates if each is not None), part.data)
