"""A task that waits for input or for credentials is a question; its answer is a message to the same task."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part
from a2a_fabric.core.question import Answer, Answers, Question
from a2a_fabric.core.result import Result, asking
from a2a_fabric.runtimes.a2a.gathering import Gathering
from a2a_fabric.runtimes.a2a.growing import shown
from a2a_fabric.runtimes.a2a.result import text_of
from a2a_fabric.runtimes.a2a.said import Parts
from a2a_fabric.runtimes.one_question import KEY, asked_in_words, content_of, unknown_continuation

_WORDS = 4000
_DECLINED = "The question was declined."
_DONE = "Done."


class Continuation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which task waits, and whether for words or for somebody to have logged in."""

    task_id: str
    context_id: str = ""
    is_auth: bool = False


def asked_by(gathering: Gathering) -> Result:
    is_auth = gathering.state == "auth-required"
    waiting = Continuation(gathering.task_id, gathering.context_id, is_auth)
    continuation = base64.urlsafe_b64encode(msgspec.json.encode(waiting)).decode()
    return asking(_questions(gathering, is_auth=is_auth), continuation)


def _questions(gathering: Gathering, *, is_auth: bool) -> dict[str, Question]:
    words = text_of(gathering.words)[:_WORDS]
    params: dict[str, Any] = {"taskId": gathering.task_id, "contextId": gathering.context_id, "state": gathering.state}
    if gathering.words:
        params["parts"] = shown(gathering.words)
    if is_auth and (url := _url_in(gathering.words)) is not None:
        return {KEY: Question(kind="url", message=words or "Log in first", params={**params, "url": url})}
    words = words or ("The agent needs credentials" if is_auth else "")
    if (schema := _schema_in(gathering.words)) is not None:
        return {KEY: Question(kind="form", message=words, schema=schema, params=params)}
    return asked_in_words(words, params)


def _url_in(words: Parts) -> str | None:
    for part in words:
        if part.url is not None:
            return part.url
        if isinstance(part.data, dict):
            named = (part.data.get(name) for name in ("url", "authUrl", "auth_url", "authorizationUrl"))
            if (found := next((url for url in named if isinstance(url, str)), None)) is not None:
                return found
    return None


def _schema_in(words: Parts) -> dict[str, Any] | None:
    """Agents that want more than words send the schema of a form as data."""
    objects = [part.data for part in words if isinstance(part.data, dict)]
    inner = [found["schema"] for found in objects if isinstance(found.get("schema"), dict)]
    return next((found for found in (*inner, *objects) if _is_form(found)), None)


def _is_form(found: dict[str, Any]) -> bool:
    return found.get("type") == "object" and isinstance(found.get("properties"), dict)


def read(answers: Answers) -> Continuation:
    """Raises BadInput for a continuation that is none of ours."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(answers.continuation), type=Continuation)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as exc:
        raise unknown_continuation() from exc


def parts_of_answer(answer: Answer, waiting: Continuation) -> tuple[Part, ...]:
    """Words as text, a form as data. Who declines says so, and the agent may go on without."""
    if answer.action == "decline":
        return (Part(kind="text", text=_DECLINED, meta={"action": "decline"}),)
    content = content_of(answer)
    if content in (None, "", {}):
        if not waiting.is_auth:
            raise BadInput("The agent's question needs an answer with some content", field=f"answers.{KEY}")
        content = _DONE
    if isinstance(content, str):
        return (Part(kind="text", text=content),)
    return (Part(kind="json", data=content),)
