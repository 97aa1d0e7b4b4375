"""The Fabric wire: a POST answered at once, a POST answered with server-sent events, a WebSocket."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import websockets

from tests.fixtures.node import PSK, Node
from tests.matrix.door_client import DoorClient, Hear, Outcome, Question, fallback_of, parts_of, words_of

HEADERS = {"Authorization": f"Bearer {PSK}"}
PLAINLY = {**HEADERS, "Accept": "application/json"}


def arguments_of(question: Question, *, stream: bool) -> dict[str, Any]:
    given = {
        "agent_id": question.agent,
        "capability": question.capability,
        "task": question.task,
        "context": question.arguments,
        "attachments": msgspec.to_builtins(question.attachments),
        "stream": stream,
    }
    return given if question.timeout is None else {**given, "timeout_ms": round(question.timeout * 1000)}


def outcome_of(final: dict[str, Any]) -> Outcome:
    """From an envelope of success, or the `data` of a final event."""
    if not final["ok"]:
        return Outcome(code=final["error"]["code"], message=final["error"]["message"])
    return Outcome(
        answer=final["result"], parts=parts_of(final.get("parts")), fallback=fallback_of(final.get("fallback"))
    )


class Plain(DoorClient):
    def __init__(self, node: Node) -> None:
        self._node = node

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        body = {"name": "fabric.call", "arguments": arguments_of(question, stream=question.stream)}
        async with self._node.client.post(f"{self._node.url}/mcp/call", json=body, headers=PLAINLY) as response:
            envelope = await response.json()
        if not envelope["ok"]:
            return Outcome(code=envelope["error_code"], message=envelope["error"])
        return outcome_of(envelope)

    async def aclose(self) -> None:
        """The node's fixture owns the connections."""


class EventStream(DoorClient):
    def __init__(self, node: Node) -> None:
        self._node = node

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        async with self._node.stream("fabric.call", arguments_of(question, stream=True)) as events:
            async for event in events:
                if event["event"] == "final":
                    return outcome_of(event["data"])
                if said := words_of(event["event"], event["data"]):
                    hear(said)
        raise AssertionError("the stream ended without a final event")

    async def aclose(self) -> None:
        """The node's fixture owns the connections."""


class Socket(DoorClient):
    def __init__(self, node: Node) -> None:
        self._url = node.url.replace("http", "ws", 1) + "/mcp/call"

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        request = {"id": 1, "name": "fabric.call", "arguments": arguments_of(question, stream=True)}
        async with websockets.connect(self._url, additional_headers=HEADERS) as socket:
            await socket.send(json.dumps(request))
            async for message in socket:
                event = json.loads(message)
                if event["event"] == "final":
                    return outcome_of(event["data"])
                if said := words_of(event["event"], event["data"]):
                    hear(said)
        raise AssertionError("the connection ended without a final event")

    async def aclose(self) -> None:
        """Every question has a connection of its own."""
