"""Document 002: tasks sent to the address that the directory gives away for an agent, plainly or as a stream.

A task is a job, which goes on without its sender; so a client that leaves says `a2a/cancel`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from a2a_fabric.core.propagation import new_id
from tests.fixtures.node import PSK, Node
from tests.matrix.door_client import DoorClient, Hear, Outcome, Question, fallback_of, parts_of, words_of

HEADERS = {"Authorization": f"Bearer {PSK}"}


class Directory(DoorClient):
    def __init__(self, node: Node) -> None:
        self._node = node

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        task_id = f"matrix-{new_id()}"
        method = "a2a/stream" if question.stream else "a2a/task"
        try:
            async with self._post(question.agent, method, params_of(question, task_id)) as response:
                if not question.stream:
                    return outcome_of(await response.json())
                async for told in events_of(response):
                    if "method" not in told:
                        return outcome_of(told)
                    if said := words_of(told["params"]["event"], told["params"]["data"]):
                        hear(said)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(question.agent, task_id))
            raise
        raise AssertionError("the stream ended without an answer")

    def _post(self, agent: str, method: str, params: dict[str, Any]) -> Any:
        body = {"jsonrpc": "2.0", "id": params["taskId"], "method": method, "params": params}
        return self._node.client.post(f"{self._node.url}/a2a/agents/{agent}/rpc", json=body, headers=HEADERS)

    async def _cancel(self, agent: str, task_id: str) -> None:
        async with self._post(agent, "a2a/cancel", {"taskId": task_id}) as response:
            await response.read()

    async def aclose(self) -> None:
        """The node's fixture owns the connections."""


def params_of(question: Question, task_id: str) -> dict[str, Any]:
    """Words and attachments stand beside the arguments."""
    given = dict(question.arguments)
    if question.task:
        given["task"] = question.task
    if question.attachments:
        given["attachments"] = msgspec.to_builtins(question.attachments)
    params = {"taskId": task_id, "action": question.capability, "sender": "matrix", "input": given}
    return params if question.timeout is None else {**params, "timeoutMs": round(question.timeout * 1000)}


def outcome_of(reply: dict[str, Any]) -> Outcome:
    """A failure is an error to those who wait, and an output to those who look on."""
    if "error" in reply:
        return Outcome(code=reply["error"]["data"]["code"], message=reply["error"]["data"]["detail"])
    result = reply["result"]
    if result["status"] != "completed":
        error = result["output"]["error"]
        return Outcome(code=error["code"], message=error["message"])
    output = dict(result["output"])
    beside = output.pop("_fabric", {})
    return Outcome(answer=output, parts=parts_of(beside.get("parts")), fallback=fallback_of(beside.get("fallback")))


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
