"""`a2a-fabric jobs`: list, show, answer, cancel and retry jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.connection import complete_agent_ids, complete_job_ids, connect, run_request
from a2a_fabric.cli.follow import JobId, build_follow_command, print_questions, read_questions
from a2a_fabric.cli.options import Json, Token, Url, parse_pairs
from a2a_fabric.cli.output import (
    clip_text,
    format_age,
    format_duration,
    format_value,
    print_fields,
    print_json,
    print_line,
    print_table,
    remark,
)
from a2a_fabric.cli.program import NAME
from a2a_fabric.client.client import FabricClient, JobHandle
from a2a_fabric.client.wire import StreamEvent
from a2a_fabric.core.errors import BadInput, JobNotFound, suggest_nearest
from a2a_fabric.core.job import JOB_STATES

AsOperator = Annotated[
    bool, typer.Option("--as-operator", help="Jobs of all callers. Needs the node's own key, or an operator's.")
]


def check_states(states: list[str] | None) -> list[str] | None:
    """Raises BadParameter."""
    for word in states or []:
        if word not in JOB_STATES:
            hint = suggest_nearest(word, JOB_STATES) or f"; it is one of {', '.join(JOB_STATES)}"
            raise typer.BadParameter(f"'{word}' is not a state of a job{hint}")
    return states


def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only jobs in this state: " + ", ".join(JOB_STATES) + ". Repeatable.",
            autocompletion=lambda: list(JOB_STATES),
            callback=check_states,
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Only jobs of this agent.", autocompletion=complete_agent_ids)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    as_operator: AsOperator = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List your jobs, newest first.

    Example: a2a-fabric jobs list --state running
    """

    async def request(node: FabricClient) -> list[dict[str, Any]]:
        if as_operator:
            return await _list_all_callers(node, state, agent, limit)
        return await node.jobs(state, agent, limit)

    jobs = run_request(connect(url, token), request, as_json=as_json)
    if as_json:
        print_json({"jobs": jobs, "count": len(jobs)})
    elif jobs:
        callers = [(job["owner"],) if as_operator else () for job in jobs]
        columns = ("job", "state", "agent", "capability", "age", *(("caller",) if as_operator else ()))
        print_table(columns, [(*_build_job_row(job), *caller) for job, caller in zip(jobs, callers, strict=True)])
        if len(jobs) == limit:
            remark(f"These are the newest {limit} jobs; see more with --limit.")
    elif state or agent:
        remark(f"No job matches. List all of them with: {NAME} jobs")
    else:
        remark(f"There are no jobs yet. Start one with: {NAME} call AGENT CAPABILITY TASK --async")


async def _list_all_callers(
    node: FabricClient, states: list[str] | None, agent: str | None, limit: int
) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(jobs) < limit:
        page = await node.administer(
            "jobs", states=states or (), agent_id=agent, cursor=cursor, limit=min(500, limit - len(jobs))
        )
        jobs += page["jobs"]
        cursor = page["cursor"]
        if cursor is None:
            break
    return jobs


def _build_job_row(job: dict[str, Any]) -> tuple[str, ...]:
    age = format_duration(max(0.0, time.time() - job["created_at"]))
    return job["job_id"], _describe_state(job), job["agent_id"], job["capability"], age


def _describe_state(job: dict[str, Any]) -> str:
    if job["cancel_requested"] and not job["ended_at"]:
        return f"{job['state']} (cancelling)"
    is_scheduled = job["state"] == "queued" and job["run_at"] > time.time() + 1
    return f"queued {format_age(job['run_at'])}" if is_scheduled else str(job["state"])


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    job: dict[str, Any]
    events: list[dict[str, Any]]
    result: dict[str, Any] | None


