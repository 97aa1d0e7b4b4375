"""Parts of document 004 as ours and back. What is of a type that we do not know is kept as it came."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from a2a_fabric.core.content import is_base64
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.message import EXTENSION, extension
from a2a_fabric.core.part import PART_KINDS, Part
from a2a_fabric.doors.rest import wire

_MEDIA = frozenset({"image", "audio", "video", "file"})
_LINKS = ("http://", "https://")
_MIME = ("mimeType", "mime_type", "contentType", "content_type")
_NAMES = ("name", "filename", "fileName")
_ALIASES = {"data": "json"}  # as the platform's own library calls it


def received(parts: Iterable[wire.Part]) -> tuple[Part, ...]:
    """Raises BadInput naming the part."""
    return tuple(_received(part, f"parts[{number}].content") for number, part in enumerate(parts))


def _received(part: wire.Part, where: str) -> Part:
    kind = _ALIASES.get(part.type, part.type)
    if kind not in PART_KINDS:
        return extension(part.type, part.content, part.metadata)
    about: dict[str, Any] = {
        "mime_type": part.mime_type or _text_in(part.metadata, _MIME),
        "name": part.name or _text_in(part.metadata, _NAMES),
        "meta": {key: value for key, value in part.metadata.items() if key != EXTENSION},
    }
    if kind == "text":
        return Part(kind="text", text=_text(part.content, where), **about)
    if kind in _MEDIA:
        return _media(kind, part.content, where, about)
    if kind == "function_call" and not isinstance(part.content, dict):
        raise BadInput(f"{where} is not an object, as a function call is", field=where, issue="not an object")
    return Part(kind=kind, data=part.content, **about)  # type: ignore[arg-type]  # one of ours


def _media(kind: Any, content: Any, where: str, about: dict[str, Any]) -> Part:
    """Base64 or a URL; also as an object with `data` or `url`, as some write it."""
    if isinstance(content, dict):
        about["mime_type"] = about["mime_type"] or _text_in(content, _MIME)
        about["name"] = about["name"] or _text_in(content, _NAMES)
        content = content.get("url") or content.get("data")
    text = _text(content, where)
    if text.startswith(_LINKS):
        return Part(kind=kind, url=text, **about)
    if text.startswith("data:"):
        media, is_encoded, text = _data_url(text)
        about["mime_type"] = about["mime_type"] or media
        text = text if is_encoded else ""
    if not text or not is_base64(text):
        raise BadInput(f"{where} is neither base64 nor a URL", field=where, issue="neither base64 nor a URL")
    return Part(kind=kind, blob=text, **about)


def _data_url(text: str) -> tuple[str | None, bool, str]:
    head, _, body = text.removeprefix("data:").partition(",")
    media, _, encoding = head.rpartition(";")
    return media.partition(";")[0] or None, encoding == "base64", unquote_to_bytes(body).decode("ascii", "replace")


def _text(content: Any, where: str) -> str:
    if not isinstance(content, str):
        raise BadInput(f"{where} is not text", field=where, issue="not text")
    return content


def _text_in(given: dict[str, Any], names: Iterable[str]) -> str | None:
    return next((given[name] for name in names if isinstance(given.get(name), str)), None)


def shown(parts: Iterable[Part]) -> tuple[wire.ShownPart, ...]:
    return tuple(map(_shown, parts))


def _shown(part: Part) -> wire.ShownPart:
    meta = dict(part.meta)
    if (own := meta.pop(EXTENSION, None)) is not None:
        return wire.ShownPart(type=str(own), content=part.data, metadata=meta)
    if part.mime_type is not None and _text_in(meta, _MIME) is None:
        meta["mimeType"] = part.mime_type
    if part.name is not None and _text_in(meta, _NAMES) is None:
        meta["name"] = part.name
    return wire.ShownPart(type=part.kind, content=content_of(part), metadata=meta)


def content_of(part: Part) -> Any:
    held = (part.url, part.blob, part.text)
    return next((each for each in held if each is not None), part.data)
