"""`a2a-fabric jobs show`"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import JobId, ago, clipped, explain_questions, questions_of, span, value_text
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table
from a2a_fabric.client.client import FabricClient
from a2a_fabric.client.job import JobHandle
from a2a_fabric.client.values import StreamEvent


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    job: dict[str, Any]
    events: list[dict[str, Any]]
    result: dict[str, Any] | None


def run(
    job: JobId,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="So many events of its log, the newest.")] = 1000,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show a job, its log and its result.

    Example: a2a-fabric jobs show "$JOB"
    """

    async def question(node: FabricClient) -> Shown:
        return await _look(node.job(job), last)

    shown = ask(connect(url, token), question, as_json=as_json)
    if as_json:
        print_json(shown)
        return
    print_fields(_fields(shown.job))
    if shown.events:
        print_line()
        print_table(("number", "after", "event", "what"), _rows(shown.events, shown.job["created_at"]))
    for name, value in (shown.result or {}).items():
        print_line(f"\n{name}: {value_text(value)}")
    if questions_of(shown.job):
        explain_questions(shown.job, url)


async def _look(job: JobHandle, last: int) -> Shown:
    """As it is now: a job that goes on is not waited for."""
    view = await job.status()
    upto = int(view["events"])
    events = [
        {"number": event.number, "at": event.at, "event": event.kind, "data": event.data}
        async for event in _log(job, max(0, upto - last), upto)
    ]
    result = (await job.result()).data if view["state"] == "completed" else None
    return Shown(job=view, events=events, result=result)


async def _log(job: JobHandle, after: int, upto: int) -> AsyncGenerator[StreamEvent]:
    if after >= upto:
        return
    async with aclosing(job.events(after)) as events:
        async for event in events:
            yield event
            if event.number >= upto:
                return


def _fields(job: dict[str, Any]) -> list[tuple[str, str]]:
    error = job.get("error") or {}
    return [
        ("job", job["job_id"]),
        ("state", job["state"]),
        ("cancelling", "asked for" if job["cancel_requested"] and not job["ended_at"] else ""),
        ("error", f"{error['message']} ({error['code']})" if error else ""),
        ("agent", job["agent_id"]),
        ("capability", job["capability"]),
        ("task", clipped(job.get("task", ""))),
        ("context", clipped(value_text(job["context"])) if job.get("context") else ""),
        ("priority", job["priority"]),
        ("attempt", str(job["attempt"])),
        ("key", job.get("idempotency_key", "")),
        ("created", ago(job["created_at"])),
        ("begins", ago(job["run_at"]) if job["started_at"] is None else ""),
        ("started", ago(job["started_at"])),
        ("ended", ago(job["ended_at"])),
        ("expires", ago(job["expires_at"]) if not job["ended_at"] else ""),
        ("webhook", (job.get("webhook") or {}).get("url", "")),
        ("trace", job["trace_id"] or ""),
    ]


def _rows(events: Iterable[dict[str, Any]], since: float) -> Iterator[tuple[str, ...]]:
    """Each with the time since the job was made. Tokens that follow one another are one row: people read sentences."""
    for is_token, several in groupby(events, key=lambda event: event["event"] == "token"):
        if is_token:
            words = list(several)
            first, last = words[0]["number"], words[-1]["number"]
            numbers = str(first) if first == last else f"{first}-{last}"
            said = "".join(str(word["data"].get("text", "")) for word in words)
            yield numbers, _later(words[0], since), "token", said
        else:
            yield from ((str(each["number"]), _later(each, since), each["event"], _what(each)) for each in several)


def _later(event: dict[str, Any], since: float) -> str:
    passed = max(0.0, (event["at"] or since) - since)
    return f"{passed:.1f} s" if passed < 60 else span(passed)


def _what(event: dict[str, Any]) -> str:
    data = event["data"]
    match event["event"]:
        case "status":
            return ": ".join(filter(None, (str(data.get("state") or data.get("status", "")), data.get("message"))))
        case "progress":
            return f"{data.get('percent', 0):.0f} % {data.get('message') or ''}"
    return value_text(data)
