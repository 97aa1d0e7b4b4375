"""A run that waits for a message is a question; the answer is that message. The run's id brings it back."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from a2a_fabric.core.question import Answer, Answers
from a2a_fabric.core.result import Result, asking
from a2a_fabric.runtimes.acp.content import json_part, message_of, text_of, text_part
from a2a_fabric.runtimes.acp.wire import AwaitRequest, Run
from a2a_fabric.runtimes.one_question import asked_in_words, content_of, unknown_continuation

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def asked_by(run: Run) -> Result:
    awaited = run.await_request or AwaitRequest()
    return asking(asked_in_words(text_of(awaited.message), msgspec.to_builtins(awaited)), run.run_id)


def run_asked(answers: Answers) -> str:
    """The run that waits for these. Raises BadInput."""
    if not _RUN_ID.fullmatch(answers.continuation):
        raise unknown_continuation()
    return answers.continuation


def resuming(answer: Answer) -> dict[str, Any]:
    """The message that the run waits for."""
    content = content_of(answer)
    part = text_part(content) if isinstance(content, str) else json_part(content)
    return {"type": "message", "message": message_of([part])}
