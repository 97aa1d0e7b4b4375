"""`a2a-fabric messages receive`"""

from __future__ import annotations

from typing import Annotated

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.jobs.words import value_text
from a2a_fabric.cli.messages.words import Inbox
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_table, remark
from a2a_fabric.cli.program import NAME


def run(
    agent: Inbox = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 10,
    wait: Annotated[float, typer.Option(min=0, max=60, metavar="SECONDS", help="Wait so long for one.")] = 0.0,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge them at once.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Fetch what waits in an inbox. What is not acknowledged comes again after half a minute.

    Example: a2a-fabric messages receive --agent percy --ack
    """
    asked = {"agent_id": agent, "count": count, "block_ms": round(wait * 1000), "auto_ack": ack}
    got = ask(
        connect(url, token, 90.0), lambda node: node.operation("fabric.message.receive", **asked), as_json=as_json
    )
    if as_json:
        print_json(got)
        return
    if not got["messages"]:
        remark("Nothing waits.")
        return
    rows = [
        (each["_stream_id"], each["from_agent"], each["message_type"], value_text(each["payload"]))
        for each in got["messages"]
    ]
    print_table(("number", "from", "type", "payload"), rows)
    if not ack:
        named = f" --agent {agent}" if agent else ""
        remark(f"Acknowledge with: {NAME} messages ack{named} {' '.join(row[0] for row in rows)}")
