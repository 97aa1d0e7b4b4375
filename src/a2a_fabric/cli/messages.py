"""`a2a-fabric messages`: send, receive, acknowledge and publish messages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from a2a_fabric.cli.connection import complete_agent_ids, connect, run_request
from a2a_fabric.cli.options import Json, Token, Url, parse_value
from a2a_fabric.cli.output import format_value, print_json, print_line, print_table, remark
from a2a_fabric.cli.program import NAME

Inbox = Annotated[
    str | None,
    typer.Option("--agent", metavar="AGENT", help="Whose inbox; default: yours.", autocompletion=complete_agent_ids),
]
Sender = Annotated[
    str | None, typer.Option("--from", metavar="AGENT", help="The sender: an agent of yours; default: you.")
]
Payload = Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON or text.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

_RECEIVE_TIMEOUT = 90.0  # seconds; longer than --wait may be


def send_message(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The receiver.", autocompletion=complete_agent_ids)],
    payload: Payload,
    kind: Annotated[str, typer.Option("--type", metavar="WORD", help="task, response, event, …")] = "task",
    sender: Sender = None,
    priority: Annotated[str, typer.Option(metavar="WORD", help="low, normal, high or urgent.")] = "normal",
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long the message waits to be received.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Put a message into an agent's inbox.

    Example: a2a-fabric messages send percy '{"note": "call me"}'
    """
    arguments = {"to_agent": agent, "payload": parse_value(payload), "message_type": kind, "from_agent": sender}
    options = {"priority": priority, "ttl_seconds": ttl}
    result = _run_operation("send", {**arguments, **options}, url, token, as_json=as_json)
    if not as_json:
        print_line(f"{result['message_id']}  {result['status']}")


def receive_messages(
    agent: Inbox = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="The most messages to receive.")] = 10,
    wait: Annotated[
        float, typer.Option(min=0, max=60, metavar="SECONDS", help="Wait so long if the inbox is empty.")
    ] = 0.0,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge them at once.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Receive the messages of an inbox.

    A message that is not acknowledged is delivered again after half a minute.

    Example: a2a-fabric messages receive --agent percy --ack
    """
    arguments = {"agent_id": agent, "count": count, "block_ms": round(wait * 1000), "auto_ack": ack}
    result = _run_operation("receive", arguments, url, token, as_json=as_json, timeout=_RECEIVE_TIMEOUT)
    if as_json:
        return
    if not result["messages"]:
        remark("The inbox is empty. Wait for a message with: --wait SECONDS")
        return
    rows = [
        (message["_stream_id"], message["from_agent"], message["message_type"], format_value(message["payload"]))
        for message in result["messages"]
    ]
    print_table(("number", "from", "type", "payload"), rows)
    if not ack:
        agent_option = f" --agent {agent}" if agent else ""
        remark(f"Acknowledge with: {NAME} messages ack{agent_option} {' '.join(row[0] for row in rows)}")


def ack_messages(
    numbers: Annotated[list[str], typer.Argument(metavar="NUMBER", help="As `receive` shows them.")],
    agent: Inbox = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Acknowledge messages that were received.

    Example: a2a-fabric messages ack --agent percy "$NUMBER"
    """
    arguments = {"agent_id": agent, "message_ids": numbers}
    result = _run_operation("acknowledge", arguments, url, token, as_json=as_json)
    for each in () if as_json else result["acknowledged"]:
        print_line(f"{each['id']}  {'acknowledged' if each['acked'] else 'not found'}")


def publish_message(
    topic: Topic,
    payload: Payload,
    sender: Sender = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Put a message into every inbox that subscribed to a topic.

    Example: a2a-fabric messages publish analytics.insights '{"visitors": 12}'
    """
    arguments = {"topic": topic, "message": parse_value(payload), "from_agent": sender}
    result = _run_operation("publish", arguments, url, token, as_json=as_json)
    if not as_json:
        print_line(f"{result['topic']}  {result['recipients']} inboxes")
        if result.get("full"):
            remark(f"{result['full']} inboxes did not get the message, because they are full.")


def subscribe_inbox(
    topic: Topic,
    agent: Inbox = None,
    off: Annotated[bool, typer.Option("--off", help="Unsubscribe.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Subscribe an inbox to a topic, or unsubscribe it.

    Example: a2a-fabric messages subscribe analytics.insights --agent percy
    """
    operation = "unsubscribe" if off else "subscribe"
    result = _run_operation(operation, {"topic": topic, "agent_id": agent}, url, token, as_json=as_json)
    if not as_json:
        verb = "subscribed to" if result["subscribed"] else "unsubscribed from"
        print_line(f"{result['agent_id']}  {verb} {result['topic']}")


def show_message_status(
    message_id: Annotated[str, typer.Argument(help="The id of a message that you sent.")],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show whether a message was delivered, and why not.

    Example: a2a-fabric messages status msg_0123
    """
    result = _run_operation("status", {"message_id": message_id}, url, token, as_json=as_json)
    if as_json:
        return
    to, delivery = ", ".join(result["to"]) or "no inbox", result["delivery"]
    if delivery is None:
        print_line(f"{result['message_id']}  to {to}: waiting in the inbox, or delivered long ago")
        return
    print_line(f"{result['message_id']}  to {to}: {delivery['status']}, attempts: {delivery['attempts']}")
    if error := delivery.get("error"):
        print_line(f"{error['message']} ({error['code']})")


def show_queue(agent: Inbox = None, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show how many messages wait in an inbox.

    Example: a2a-fabric messages queue --agent percy
    """
    result = _run_operation("queue_status", {"agent_id": agent}, url, token, as_json=as_json)
    if not as_json:
        info = result["stream_info"]
        print_line(f"{info['inbox']}  {info['waiting']} waiting, {info['held']} received and not acknowledged")


def _run_operation(
    name: str, arguments: dict[str, Any], url: str | None, token: str | None, *, as_json: bool, timeout: float = 60.0
) -> dict[str, Any]:
    """Run `fabric.message.NAME`, and print its result if it is to be JSON."""
    client = connect(url, token, timeout)
    result: dict[str, Any] = run_request(
        client, lambda node: node.operation(f"fabric.message.{name}", **arguments), as_json=as_json
    )
    if as_json:
        print_json(result)
    return result
