"""`a2a-fabric messages send`"""

from __future__ import annotations

from typing import Annotated

import typer

from a2a_fabric.cli.completion import agent_ids
from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.messages.words import Payload, Sender, payload_of
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose inbox.", autocompletion=agent_ids)],
    payload: Payload,
    kind: Annotated[str, typer.Option("--type", metavar="WORD", help="task, response, event, …")] = "task",
    sender: Sender = None,
    priority: Annotated[str, typer.Option(metavar="WORD", help="low, normal, high or urgent.")] = "normal",
    ttl: Annotated[float | None, typer.Option(metavar="SECONDS", help="It waits no longer than this.")] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Put a message into an agent's inbox.

    Example: a2a-fabric messages send percy '{"note": "call me"}'
    """
    asked = {"to_agent": agent, "payload": payload_of(payload), "message_type": kind, "from_agent": sender}
    more = {"priority": priority, "ttl_seconds": ttl}
    sent = ask(
        connect(url, token), lambda node: node.operation("fabric.message.send", **asked, **more), as_json=as_json
    )
    if as_json:
        print_json(sent)
    else:
        print_line(f"{sent['message_id']}  {sent['status']}")
