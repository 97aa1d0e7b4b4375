"""What a caller answers, held against what the agent asked: one word under each question's key, and no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.errors import BadInput, nearest
from a2a_fabric.core.job import Job
from a2a_fabric.core.question import Answer


def check_answers(job: Job, answers: Mapping[str, Answer]) -> None:
    """Raises BadInput for what was not asked, and for what is left unanswered; an agent may also ask without keys."""
    left = job.unanswered
    if left is None or job.question is None or not job.question["questions"]:
        return
    asked = job.question["questions"]
    for key in answers:
        if key not in asked:
            raise BadInput(
                f"answers: nobody asked {key[:64]!r}{nearest(key, asked)}; asked: {_listed(left.questions)}",
                field="answers",
            )
    missing = left.questions.keys() - answers.keys()
    if missing:
        raise BadInput(f"answers: {_listed(missing)} missing; to leave one open, decline it", field="answers")


def all_said(job: Job, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """All that was answered, with what was said before."""
    before = job.answer if job.state == "input_required" else None
    return {**(before or {}), **msgspec.to_builtins(answers)}


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))[:300]
