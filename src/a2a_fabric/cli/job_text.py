"""Times, values and questions of a job as text for people, and the commands to run next."""

from __future__ import annotations

import shlex
import time
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.connection import complete_job_ids
from a2a_fabric.cli.output import remark
from a2a_fabric.cli.program import NAME

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete_job_ids)]

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def format_age(timestamp: float | None) -> str:
    """How long since, in one unit; `in` front of what is still to come."""
    if timestamp is None:
        return ""
    seconds = time.time() - timestamp
    return f"in {format_span(-seconds)}" if seconds < -1 else f"{format_span(max(0.0, seconds))} ago"


def format_span(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def clip_text(text: str, limit: int = 200) -> str:
    """On one line, and not more than a glance."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def read_questions(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a parked job's agent wants to know, by key."""
    return dict((job.get("input_required") or {}).get("questions") or {})


def print_questions(job: dict[str, Any], url: str | None = None) -> None:
    """For a person: what is asked, and how to answer, at the `url` that they named if they named one."""
    questions = read_questions(job)
    for key, question in questions.items():
        remark(f"{job['agent_id']} asks ({key}): {question.get('message') or question.get('kind', '')}")
    placeholders = " ".join(f"{key}={_build_placeholder(question)}" for key, question in questions.items())
    remark(f"Answer with: {NAME} jobs answer {job['job_id']} {placeholders}{_build_url_option(url)}")


def _build_placeholder(question: dict[str, Any]) -> str:
    """Where an answer goes; a form shows its fields."""
    fields = (question.get("schema") or {}).get("properties") or {}
    return "'{" + ", ".join(f'"{name}": …' for name in fields) + "}'" if fields else "…"


def build_follow_command(job_id: str, after: int = 0, url: str | None = None) -> str:
    """The command that goes on watching, at the `url` that was named if one was."""
    return f"{NAME} jobs follow {job_id}" + (f" --after {after}" if after else "") + _build_url_option(url)


def _build_url_option(url: str | None) -> str:
    return f" --url {shlex.quote(url)}" if url else ""
