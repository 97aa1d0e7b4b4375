"""`a2a-fabric jobs list`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.completion import agent_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import ago
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark
from a2a_fabric.core.errors import nearest
from a2a_fabric.core.states import JOB_STATES


def known_states(given: list[str] | None) -> list[str] | None:
    """Raises BadParameter."""
    for word in given or []:
        if word not in JOB_STATES:
            raise typer.BadParameter(f"'{word}' is no state of a job{nearest(word, JOB_STATES)}")
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
        print_table(("job", "state", "agent", "capability", "created", "events"), map(_row, found))
    else:
        remark("No such jobs.")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    state = f"{job['state']} (to be cancelled)" if job["cancel_requested"] and not job["ended_at"] else job["state"]
    return job["job_id"], state, job["agent_id"], job["capability"], ago(job["created_at"]), str(job["events"])
