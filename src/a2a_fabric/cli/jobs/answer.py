"""`a2a-fabric jobs answer`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import JobId, come_back, questions_of
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.pairs import pairs_of
from a2a_fabric.client.client import FabricClient
from a2a_fabric.core.errors import BadInput, nearest


def run(
    job: JobId,
    answers: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The answer to each question: JSON if it is, else text."),
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Answer nothing: the agent may go on without.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Answer what a job's agent wants to know, so that it goes on.

    `jobs show` and `jobs follow` say what is asked, under which key.

    Example: a2a-fabric jobs answer "$JOB" name=Ann
    """
    given = pairs_of(answers or [], "KEY=VALUE")
    if bool(given) == decline:
        raise typer.BadParameter("give an answer, or --decline", param_hint="KEY=VALUE")

    async def question(node: FabricClient) -> dict[str, Any]:
        handle = node.job(job)
        return await handle.answer(_answers(await handle.status(), given))

    answered = ask(connect(url, token), question, as_json=as_json)
    if as_json:
        print_json(answered)
        return
    print_line(f"{answered['job_id']}  {answered['state']}")
    remark(f"Follow it with: {come_back(job, answered['events'], url)}")


def _answers(job: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Under each question's key; all are declined if nothing is given. Raises BadInput for a key nobody asked for."""
    asked = questions_of(job)
    if not given:
        return {key: {"action": "decline"} for key in asked} or {"": {"action": "decline"}}
    for key in given:
        if asked and key not in asked:
            raise BadInput(f"'{key}' was not asked{nearest(key, asked)}; asked: {', '.join(asked)}", field=key)
    return {key: {"content": value} for key, value in given.items()}
