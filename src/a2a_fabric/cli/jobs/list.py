"""`a2a-fabric jobs list`"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from a2a_fabric.cli.completion import agent_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import ago
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.core.errors import nearest
from a2a_fabric.core.states import JOB_STATES


def known_states(given: list[str] | None) -> list[str] | None:
    """Raises BadParameter."""
    for word in given or []:
        if word not in JOB_STATES:
            hint = nearest(word, JOB_STATES) or f"; it is one of {', '.join(JOB_STATES)}"
            raise typer.BadParameter(f"'{word}' is no state of a job{hint}")
    return given


def run(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only jobs in this state: " + ", ".join(JOB_STATES) + ". Repeatable.",
            autocompletion=lambda: list(JOB_STATES),
            callback=known_states,
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Only jobs of this agent.", autocompletion=agent_ids)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List your jobs, newest first.

    Example: a2a-fabric jobs list --state running
    """
    found = ask(connect(url, token), lambda node: node.jobs(state, agent, limit), as_json=as_json)
    if as_json:
        print_json({"jobs": found, "count": len(found)})
    elif found:
        print_table(("job", "state", "agent", "capability", "created"), map(_row, found))
        if len(found) == limit:
            remark(f"These are the newest {limit}; see more with --limit.")
    elif state or agent:
        remark("No such jobs.")
    else:
        remark(f"No jobs yet. Make one with: {NAME} call AGENT CAPABILITY TASK --async")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    return job["job_id"], _state(job), job["agent_id"], job["capability"], ago(job["created_at"])


def _state(job: dict[str, Any]) -> str:
    if job["cancel_requested"] and not job["ended_at"]:
        return f"{job['state']} (to be cancelled)"
    waits = job["state"] == "queued" and job["run_at"] > time.time() + 1
    return f"queued {ago(job['run_at'])}" if waits else str(job["state"])