def show_job(
    job: JobId,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="The newest N events of its log.")] = 1000,
    as_operator: AsOperator = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show a job, its log and its result.

    Example: a2a-fabric jobs show "$JOB"
    """

    async def request(node: FabricClient) -> JobDetails:
        return await (_read_any_details(node, job, last) if as_operator else _read_details(node.job(job), last))

    details = run_request(connect(url, token), request, as_json=as_json)
    if as_json:
        print_json(details)
        return
    print_fields(_build_fields(details.job))
    if details.events:
        print_line()
        print_table(("number", "after", "event", "what"), _build_event_rows(details.events, details.job["created_at"]))
    for name, value in (details.result or {}).items():
        print_line(f"\n{name}: {format_value(value)}")
    if read_questions(details.job):
        print_questions(details.job, url)


async def _read_details(job: JobHandle, last: int) -> JobDetails:
    """Read the events that exist now; a job that is still running is not waited for."""
    view = await job.status()
    upto = int(view["events"])
    events = [
        {"number": event.number, "at": event.at, "event": event.kind, "data": event.data}
        async for event in _read_log(job, max(0, upto - last), upto)
    ]
    result = (await job.result()).data if view["state"] == "completed" else None
    return JobDetails(job=view, events=events, result=result)


async def _read_any_details(node: FabricClient, job_id: str, last: int) -> JobDetails:
    """As `_read_details`, for the job of any caller."""
    view = (await node.administer("job", job_id=job_id))["job"]
    result = view.pop("result", None)
    upto = int(view["events"])
    events: list[dict[str, Any]] = []
    after = max(0, upto - last)
    while after < upto:
        page = await node.administer("job", job_id=job_id, after=after)
        events += page["events"]
        if not page["events"]:
            break
        after = page["events"][-1]["number"]
    return JobDetails(job=view, events=events, result=None if result is None else result["data"])


async def _read_log(job: JobHandle, after: int, upto: int) -> AsyncGenerator[StreamEvent]:
    if after >= upto:
        return
    async with aclosing(job.events(after)) as events:
        async for event in events:
            yield event
            if event.number >= upto:
                return


def _build_fields(job: dict[str, Any]) -> list[tuple[str, str]]:
    error = job.get("error") or {}
    return [
        ("job", job["job_id"]),
        ("state", job["state"]),
        ("cancelling", "yes" if job["cancel_requested"] and not job["ended_at"] else ""),
        ("error", f"{error['message']} ({error['code']})" if error else ""),
        ("agent", job["agent_id"]),
        ("capability", job["capability"]),
        ("task", clip_text(job.get("task", ""))),
        ("context", clip_text(format_value(job["context"])) if job.get("context") else ""),
        ("priority", job["priority"]),
        ("attempt", str(job["attempt"])),
        ("key", job.get("idempotency_key", "")),
        ("created", format_age(job["created_at"])),
        ("starts", format_age(job["run_at"]) if job["started_at"] is None else ""),
        ("started", format_age(job["started_at"])),
        ("ended", format_age(job["ended_at"])),
        ("expires", format_age(job["expires_at"]) if not job["ended_at"] else ""),
        ("webhook", (job.get("webhook") or {}).get("url", "")),
        ("trace", job["trace_id"] or ""),
    ]


def _build_event_rows(events: Iterable[dict[str, Any]], since: float) -> Iterator[tuple[str, ...]]:
    """Each event with the time since the job was created. Consecutive tokens are one row."""
    for is_token, group in groupby(events, key=lambda event: event["event"] == "token"):
        if is_token:
            tokens = list(group)
            first, last = tokens[0]["number"], tokens[-1]["number"]
            numbers = str(first) if first == last else f"{first}-{last}"
            text = "".join(str(token["data"].get("text", "")) for token in tokens)
            yield numbers, _format_delay(tokens[0], since), "token", text
        else:
            for event in group:
                yield str(event["number"]), _format_delay(event, since), event["event"], _describe_event(event)


def _format_delay(event: dict[str, Any], since: float) -> str:
    elapsed = max(0.0, (event["at"] or since) - since)
    return f"{elapsed:.1f} s" if elapsed < 60 else format_duration(elapsed)


def _describe_event(event: dict[str, Any]) -> str:
    data = event["data"]
    match event["event"]:
        case "status":
            return ": ".join(filter(None, (str(data.get("state") or data.get("status", "")), data.get("message"))))
        case "progress":
            return f"{data.get('percent', 0):.0f} % {data.get('message') or ''}"
    return format_value(data)


def answer_job(
    job: JobId,
    answers: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The answer to each question; VALUE is JSON or text."),
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Decline to answer; the agent may go on without.")] = False,
    as_operator: AsOperator = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Answer the questions of a job's agent, so that the job goes on.

    `jobs show` and `jobs follow` show the questions and their keys.

    Example: a2a-fabric jobs answer "$JOB" name=Ann
    """
    values = parse_pairs(answers or [], "KEY=VALUE")
    if bool(values) == decline:
        raise typer.BadParameter("use either KEY=VALUE or --decline", param_hint="KEY=VALUE")

    async def request(node: FabricClient) -> dict[str, Any]:
        if as_operator:
            view = (await node.administer("job", job_id=job))["job"]
            return await node.administer("job.answer", job_id=job, answers=_build_answers(view, values))
        handle = node.job(job)
        return await handle.answer(_build_answers(await handle.status(), values))

    view = run_request(connect(url, token), request, as_json=as_json)
    if as_json:
        print_json(view)
        return
    print_line(f"{view['job_id']}  {view['state']}")
    remark(f"Follow it with: {build_follow_command(job, view['events'], url)}")


