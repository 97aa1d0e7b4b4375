"""Document 004: a task is created, and looked at until it is over, or followed by its events.

A task goes on without its caller; so a client that leaves deletes it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from a2a_fabric.runtimes.rest import parts_from_wire
from tests.fixtures.node import PSK, Node
from tests.matrix.door_client import DoorClient, Hear, Outcome, Question, fallback_of, words_of

HEADERS = {"Authorization": f"Bearer {PSK}"}


class RestTasks(DoorClient):
    def __init__(self, node: Node) -> None:
        self._node = node

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        async with self._node.client.post(
            f"{self._node.url}/v1/tasks", json=body_of(question), headers=HEADERS
        ) as reply:
            if reply.status >= 400:
                return refused(await reply.json())
            task = await reply.json()
        address = f"{self._node.url}/v1/tasks/{task['id']}"
        try:
            return outcome_of(await self._ended(address, question, hear))
        except asyncio.CancelledError:
            await asyncio.shield(self._delete(address))
            raise

    async def _ended(self, address: str, question: Question, hear: Hear) -> dict[str, Any]:
        if question.stream:
            return await self._followed(address, hear)
        pause = 0.02
        while True:
            async with self._node.client.get(address, headers=HEADERS) as reply:
                task: dict[str, Any] = await reply.json()
            if task["status"] not in ("pending", "running"):
                return task
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    async def _followed(self, address: str, hear: Hear) -> dict[str, Any]:
        async with self._node.client.get(f"{address}/events", headers=HEADERS) as reply:
            async for line in reply.content:
                if line.startswith(b"data: "):
                    told: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                    if "event" not in told:
                        return told
                    if said := words_of(told["event"], told["data"]):
                        hear(said)
        raise AssertionError("the stream ended without the task")

    async def _delete(self, address: str) -> None:
        async with self._node.client.delete(address, headers=HEADERS) as reply:
            await reply.read()

    async def aclose(self) -> None:
        """The node's fixture owns the connections."""


def body_of(question: Question) -> dict[str, Any]:
    """Words and attachments stand beside the arguments."""
    given = dict(question.arguments)
    if question.task:
        given["task"] = question.task
    if question.attachments:
        given["attachments"] = msgspec.to_builtins(question.attachments)
    body = {"agentId": question.agent, "capability": question.capability, "input": given}
    return body if question.timeout is None else {**body, "timeoutMs": round(question.timeout * 1000)}


def refused(reply: dict[str, Any]) -> Outcome:
    error = reply["error"]
    return Outcome(code=error["details"]["reason"].upper(), message=error["message"])


def outcome_of(task: dict[str, Any]) -> Outcome:
    if task["status"] != "completed":
        return Outcome(code=task["error"]["code"], message=task["error"]["message"])
    fallback = fallback_of(task.get("metadata", {}).get("fallback"))
    return Outcome(answer=task["output"], parts=parts_from_wire(task.get("parts")), fallback=fallback)
