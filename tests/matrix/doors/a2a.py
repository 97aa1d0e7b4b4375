"""A2A with the official client: version 1.0 over JSON-RPC, HTTP+JSON and gRPC, and 0.3 as its JSON was written.

A task is a job, which goes on without its sender; so a client that leaves says CancelTask.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import grpc.aio
import httpx
import msgspec
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.errors import AgentCardResolutionError
from a2a.types import CancelTaskRequest, ListTasksRequest, SendMessageRequest
from a2a.utils.errors import A2AError, TaskNotCancelableError
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_fabric.core.call import KIND_KEY, part_from_attachment
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import PART_KINDS, Fallback, Part
from a2a_fabric.protocols.a2a.models import WirePart, parse_part, render_part, restore_integers
from tests.fixtures.node import PSK, Node
from tests.fixtures.plain import TRUSTS_NO_PROXY
from tests.matrix.door_client import WAIT_TIMEOUT, DoorClient, Hear, Outcome, Question, fallback_of
from tests.matrix.shared_context import SharedContext

HEADERS = {"Authorization": f"Bearer {PSK}"}
CONTEXT = ClientCallContext(service_parameters={"authorization": HEADERS["Authorization"]})
ERROR, FALLBACK, PROGRESS = "a2a-fabric/error", "a2a-fabric/fallback", "a2a-fabric/progress"
TIMEOUT = "a2a-fabric/timeout_ms"
Answer = tuple[dict[str, Any], tuple[Part, ...]]


class Hearing:
    """What a client makes of a task's updates, in the form of 1.0."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self.task: dict[str, Any] = {}

    def take(self, told: dict[str, Any]) -> None:
        if "task" in told:
            self.task = told["task"]
        elif "artifactUpdate" in told:
            self._grow(told["artifactUpdate"])
        elif "statusUpdate" in told:
            self._change(told["statusUpdate"])

    def _grow(self, update: dict[str, Any]) -> None:
        new = update["artifact"]
        artifacts = self.task.setdefault("artifacts", [])
        before = next((each for each in artifacts if each["artifactId"] == new["artifactId"]), None)
        if before is None:
            artifacts.append(new)
        elif update.get("append"):
            before["parts"] += new["parts"]
        else:
            before.update(new)
        if not update.get("lastChunk"):
            for part in new["parts"]:
                if "text" in part:
                    self._hear(part["text"])

    def _change(self, update: dict[str, Any]) -> None:
        self.task["status"] = update["status"]
        self.task.setdefault("metadata", {}).update(update.get("metadata", {}))
        if PROGRESS in update.get("metadata", {}) and "message" in update["status"]:
            self._hear(update["status"]["message"]["parts"][0]["text"])

    def outcome(self) -> Outcome:
        status = self.task["status"]
        if "COMPLETED" not in status["state"].upper():
            error = status["message"]["metadata"][ERROR]
            return Outcome(code=error["code"], message=error["message"])
        listed = [part for artifact in self.task.get("artifacts", []) for part in artifact["parts"]]
        answer, parts = read(listed)
        fallback: Fallback | None = fallback_of(self.task.get("metadata", {}).get(FALLBACK))
        return Outcome(answer=answer, parts=parts, fallback=fallback)


def read(listed: list[dict[str, Any]]) -> Answer:
    """Data is the answer, and text its `answer`; everything is a part as well."""
    parts = tuple(_told(parse_part(msgspec.convert(each, WirePart), "1.0")) for each in listed)
    answer: dict[str, Any] = {}
    for part in parts:
        if part.kind == "json" and isinstance(part.data, dict):
            answer.update(part.data)
    words = "".join(part.text or "" for part in parts if part.kind == "text" and KIND_KEY not in part.meta)
    return ({"answer": words, **answer} if words else answer), parts


def _told(part: Part | None) -> Part:
    assert part is not None
    kind = part.meta.get(KIND_KEY)
    return msgspec.structs.replace(part, kind=kind) if kind in PART_KINDS else part


def message_of(question: Question) -> dict[str, Any]:
    """Words, arguments, and what is attached; the latter says so where it could be taken for the former."""
    parts: list[dict[str, Any]] = [{"text": question.task}] if question.task else []
    if question.arguments or not (parts or question.attachments):
        parts.append({"data": question.arguments})
    for attachment in question.attachments:
        part = part_from_attachment(attachment)
        meta = {**part.meta, KIND_KEY: part.kind} if part.kind in ("text", "json") else part.meta
        parts.append(render_part(msgspec.structs.replace(part, meta=meta), "1.0"))
    metadata: dict[str, Any] = {"skill": question.capability}
    if question.timeout is not None:
        metadata[TIMEOUT] = round(question.timeout * 1000)
    said = {"messageId": new_id(), "role": "ROLE_USER", "parts": parts, "metadata": metadata}
    return {**said, "contextId": new_id()}


