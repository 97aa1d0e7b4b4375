"""The content of the messages to an A2A agent: a call, or the answer to a task that waits for input or credentials.

The task is a text part, typed arguments are a data part, attachments are parts of their own; the skill is
named in the message's metadata. An agent that does not read data parts gets its arguments as JSON text."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import ATTACHMENTS, KIND_KEY, Call, bind_arguments, join_text, parts_from_input
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.result import (
    Answer,
    Answers,
    OriginalMessage,
    Part,
    PassedOnAnswer,
    Question,
    Result,
    make_input_required,
)
from a2a_fabric.protocols.a2a.models import (
    ORIGINAL_PROTOCOL,
    A2AMessage,
    A2ATask,
    A2ATaskStatus,
    AgentsReply,
    CallersMessage,
    WirePart,
    is_a2a,
    parse_part,
    render_part,
)
from a2a_fabric.runtimes.a2a.reply_buffer import Parts, ReplyBuffer, parts_to_json
from a2a_fabric.runtimes.prompt import ANSWER_KEY, question_from_text, read_answer_content

SKILL_KEY = "skill"


def read_callers_message(call: Call) -> CallersMessage | None:
    """The caller's question, or answer, as it was written; None if the caller does not speak A2A."""
    original = _find_original_answer(call.answers) if call.answers else call.original
    if not is_a2a(original):
        return None
    return msgspec.convert(original.content, CallersMessage)


def content_from_message(message: A2AMessage) -> list[dict[str, Any]]:
    """What is signed of a message: the content of each part, and nothing else, the same in all versions of A2A."""
    if message.raw is None:
        return [_content_from_part(part) for part in message.parts]
    return [_content_from_raw(part) for part in message.raw.get("parts") or ()]


def _content_from_part(part: Part) -> dict[str, Any]:
    if part.text is not None:
        return {"text": part.text}
    if part.url is not None:
        return {"url": part.url}
    return {"raw": part.blob} if part.blob is not None else {"data": part.data}


def _content_from_raw(part: dict[str, Any]) -> dict[str, Any]:
    file = part.get("file") or part  # 0.3 has bytes and addresses of files one level deeper
    fields = {
        "text": part.get("text"),
        "url": file.get("url", file.get("uri")),
        "raw": file.get("raw", file.get("bytes")),
    }
    content = {name: value for name, value in fields.items() if value is not None}
    return content or {"data": part.get("data")}


def _find_original_answer(answers: Answers) -> OriginalMessage | msgspec.UnsetType:
    originals = (each.original for each in answers.answers.values() if isinstance(each, PassedOnAnswer))
    return next(originals, msgspec.UNSET)


def original_from_buffer(buffer: ReplyBuffer, result: Result) -> OriginalMessage:
    """The agent's own message or task, for a caller that speaks A2A, too."""
    has_parts = bool(result.parts)
    if buffer.message is not None:
        reply = AgentsReply(message=msgspec.structs.replace(buffer.message, parts=() if has_parts else buffer.parts))
    else:
        artifacts = buffer.artifacts
        task = A2ATask(
            id=buffer.task_id,
            status=A2ATaskStatus(state=buffer.state, message=buffer.status_message),
            artifacts=tuple(msgspec.structs.replace(each, parts=()) for each in artifacts) if has_parts else artifacts,
            metadata=buffer.metadata,
        )
        reply = AgentsReply(task=task, part_counts=tuple(len(each.parts) for each in artifacts) if has_parts else ())
    return OriginalMessage(protocol=ORIGINAL_PROTOCOL, content=msgspec.to_builtins(reply))


def parts_from_call(call: Call, capability: Capability | None, *, takes_json: bool) -> tuple[Part, ...]:
    """Text, arguments, attachments, in this order; always at least one part."""
    parts = [Part(kind="text", text=call.input.task)] if call.input.task else []
    arguments = _select_arguments(call, capability)
    if arguments:
        parts.append(_arguments_part(arguments, takes_json=takes_json))
    parts += parts_from_input(call.input)
    return tuple(parts) or (_arguments_part({}, takes_json=takes_json),)


def raw_with_bound_text(callers_message: CallersMessage, call: Call, capability: Capability | None) -> dict[str, Any]:
    """The caller's message. If its text stands for an argument, a data part has that argument beside the others."""
    raw, dialect = callers_message.message, callers_message.dialect
    arguments = _select_arguments(call, capability)
    if capability is None or capability.input_schema is None or not _has_bound_text(call, arguments):
        return raw
    field = "content" if dialect == "0.3 proto" else "parts"
    wire_parts = []
    data_part = Part(kind="json")
    for wire_part in raw.get(field, ()):
        part = parse_part(msgspec.convert(wire_part, WirePart), dialect)
        if part is not None and part.kind == "json" and isinstance(part.data, dict) and KIND_KEY not in part.meta:
            data_part = msgspec.structs.replace(part, meta={**part.meta, **data_part.meta})
        else:
            wire_parts.append(wire_part)
    wire_parts.append(render_part(msgspec.structs.replace(data_part, data=arguments), dialect))
    return {**raw, field: wire_parts}


