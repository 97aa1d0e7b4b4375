"""`a2a-fabric jobs retry`"""

from __future__ import annotations

from typing import Any

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import JobId, come_back
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.client.client import FabricClient


def run(job: JobId, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Run an ended job's call again, as a new job.

    Prints the new job's id. The old one stays as it is.

    Example: a2a-fabric jobs retry "$JOB"
    """

    async def question(node: FabricClient) -> dict[str, Any]:
        return await (await node.job(job).retry()).status()

    again = ask(connect(url, token), question, as_json=as_json)
    if as_json:
        print_json(again)
        return
    print_line(again["job_id"])
    remark(f"Follow it with: {come_back(again['job_id'], url=url)}")
