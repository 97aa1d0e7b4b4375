"""`a2a-fabric messages subscribe`"""

from __future__ import annotations

from typing import Annotated

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.messages.words import Inbox
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line


def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")],
    agent: Inbox = None,
    off: Annotated[bool, typer.Option("--off", help="No longer.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Let an inbox get what is published under a topic from now on.

    Example: a2a-fabric messages subscribe analytics.insights --agent percy
    """
    name = "fabric.message.unsubscribe" if off else "fabric.message.subscribe"
    asked = {"topic": topic, "agent_id": agent}
    done = ask(connect(url, token), lambda node: node.operation(name, **asked), as_json=as_json)
    if as_json:
        print_json(done)
    else:
        print_line(f"{done['agent_id']}  {'subscribed to' if done['subscribed'] else 'left'} {done['topic']}")
