"""`a2a-fabric messages`: send, receive, acknowledge and publish messages."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from a2a_fabric.cli.connection import complete_agent_ids, connect, run_request
from a2a_fabric.cli.job_text import format_value
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import print_json, print_line, print_table, remark
from a2a_fabric.cli.program import NAME

Inbox = Annotated[
    str | None,
    typer.Option("--agent", metavar="AGENT", help="Whose inbox; default: your own.", autocompletion=complete_agent_ids),
]
Sender = Annotated[
    str | None, typer.Option("--from", metavar="AGENT", help="In whose name: an agent of yours; default: you.")
]
Payload = Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON if it is, else text.")]


def parse_payload(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def send_message(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose inbox.", autocompletion=complete_agent_ids)],
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
    arguments = {"to_agent": agent, "payload": parse_payload(payload), "message_type": kind, "from_agent": sender}
    options = {"priority": priority, "ttl_seconds": ttl}
    result = run_request(
        connect(url, token), lambda node: node.operation("fabric.message.send", **arguments, **options), as_json=as_json
    )
    if as_json:
        print_json(result)
    else:
        print_line(f"{result['message_id']}  {result['status']}")


def receive_messages(
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
    arguments = {"agent_id": agent, "count": count, "block_ms": round(wait * 1000), "auto_ack": ack}
    result = run_request(
        connect(url, token, 90.0), lambda node: node.operation("fabric.message.receive", **arguments), as_json=as_json
    )
    if as_json:
        print_json(result)
        return
    if not result["messages"]:
        remark("Nothing waits.")
        return
    rows = [
        (each["_stream_id"], each["from_agent"], each["message_type"], format_value(each["payload"]))
        for each in result["messages"]
    ]
    print_table(("number", "from", "type", "payload"), rows)
    if not ack:
        agent_option = f" --agent {agent}" if agent else ""
        remark(f"Acknowledge with: {NAME} messages ack{agent_option} {' '.join(row[0] for row in rows)}")


def acknowledge_messages(
    numbers: Annotated[list[str], typer.Argument(metavar="NUMBER", help="As `receive` shows them.")],
    agent: Inbox = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Be done with messages that were received.

    Example: a2a-fabric messages ack --agent percy "$NUMBER"
    """
    arguments = {"agent_id": agent, "message_ids": numbers}
    result = run_request(
        connect(url, token), lambda node: node.operation("fabric.message.acknowledge", **arguments), as_json=as_json
    )
    if as_json:
        print_json(result)
        return
    for each in result["acknowledged"]:
        print_line(f"{each['id']}  {'done' if each['acked'] else 'not there'}")


def publish_message(
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
    arguments = {"topic": topic, "message": parse_payload(payload), "from_agent": sender}
    result = run_request(
        connect(url, token), lambda node: node.operation("fabric.message.publish", **arguments), as_json=as_json
    )
    if as_json:
        print_json(result)
    else:
        print_line(f"{result['topic']}  {result['recipients']} inboxes")
        if result.get("full"):
            remark(f"{result['full']} did not get it: their inboxes are full.")


def subscribe_inbox(
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
    arguments = {"topic": topic, "agent_id": agent}
    result = run_request(connect(url, token), lambda node: node.operation(name, **arguments), as_json=as_json)
    if as_json:
        print_json(result)
    else:
        print_line(f"{result['agent_id']}  {'subscribed to' if result['subscribed'] else 'left'} {result['topic']}")


def show_message_status(
    message_id: Annotated[str, typer.Argument(help="Of a message that you sent.")],
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show what became of a message that was sent to an agent, and why.

    Example: a2a-fabric messages status msg_0123
    """
    arguments = {"message_id": message_id}
    result = run_request(
        connect(url, token), lambda node: node.operation("fabric.message.status", **arguments), as_json=as_json
    )
    if as_json:
        print_json(result)
        return
    to, delivery = ", ".join(result["to"]) or "nobody", result["delivery"]
    if delivery is None:
        print_line(f"{result['message_id']}  to {to}: it waits in an inbox, or its delivery is no longer remembered")
        return
    print_line(f"{result['message_id']}  to {to}: {delivery['status']}, attempts: {delivery['attempts']}")
    if error := delivery.get("error"):
        print_line(f"{error['message']} ({error['code']})")


def show_queue(agent: Inbox = None, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show how much waits in an inbox.

    Example: a2a-fabric messages queue --agent percy
    """
    arguments = {"agent_id": agent}
    result = run_request(
        connect(url, token), lambda node: node.operation("fabric.message.queue_status", **arguments), as_json=as_json
    )
    if as_json:
        print_json(result)
        return
    info = result["stream_info"]
    print_line(f"{info['inbox']}  {info['waiting']} waiting, {info['held']} received and not acknowledged")
