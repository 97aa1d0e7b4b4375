"""What the commands on messages share: whose inbox it is, and what is said."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.completion import agent_ids

Inbox = Annotated[
    str | None,
    typer.Option("--agent", metavar="AGENT", help="Whose inbox; default: your own.", autocompletion=agent_ids),
]
Sender = Annotated[
    str | None, typer.Option("--from", metavar="AGENT", help="In whose name: an agent of yours; default: you.")
]
Payload = Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON if it is, else text.")]


def payload_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text
