"""`a2a-fabric messages publish`"""

from __future__ import annotations

from typing import Annotated

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.messages.words import Payload, Sender, payload_of
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, remark


def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")],
    payload: Payload,
    sender: Sender = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Put a message into every inbox that subscribed to a topic.

    Example: a2a-fabric messages publish analytics.insights '{"visitors": 12}'
    """
    asked = {"topic": topic, "message": payload_of(payload), "from_agent": sender}
    done = ask(connect(url, token), lambda node: node.operation("fabric.message.publish", **asked), as_json=as_json)
    if as_json:
        print_json(done)
    else:
        print_line(f"{done['topic']}  {done['recipients']} inboxes")
        if done.get("full"):
            remark(f"{done['full']} did not get it: their inboxes are full.")
