"""`a2a-fabric messages queue`"""

from __future__ import annotations

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.messages.words import Inbox
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line


def run(agent: Inbox = None, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show how much waits in an inbox.

    Example: a2a-fabric messages queue --agent percy
    """
    asked = {"agent_id": agent}
    found = ask(
        connect(url, token), lambda node: node.operation("fabric.message.queue_status", **asked), as_json=as_json
    )
    if as_json:
        print_json(found)
        return
    info = found["stream_info"]
    print_line(f"{info['inbox']}  {info['waiting']} waiting, {info['held']} received and not acknowledged")
