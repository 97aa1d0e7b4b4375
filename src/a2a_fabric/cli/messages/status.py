"""`a2a-fabric messages status`"""

from __future__ import annotations

from typing import Annotated

import typer

from a2a_fabric.cli.connection import ask, connect
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line


def run(
    message_id: Annotated[str, typer.Argument(help="Of a message that you sent.")],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show what became of a message that was sent to an agent, and why.

    Example: a2a-fabric messages status msg_0123
    """
    asked = {"message_id": message_id}
    found = ask(connect(url, token), lambda node: node.operation("fabric.message.status", **asked), as_json=as_json)
    if as_json:
        print_json(found)
        return
    to, delivery = ", ".join(found["to"]) or "nobody", found["delivery"]
    if delivery is None:
        print_line(f"{found['message_id']}  to {to}: it waits in an inbox, or its delivery is no longer remembered")
        return
    print_line(f"{found['message_id']}  to {to}: {delivery['status']}, attempts: {delivery['attempts']}")
    if error := delivery.get("error"):
        print_line(f"{error['message']} ({error['code']})")