class OfficialClient(DoorClient):
    """One client for each agent, made from its card."""

    def __init__(self, node: Node, binding: str) -> None:
        self._node = node
        self._binding = binding
        self._clients: dict[str, SharedContext[Client]] = {}

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        try:
            client = await self._client(question.agent)
        except AgentCardResolutionError as error:
            return Outcome(code="no card", message=str(error))
        asked = ParseDict({"message": message_of(question)}, SendMessageRequest())
        context_id = asked.message.context_id
        hearing = Hearing(hear)
        try:
            async for event in client.send_message(asked, context=CONTEXT):
                hearing.take(restore_integers(MessageToDict(event)))
        except A2AError as error:
            return Outcome(code=_code_in(error), message=error.message)
        except asyncio.CancelledError:
            await asyncio.shield(_cancel(client, context_id))
            raise
        return hearing.outcome()

    async def _client(self, agent: str) -> Client:
        if agent not in self._clients:
            self._clients[agent] = SharedContext(lambda: official(self._node, agent, self._binding))
        return await self._clients[agent].get()

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


async def _cancel(client: Client, context_id: str) -> None:
    """A client that leaves at once does not have the task's id yet, but has named the context."""
    listed = await client.list_tasks(ListTasksRequest(context_id=context_id), context=CONTEXT)
    for task in listed.tasks:
        with suppress(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=task.id), context=CONTEXT)


def _code_in(error: A2AError) -> str:
    """Ours stands in the error's details; not every binding of the client hands them on."""
    told = error.data if isinstance(error.data, dict) else {}
    return str(told.get("code") or {"InvalidParamsError": "BAD_INPUT"}.get(type(error).__name__, "no code"))


@asynccontextmanager
async def official(node: Node, agent: str, binding: str) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(headers=HEADERS, timeout=2 * WAIT_TIMEOUT, verify=TRUSTS_NO_PROXY) as http:
        card = await A2ACardResolver(http, f"{node.url}/agents/{agent}").get_agent_card()
        config = ClientConfig(
            httpx_client=http,
            supported_protocol_bindings=[binding],
            grpc_channel_factory=grpc.aio.insecure_channel,
        )
        client = ClientFactory(config).create(card)
        try:
            yield client
        finally:
            await client.close()


class OldJSON(DoorClient):
    """Version 0.3 over JSON-RPC, as its clients put it on the wire: streams, and no version in the head."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def ask(self, question: Question, hear: Hear) -> Outcome:
        message = message_of(question)
        parts = [_as_old(part) for part in message.pop("parts")]
        spoken = {**message, "kind": "message", "role": "user", "parts": parts}
        hearing = Hearing(hear)
        try:
            async with self._post(question.agent, "message/stream", {"message": spoken}) as response:
                async for told in _events(response):
                    if "error" in told:
                        return _refused(told["error"])
                    hearing.take(_as_new(told["result"]))
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(question.agent, message["contextId"]))
            raise
        return hearing.outcome()

    def _post(self, agent: str, method: str, params: dict[str, Any], **more: str) -> Any:
        body = {"jsonrpc": "2.0", "id": new_id(), "method": method, "params": params}
        return self._node.client.post(f"{self._node.url}/agents/{agent}/", json=body, headers={**HEADERS, **more})

    async def _cancel(self, agent: str, context_id: str) -> None:
        """0.3 has no way to ask for tasks whose id one has not heard."""
        wanted = {"contextId": context_id}
        async with self._post(agent, "ListTasks", wanted, **{"A2A-Version": "1.0"}) as response:
            listed = (await response.json())["result"]["tasks"]
        for task in listed:
            async with self._post(agent, "tasks/cancel", {"id": task["id"]}) as response:
                await response.read()

    async def aclose(self) -> None:
        """The node's fixture owns the connections."""


def _refused(error: dict[str, Any]) -> Outcome:
    return Outcome(code=error["data"][0]["metadata"]["code"], message=error["message"])


def _as_old(part: dict[str, Any]) -> dict[str, Any]:
    read_part = parse_part(msgspec.convert(part, WirePart), "1.0", exact=True)
    assert read_part is not None
    return render_part(read_part, "0.3")


def _as_new(told: dict[str, Any]) -> dict[str, Any]:
    """The same in the form of 1.0, so that one reader is enough."""
    names = {"task": "task", "status-update": "statusUpdate", "artifact-update": "artifactUpdate"}
    for artifact in [*told.get("artifacts", []), *([told["artifact"]] if "artifact" in told else [])]:
        artifact["parts"] = [_new_part(part) for part in artifact["parts"]]
    return {names[told["kind"]]: told}


def _new_part(part: dict[str, Any]) -> dict[str, Any]:
    read_part = parse_part(msgspec.convert(part, WirePart), "0.3", exact=True)
    assert read_part is not None
    return render_part(read_part, "1.0")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    if "json" in response.content_type:
        yield await response.json()
        return
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
