"""`a2a-fabric messages ack`"""

from __future__ import annotations

from typing import Annotated

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.messages.words import Inbox
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line


def run(
    numbers: Annotated[list[str], typer.Argument(metavar="NUMBER", help="As `receive` shows them.")],
    agent: Inbox = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Be done with messages that were received.

    Example: a2a-fabric messages ack --agent percy "$NUMBER"
    """
    asked = {"agent_id": agent, "message_ids": numbers}
    done = ask(connect(url, token), lambda node: node.operation("fabric.message.acknowledge", **asked), as_json=as_json)
    if as_json:
        print_json(done)
        return
    for each in done["acknowledged"]:
        print_line(f"{each['id']}  {'done' if each['acked'] else 'not there'}")
