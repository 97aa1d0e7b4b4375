"""Tasks that wait for input or credentials, as questions; the answer is a message to the same task."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from a2a_fabric.core.content import join_text
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.question import Answer, Answers, Question
from a2a_fabric.core.result import Result, make_input_required
from a2a_fabric.runtimes.a2a.reply_buffer import Parts, ReplyBuffer, parts_to_json
from a2a_fabric.runtimes.prompt import ANSWER_KEY, question_from_text, read_answer_content

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
