"""Converts between calls and ACP messages: parts, events, results, and questions of runs that await a message.

A message part has a media type and holds text, base64 or a URL. Tool calls and tool results are in a
part's metadata as `trajectory`, sources of an answer as `citation`. A question's continuation is the run's id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import ATTACHMENTS, Call, bind_arguments, part_kind_from_mime_type, parts_from_input
from a2a_fabric.core.errors import UpstreamRefused
from a2a_fabric.core.json_text import decode_json_text, find_problem_of_texts
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.result import Answer, Answers, Event, Part, Result, artifact, make_input_required, status, token
from a2a_fabric.runtimes.acp.client import ACPAwaitRequest, ACPMessage, ACPMessagePart, ACPRun
from a2a_fabric.runtimes.prompt import (
    question_from_text,
    read_answer_content,
    result_from_messages,
)

_TEXT = "text/plain"
_JSON = "application/json"
_BYTES = "application/octet-stream"


def build_message(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def message_from_call(call: Call, capability: Capability | None) -> dict[str, Any]:
    """Text first, then arguments, then attachments."""
    text, arguments = _split_text_and_arguments(call, capability)
    parts = [text_part(text)] if text else []
    if arguments:
        parts.append(json_part(arguments))
    parts += [_render_part(part) for part in parts_from_input(call.input)]
    return build_message(parts or [text_part("")])


def _split_text_and_arguments(call: Call, capability: Capability | None) -> tuple[str, dict[str, Any]]:
    """With a schema, the text is the argument `task`, or the only argument, if that is a string."""
    if capability is None or capability.input_schema is None:
        return call.input.task, call.input.context
    arguments = {name: value for name, value in bind_arguments(capability, call.input).items() if name != ATTACHMENTS}
    name = "task" if "task" in arguments else next(iter(arguments)) if len(arguments) == 1 else ""
    if isinstance(arguments.get(name), str):
        return arguments.pop(name), arguments
    return "", arguments


def text_part(text: str) -> dict[str, Any]:
    return {"content_type": _TEXT, "content": text}


def json_part(value: Any) -> dict[str, Any]:
    return {"content_type": _JSON, "content": msgspec.json.encode(value).decode()}


def _render_part(part: Part) -> dict[str, Any]:
    fields = {"name": part.name} if part.name else {}
    if part.url is not None:
        return {**fields, "content_type": part.mime_type or _BYTES, "content_url": part.url}
    if part.blob is not None:
        return {
            **fields,
            "content_type": part.mime_type or _BYTES,
            "content": part.blob,
            "content_encoding": "base64",
        }
    if part.text is not None:
        return {**fields, **text_part(part.text), "content_type": part.mime_type or _TEXT}
    if part.kind in ("function_call", "function_result") and isinstance(part.data, dict):
        return {**fields, **json_part(part.data), "metadata": _render_trajectory(part.data)}
    return {**fields, **json_part(part.data)}


def _render_trajectory(data: dict[str, Any]) -> dict[str, Any]:
    """A function call or result as ACP metadata, where input and output are objects."""
    metadata: dict[str, Any] = {"kind": "trajectory", "tool_name": str(data.get("name", ""))}
    if isinstance(data.get("arguments"), dict):
        metadata["tool_input"] = data["arguments"]
    if "result" in data:
        result = data["result"]
        metadata["tool_output"] = result if isinstance(result, dict) else {"result": result}
    return metadata


def message_text(message: ACPMessage) -> str:
    return "".join(part.content or "" for part in message.parts if _is_plain_text(part))


def events_from_part(part: ACPMessagePart) -> list[Event]:
    events = _trajectory_events(part)
    if _is_empty(part) or (events and not _is_plain_text(part)):
        return events
    if _is_plain_text(part):
        return [*events, token(part.content or "")]
    return [artifact(msgspec.to_builtins(_part_from_wire(part)))]


def _trajectory_events(part: ACPMessagePart) -> list[Event]:
    """Events for a tool call or a thought in the part's metadata."""
    metadata = part.metadata or {}
    if metadata.get("kind") != "trajectory":
        return []
    message = str(metadata.get("message") or "")
    if not metadata.get("tool_name"):
        return [status("running", message)] if message else []
    data: dict[str, Any] = {"tool": str(metadata["tool_name"]), "arguments": _dict_or_empty(metadata.get("tool_input"))}
    if metadata.get("tool_output") is not None:
        data["result"] = metadata["tool_output"]
    return [Event("tool_call", {**data, "message": message} if message else data)]


