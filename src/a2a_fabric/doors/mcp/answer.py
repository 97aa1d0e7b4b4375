"""What a call came to, as a tool's result: structured content, words to read, and canonical errors."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import FabricError, UpstreamRefused, error_by_code
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace

TRACE_KEY = "a2a-fabric/trace"
FALLBACK_KEY = "a2a-fabric/fallback"
NOTES_KEY = "a2a-fabric/notes"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)


def success(result: Result, trace: Trace) -> dict[str, Any]:
    """Ready to be encoded. Raises UpstreamRefused: agents in this process may answer with what JSON cannot hold."""
    try:
        text = _encode(result.data)
        content = [_block(part, number) for number, part in enumerate(result.parts)]
        if content:
            _encode(content)
    except _NOT_JSON as exc:
        raise UpstreamRefused(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    if not any(block["type"] == "text" for block in content):
        content.insert(0, {"type": "text", "text": _readable(result.data, text)})
    meta: dict[str, Any] = {TRACE_KEY: trace}
    if result.fallback is not None:
        meta[FALLBACK_KEY] = result.fallback
    if result.notes:
        meta[NOTES_KEY] = result.notes
    return {
        "content": content,
        "structuredContent": msgspec.Raw(text),
        "isError": False,
        "resultType": "complete",
        "_meta": meta,
    }


def failure(error: FabricError, trace: Trace) -> dict[str, Any]:
    """The canonical error object, where programs look and where models look."""
    body = error_body(error, trace)
    return {
        "content": [{"type": "text", "text": f"{body['error']['code']}: {body['error']['message']}"}],
        "structuredContent": body,
        "isError": True,
        "resultType": "complete",
        "_meta": {TRACE_KEY: body["trace"]},
    }


def error_body(error: FabricError, trace: Trace) -> dict[str, Any]:
    """Agents in this process may put anything into an error; what JSON cannot hold is left out."""
    told = {"code": error.code, "message": error.message, "details": error.details}
    try:
        told = _decode(_encode(told))
    except _NOT_JSON:
        plain = error_by_code(error.code, speakable(error.message))
        told = {"code": plain.code, "message": plain.message, "details": {}}
    return {"ok": False, "error": told, "trace": msgspec.to_builtins(trace)}


def speakable(text: str) -> str:
    """Without the halves of characters that JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _readable(data: dict[str, Any], encoded: bytes) -> str:
    answer = data.get("answer")
    return answer if isinstance(answer, str) and len(data) == 1 else encoded.decode()


def _block(part: Part, number: int) -> dict[str, Any]:
    block = _content(part, number)
    return {**block, "_meta": part.meta} if part.meta else block


def _content(part: Part, number: int) -> dict[str, Any]:
    if part.url is not None:
        return _without_none(
            {"type": "resource_link", "uri": part.url, "name": part.name or part.url, "mimeType": part.mime_type}
        )
    if part.blob is not None and part.kind in ("image", "audio"):
        media = part.mime_type or ("image/png" if part.kind == "image" else "audio/wav")
        return {"type": part.kind, "data": part.blob, "mimeType": media}
    if part.blob is not None or (part.kind == "file" and part.text is not None):
        return {"type": "resource", "resource": _resource(part, number)}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": "text", "text": _encode(part.data).decode()}


def _resource(part: Part, number: int) -> dict[str, Any]:
    uri = part.meta.get("uri") or f"fabric://parts/{number}/{part.name or part.kind}"
    return _without_none({"uri": uri, "mimeType": part.mime_type, "text": part.text, "blob": part.blob})


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
