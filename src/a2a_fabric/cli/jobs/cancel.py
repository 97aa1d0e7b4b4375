"""`a2a-fabric jobs cancel`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.completion import job_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.client.client import FabricClient
from a2a_fabric.core.store_errors import JobNotFound


def run(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The jobs' ids.", autocompletion=job_ids)],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Cancel jobs; their agents are told.

    A job that has ended stays as it is. One that runs ends a moment later.

    Example: a2a-fabric jobs cancel "$JOB"
    """

    missing: list[JobNotFound] = []

    async def question(node: FabricClient) -> list[dict[str, Any]]:
        found = []
        for job in jobs:
            try:
                found.append(await node.job(job).cancel())
            except JobNotFound as error:  # the others are to be cancelled all the same
                missing.append(error)
        if missing and not found:
            raise missing[0]
        return found

    found = ask(connect(url, token), question, as_json=as_json)
    if as_json:
        more = {"not_found": [error.details.get("job_id") for error in missing]} if missing else {}
        print_json({"jobs": found, "count": len(found), **more})
    else:
        _show(found, missing)
    if missing:
        raise typer.Exit(1)


def _show(found: list[dict[str, Any]], missing: list[JobNotFound]) -> None:
    for job in found:
        print_line(f"{job['job_id']}  {job['state']}")
        if job["ended_at"] is None:
            remark("Its agent was asked to stop.")
        elif not job["cancel_requested"]:
            remark("It had ended already.")
    for error in missing:
        remark(f"Error: {error.message}")
