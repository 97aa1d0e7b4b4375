"""A job in words for people, and the commands that they may want next."""

from __future__ import annotations

import shlex
import time
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.completion import job_ids
from a2a_fabric.cli.output import remark
from a2a_fabric.cli.program import NAME

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=job_ids)]

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def ago(moment: float | None) -> str:
    """How long since, in one unit; `in` front of what is still to come."""
    if moment is None:
        return ""
    seconds = time.time() - moment
    return f"in {span(-seconds)}" if seconds < -1 else f"{span(max(0.0, seconds))} ago"


def span(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def clipped(text: str, most: int = 200) -> str:
    """On one line, and not more than a glance."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def questions_of(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a parked job's agent wants to know, by key."""
    return dict((job.get("input_required") or {}).get("questions") or {})


def explain_questions(job: dict[str, Any], url: str | None = None) -> None:
    """For a person: what is asked, and how to answer, at the `url` that they named if they named one."""
    asked = questions_of(job)
    for key, question in asked.items():
        remark(f"{job['agent_id']} asks ({key}): {question.get('message') or question.get('kind', '')}")
    given = " ".join(f"{key}={_form(question)}" for key, question in asked.items())
    remark(f"Answer with: {NAME} jobs answer {job['job_id']} {given}{_there(url)}")


def _form(question: dict[str, Any]) -> str:
    """Where an answer goes; a form shows its fields."""
    fields = (question.get("schema") or {}).get("properties") or {}
    return "'{" + ", ".join(f'"{name}": …' for name in fields) + "}'" if fields else "…"


def come_back(job_id: str, after: int = 0, url: str | None = None) -> str:
    """The command that goes on watching, at the `url` that was named if one was."""
    return f"{NAME} jobs follow {job_id}" + (f" --after {after}" if after else "") + _there(url)


def _there(url: str | None) -> str:
    return f" --url {shlex.quote(url)}" if url else ""