def _build_answers(job: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The answers by key; without values, all questions are declined. Raises BadInput for an unknown key."""
    questions = read_questions(job)
    if not values:
        return {key: {"action": "decline"} for key in questions} or {"": {"action": "decline"}}
    for key in values:
        if questions and key not in questions:
            raise BadInput(
                f"There is no question '{key}'{suggest_nearest(key, questions)}. The questions are: "
                f"{', '.join(questions)}",
                field=key,
            )
    return {key: {"content": value} for key, value in values.items()}


def cancel_jobs(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The jobs' ids.", autocompletion=complete_job_ids)],
    as_operator: AsOperator = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Cancel jobs, and the work of their agents.

    A job that has ended stays as it is. A running job ends a moment later.

    Example: a2a-fabric jobs cancel "$JOB"
    """

    missing: list[JobNotFound] = []

    async def request(node: FabricClient) -> list[dict[str, Any]]:
        cancelled = []
        for job in jobs:
            try:
                cancelled.append(
                    await (node.administer("job.cancel", job_id=job) if as_operator else node.job(job).cancel())
                )
            except JobNotFound as error:  # the other jobs are still cancelled
                missing.append(error)
        if missing and not cancelled:
            raise missing[0]
        return cancelled

    cancelled = run_request(connect(url, token), request, as_json=as_json)
    if as_json:
        not_found = {"not_found": [error.details.get("job_id") for error in missing]} if missing else {}
        print_json({"jobs": cancelled, "count": len(cancelled), **not_found})
    else:
        _print_cancelled(cancelled, missing)
    if missing:
        raise typer.Exit(1)


def _print_cancelled(cancelled: list[dict[str, Any]], missing: list[JobNotFound]) -> None:
    for job in cancelled:
        print_line(f"{job['job_id']}  {job['state']}")
        if job["ended_at"] is None:
            remark("The agent was asked to stop.")
        elif not job["cancel_requested"]:
            remark("The job had ended already.")
    for error in missing:
        remark(f"Error: {error.message}")


def retry_job(
    job: JobId, as_operator: AsOperator = False, as_json: Json = False, url: Url = None, token: Token = None
) -> None:
    """Run the call of an ended job again, as a new job.

    Prints the new job's id. The old job stays as it is.

    Example: a2a-fabric jobs retry "$JOB"
    """

    async def request(node: FabricClient) -> dict[str, Any]:
        if as_operator:
            return await node.administer("job.retry", job_id=job)
        return await (await node.job(job).retry()).status()

    new_job = run_request(connect(url, token), request, as_json=as_json)
    if as_json:
        print_json(new_job)
        return
    print_line(new_job["job_id"])
    remark(f"Follow it with: {build_follow_command(new_job['job_id'], url=url)}")