def result_from_output(messages: Sequence[ACPMessage]) -> Result:
    """The result of all output messages, with the citations in them. Raises UpstreamRefused."""
    parts = [part for message in messages for part in message.parts]
    if problem := find_problem_of_texts([part.content or "" for part in parts if part.content_type == _JSON]):
        raise UpstreamRefused(problem)
    result = result_from_messages(*filter(None, map(_parts_from_message, messages)))
    citations = [
        {name: value for name, value in part.metadata.items() if name != "kind" and value is not None}
        for message in messages
        for part in message.parts
        if part.metadata is not None and part.metadata.get("kind") == "citation"
    ]
    if not citations or "citations" in result.data:
        return result
    return msgspec.structs.replace(result, data={**result.data, "citations": citations})


def _parts_from_message(message: ACPMessage) -> list[Part]:
    """The content of a message, with consecutive texts joined."""
    parts: list[Part] = []
    texts: list[str] = []
    for part in message.parts:
        tool, is_plain = _tool_name(part), _is_plain_text(part) and part.content_type in (None, _TEXT)
        if tool or not (is_plain or _is_empty(part)):
            parts += _parts_from_texts(texts)
            texts = []
            parts += _tool_parts(part, tool) if tool else [_part_from_wire(part)]
        if is_plain:
            texts.append(part.content or "")
    return [*parts, *_parts_from_texts(texts)]


def _parts_from_texts(texts: list[str]) -> list[Part]:
    text = "".join(texts)
    return [Part(kind="text", text=text)] if text else []


def _tool_parts(part: ACPMessagePart, tool: str) -> list[Part]:
    """The tool call and its result. A part that `_render_part` wrote is restored as it was."""
    data = _part_from_wire(part).data
    if isinstance(data, dict) and data.get("name") == tool:
        return [Part(kind="function_result" if "result" in data else "function_call", data=data, name=part.name)]
    metadata = part.metadata or {}
    call_part = Part(kind="function_call", data={"name": tool, "arguments": _dict_or_empty(metadata.get("tool_input"))})
    if metadata.get("tool_output") is None:
        return [call_part]
    return [call_part, Part(kind="function_result", data={"name": tool, "result": metadata["tool_output"]})]


def _part_from_wire(part: ACPMessagePart) -> Part:
    media_type = part.content_type or _TEXT
    custom_type = None if media_type in (_TEXT, _JSON) else media_type
    if part.content_url is not None:
        return Part(
            kind=part_kind_from_mime_type(media_type), url=part.content_url, mime_type=media_type, name=part.name
        )
    if part.content_encoding == "base64":
        return Part(
            kind=part_kind_from_mime_type(media_type), blob=part.content or "", mime_type=media_type, name=part.name
        )
    if media_type == _JSON:
        try:
            return Part(kind="json", data=decode_json_text(part.content or ""), name=part.name)
        except (msgspec.DecodeError, RecursionError):
            return Part(kind="text", text=part.content or "", mime_type=_JSON, name=part.name)
    kind = "text" if media_type.startswith("text/") else part_kind_from_mime_type(media_type)
    return Part(kind=kind, text=part.content or "", mime_type=custom_type, name=part.name)


def _is_plain_text(part: ACPMessagePart) -> bool:
    """Whether the part is text of the message; text with a name is a file."""
    media_type = part.content_type or _TEXT
    return (
        media_type.startswith("text/")
        and part.name is None
        and part.content_url is None
        and part.content_encoding in (None, "plain")
    )


def _is_empty(part: ACPMessagePart) -> bool:
    return not part.content and part.content_url is None


def _tool_name(part: ACPMessagePart) -> str:
    metadata = part.metadata or {}
    return str(metadata.get("tool_name") or "") if metadata.get("kind") == "trajectory" else ""


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def result_from_question(run: ACPRun) -> Result:
    await_request = run.await_request or ACPAwaitRequest()
    return make_input_required(
        question_from_text(message_text(await_request.message), msgspec.to_builtins(await_request)), run.run_id
    )


def read_run_id(answers: Answers) -> str:
    """The id of the run that waits for the answers. Raises BadInput."""
    if not _RUN_ID.fullmatch(answers.continuation):
        raise unknown_continuation()
    return answers.continuation


def render_resume(answer: Answer) -> dict[str, Any]:
    content = read_answer_content(answer)
    part = text_part(content) if isinstance(content, str) else json_part(content)
    return {"type": "message", "message": build_message([part])}
