"""`a2a-fabric jobs cancel`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.completion import job_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.client.client import FabricClient


def run(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="The jobs' ids.", autocompletion=job_ids)],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Cancel jobs; their agents are told.

    A job that has ended stays as it is. One that runs ends a moment later.

    Example: a2a-fabric jobs cancel "$JOB"
    """

    async def question(node: FabricClient) -> list[dict[str, Any]]:
        return [await node.job(job).cancel() for job in jobs]

    found = ask(connect(url, token), question, as_json=as_json)
    if as_json:
        print_json({"jobs": found, "count": len(found)})
        return
    for job in found:
        print_line(f"{job['job_id']}  {job['state']}")
        if job["ended_at"] is None:
            remark("Its agent was asked to stop.")