def _has_bound_text(call: Call, arguments: dict[str, Any]) -> bool:
    text = call.input.task
    return bool(text) and any(name not in call.input.context and arguments[name] == text for name in arguments)


def _select_arguments(call: Call, capability: Capability | None) -> dict[str, Any]:
    """The arguments beside the text; with a schema the text may be bound to one of them."""
    if capability is None or capability.input_schema is None:
        typed_arguments = call.input.arguments
        is_typed = typed_arguments is not msgspec.UNSET and typed_arguments.get("context") is not call.input.context
        return typed_arguments if is_typed and typed_arguments is not msgspec.UNSET else call.input.context
    arguments = bind_arguments(capability, call.input)
    if call.input.attachments and ATTACHMENTS not in call.input.context:  # attachments are parts of their own
        arguments = {name: value for name, value in arguments.items() if name != ATTACHMENTS}
    return arguments


def _arguments_part(arguments: dict[str, Any], *, takes_json: bool) -> Part:
    if takes_json:
        return Part(kind="json", data=arguments)
    return Part(kind="text", text=msgspec.json.encode(arguments).decode())


_MAX_MESSAGE = 4000
_DECLINED_TEXT = "The question was declined."
_DONE_TEXT = "Done."


class A2AContinuation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which task waits, and whether it waits for a login rather than for input."""

    task_id: str
    context_id: str = ""
    is_auth: bool = False


def result_from_question(buffer: ReplyBuffer) -> Result:
    is_auth = buffer.state == "auth-required"
    waiting = A2AContinuation(buffer.task_id, buffer.context_id, is_auth)
    encoded = base64.urlsafe_b64encode(msgspec.json.encode(waiting)).decode()
    return make_input_required(_build_questions(buffer, is_auth=is_auth), encoded)


def _build_questions(buffer: ReplyBuffer, *, is_auth: bool) -> dict[str, Question]:
    text = join_text(buffer.status_parts)[:_MAX_MESSAGE]
    params: dict[str, Any] = {"taskId": buffer.task_id, "contextId": buffer.context_id, "state": buffer.state}
    if buffer.status_parts:
        params["parts"] = parts_to_json(buffer.status_parts)
    if is_auth and (url := _find_url(buffer.status_parts)) is not None:
        return {ANSWER_KEY: Question(kind="url", message=text or "Log in first", params={**params, "url": url})}
    text = text or ("The agent needs credentials" if is_auth else "")
    if (schema := _find_schema(buffer.status_parts)) is not None:
        return {ANSWER_KEY: Question(kind="form", message=text, schema=schema, params=params)}
    return question_from_text(text, params)


def _find_url(status_parts: Parts) -> str | None:
    for part in status_parts:
        if part.url is not None:
            return part.url
        if isinstance(part.data, dict):
            candidates = (part.data.get(name) for name in ("url", "authUrl", "auth_url", "authorizationUrl"))
            if (link := next((url for url in candidates if isinstance(url, str)), None)) is not None:
                return link
    return None


def _find_schema(status_parts: Parts) -> dict[str, Any] | None:
    """The schema of a form, which agents send as data if text is not enough."""
    objects = [part.data for part in status_parts if isinstance(part.data, dict)]
    inner = [candidate["schema"] for candidate in objects if isinstance(candidate.get("schema"), dict)]
    return next((candidate for candidate in (*inner, *objects) if _is_form(candidate)), None)


def _is_form(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "object" and isinstance(schema.get("properties"), dict)


def parse_continuation(answers: Answers) -> A2AContinuation:
    """Raises BadInput for a continuation that this runtime did not issue."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(answers.continuation), type=A2AContinuation)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as exc:
        raise unknown_continuation() from exc


def parts_from_answer(answer: Answer, continuation: A2AContinuation) -> tuple[Part, ...]:
    """Text as a text part, a form as data. The agent is also told that a question was declined."""
    if answer.action == "decline":
        return (Part(kind="text", text=_DECLINED_TEXT, meta={"action": "decline"}),)
    content = read_answer_content(answer)
    if content in (None, "", {}):
        if not continuation.is_auth:
            raise BadInput("The agent's question needs an answer with some content", field=f"answers.{ANSWER_KEY}")
        content = _DONE_TEXT
    if isinstance(content, str):
        return (Part(kind="text", text=content),)
    return (Part(kind="json", data=content),)
