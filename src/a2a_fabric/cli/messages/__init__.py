"""`a2a-fabric messages`"""

from __future__ import annotations

from typing import ClassVar

from a2a_fabric.cli.table import Commands, Row

__all__ = ["GROUP", "run"]


class Messages(Commands):
    default = "receive"
    table: ClassVar = {
        "send": Row("a2a_fabric.cli.messages.send", "Put a message into an agent's inbox."),
        "receive": Row("a2a_fabric.cli.messages.receive", "Fetch what waits in an inbox."),
        "ack": Row("a2a_fabric.cli.messages.ack", "Be done with messages that were received."),
        "publish": Row("a2a_fabric.cli.messages.publish", "Put a message into every inbox that subscribed to a topic."),
        "subscribe": Row("a2a_fabric.cli.messages.subscribe", "Let an inbox get what is published under a topic."),
        "status": Row("a2a_fabric.cli.messages.status", "Show what became of a message to an agent, and why."),
        "queue": Row("a2a_fabric.cli.messages.queue", "Show how much waits in an inbox."),
    }


GROUP = Messages


def run() -> None:
    """Send, receive and acknowledge messages; publish under topics.

    What is received and not acknowledged comes again.

    Example: a2a-fabric messages send percy '{"note": "call me"}'
    """
