"""Calls as ACP messages, and ACP messages as events and results.

Everything travels: a message part has a media type and holds text, base64 or a link. What
a tool was asked and what it said stands in a part's metadata, as `trajectory`; what an answer
is founded on stands there too, as `citation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.arguments import ATTACHMENTS, arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import kind_of, parts_of
from a2a_fabric.core.events import Event, artifact, status, token
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.acp.wire import Message, MessagePart
from a2a_fabric.runtimes.answer import answer_in

_TEXT = "text/plain"
_JSON = "application/json"
_BYTES = "application/octet-stream"


def message_of(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def message_for(call: Call, capability: Capability | None) -> dict[str, Any]:
    """Words first, then what belongs to them, then what was attached."""
    words, rest = _words_and_rest(call, capability)
    told = [text_part(words)] if words else []
    if rest:
        told.append(json_part(rest))
    told += [_sent(part) for part in parts_of(call.input)]
    return message_of(told or [text_part("")])


def _words_and_rest(call: Call, capability: Capability | None) -> tuple[str, dict[str, Any]]:
    """With a schema, the task is one argument among others; it is words if it is text, as is the only argument."""
    if capability is None or capability.input_schema is None:
        return call.input.task, call.input.context
    arguments = {name: value for name, value in arguments_for(capability, call.input).items() if name != ATTACHMENTS}
    name = "task" if "task" in arguments else next(iter(arguments)) if len(arguments) == 1 else ""
    if isinstance(arguments.get(name), str):
        return arguments.pop(name), arguments
    return "", arguments


def text_part(text: str) -> dict[str, Any]:
    return {"content_type": _TEXT, "content": text}


def json_part(value: Any) -> dict[str, Any]:
    return {"content_type": _JSON, "content": msgspec.json.encode(value).decode()}


def _sent(part: Part) -> dict[str, Any]:
    told = {"name": part.name} if part.name else {}
    if part.url is not None:
        return {**told, "content_type": part.mime_type or _BYTES, "content_url": part.url}
    if part.blob is not None:
        return {
            **told,
            "content_type": part.mime_type or _BYTES,
            "content": part.blob,
            "content_encoding": "base64",
        }
    if part.text is not None:
        return {**told, **text_part(part.text), "content_type": part.mime_type or _TEXT}
    if part.kind in ("function_call", "function_result") and isinstance(part.data, dict):
        return {**told, **json_part(part.data), "metadata": _trajectory(part.data)}
    return {**told, **json_part(part.data)}


def _trajectory(data: dict[str, Any]) -> dict[str, Any]:
    """A tool's work in ACP's words; its input and output are objects there."""
    told: dict[str, Any] = {"kind": "trajectory", "tool_name": str(data.get("name", ""))}
    if isinstance(data.get("arguments"), dict):
        told["tool_input"] = data["arguments"]
    if "result" in data:
        result = data["result"]
        told["tool_output"] = result if isinstance(result, dict) else {"result": result}
    return told


def text_of(message: Message) -> str:
    return "".join(part.content or "" for part in message.parts if _is_words(part))


def events_of(part: MessagePart) -> list[Event]:
    """What a listening caller hears of one part."""
    told = _steps(part)
    if _is_empty(part) or (told and not _is_words(part)):
        return told
    if _is_words(part):
        return [*told, token(part.content or "")]
    return [artifact(msgspec.to_builtins(_received(part)))]


def _steps(part: MessagePart) -> list[Event]:
    """What the agent did or thought on the way."""
    told = part.metadata or {}
    if told.get("kind") != "trajectory":
        return []
    message = str(told.get("message") or "")
    if not told.get("tool_name"):
        return [status("running", message)] if message else []
    data: dict[str, Any] = {"tool": str(told["tool_name"]), "arguments": _object(told.get("tool_input"))}
    if told.get("tool_output") is not None:
        data["result"] = told["tool_output"]
    return [Event("tool_call", {**data, "message": message} if message else data)]


def result_of(messages: Sequence[Message]) -> Result:
    """All that the agent said, once it is done."""
    result = answer_in(*filter(None, map(_joined, messages)))
    cited = [_citation(part.metadata) for message in messages for part in message.parts if _is_citation(part)]
    if not cited or "citations" in result.data:
        return result
    return msgspec.structs.replace(result, data={**result.data, "citations": cited})


def _joined(message: Message) -> list[Part]:
    """Its content, with words that came in pieces as one piece."""
    found: list[Part] = []
    words: list[str] = []
    for part in message.parts:
        tool, is_words = _tool_of(part), _is_words(part) and part.content_type in (None, _TEXT)
        if tool or not (is_words or _is_empty(part)):
            found += _spoken(words)
            words = []
            found += _work(part, tool) if tool else [_received(part)]
        if is_words:
            words.append(part.content or "")
    return [*found, *_spoken(words)]


def _spoken(words: list[str]) -> list[Part]:
    text = "".join(words)
    return [Part(kind="text", text=text)] if text else []


def _work(part: MessagePart, tool: str) -> list[Part]:
    """What a tool was asked and what it said; if this came from one of us, as it was."""
    ours = _received(part).data
    if isinstance(ours, dict) and ours.get("name") == tool:
        return [Part(kind="function_result" if "result" in ours else "function_call", data=ours, name=part.name)]
    told = part.metadata or {}
    called = Part(kind="function_call", data={"name": tool, "arguments": _object(told.get("tool_input"))})
    if told.get("tool_output") is None:
        return [called]
    return [called, Part(kind="function_result", data={"name": tool, "result": told["tool_output"]})]


def _received(part: MessagePart) -> Part:
    media = part.content_type or _TEXT
    kept = None if media in (_TEXT, _JSON) else media
    if part.content_url is not None:
        return Part(kind=kind_of(media), url=part.content_url, mime_type=media, name=part.name)
    if part.content_encoding == "base64":
        return Part(kind=kind_of(media), blob=part.content or "", mime_type=media, name=part.name)
    if media == _JSON:
        return _json(part)
    kind = "text" if media.startswith("text/") else kind_of(media)
    return Part(kind=kind, text=part.content or "", mime_type=kept, name=part.name)


def _json(part: MessagePart) -> Part:
    """Text that only says that it is JSON stays text."""
    try:
        return Part(kind="json", data=msgspec.json.decode(part.content or ""), name=part.name)
    except (msgspec.DecodeError, RecursionError):
        return Part(kind="text", text=part.content or "", mime_type=_JSON, name=part.name)


def _is_words(part: MessagePart) -> bool:
    """Text that stands for itself; with a name it is a thing of its own."""
    media = part.content_type or _TEXT
    return (
        media.startswith("text/")
        and part.name is None
        and part.content_url is None
        and part.content_encoding in (None, "plain")
    )


def _is_empty(part: MessagePart) -> bool:
    return not part.content and part.content_url is None


def _tool_of(part: MessagePart) -> str:
    told = part.metadata or {}
    return str(told.get("tool_name") or "") if told.get("kind") == "trajectory" else ""


def _is_citation(part: MessagePart) -> bool:
    return part.metadata is not None and part.metadata.get("kind") == "citation"


def _citation(told: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (told or {}).items() if name != "kind" and value is not None}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
