"""What a call came to, as a tool's result: structured content, words to read, and canonical errors."""

from __future__ import annotations

from typing import Any

import msgspec

from a2a_fabric.core.errors import FabricError, UpstreamFailed, error_by_code
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import Trace
from a2a_fabric.doors.mcp import blocks

TRACE_KEY = "a2a-fabric/trace"
FALLBACK_KEY = "a2a-fabric/fallback"
NOTES_KEY = "a2a-fabric/notes"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError)


def success(result: Result, trace: Trace) -> dict[str, Any]:
    """Ready to be encoded. Raises UpstreamFailed: agents in this process may answer with what JSON cannot hold."""
    try:
        text = _encode(result.data)
        content = blocks.of(result.parts) if result.parts else []
    except _NOT_JSON as exc:
        raise UpstreamFailed(f"The agent's answer is not JSON: {exc}"[:300]) from exc
    if not content or not any(part.kind == "text" for part in result.parts):
        content.insert(0, {"type": "text", "text": _readable(result.data, text)})
    meta: dict[str, Any] = {TRACE_KEY: trace}
    if result.fallback is not None:
        meta[FALLBACK_KEY] = result.fallback
        if result.fallback.sentence is not None:  # last: clients read the first block as the answer
            content.append({"type": "text", "text": result.fallback.sentence})
    notes = (*result.notes, *blocks.notes_on(result.parts)) if result.parts else result.notes
    if notes:
        meta[NOTES_KEY] = notes
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
