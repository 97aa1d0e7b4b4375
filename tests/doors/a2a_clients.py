"""Clients of the A2A door: the official SDK over each binding, and raw requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.types import SendMessageRequest, StreamResponse
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_fabric.core.propagation import new_id
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, Reply
from tests.fixtures.plain import TRUSTS_NO_PROXY

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
KEY = {"Authorization": f"Bearer {PSK}"}
WITH_KEY = ClientCallContext(service_parameters={"authorization": f"Bearer {PSK}"})


@asynccontextmanager
async def connected(
    node: Node, agent_id: str | None, binding: str, *, streaming: bool = False, polling: bool = False
) -> AsyncIterator[Client]:
    """A client made from the agent's own card."""
    base = node.url if agent_id is None else f"{node.url}/agents/{agent_id}"
    async with connected_to(base, binding, streaming=streaming, polling=polling) as client:
        yield client


@asynccontextmanager
async def connected_to(
    base: str, binding: str, *, streaming: bool = False, polling: bool = False
) -> AsyncIterator[Client]:
    """A client of any agent, at a node or elsewhere."""
    async with httpx.AsyncClient(headers=KEY, timeout=WAIT_TIMEOUT, verify=TRUSTS_NO_PROXY) as http:
        card = await A2ACardResolver(http, base).get_agent_card()
        config = ClientConfig(
            httpx_client=http,
            supported_protocol_bindings=[binding],
            streaming=streaming,
            polling=polling,
            grpc_channel_factory=grpc.aio.insecure_channel,
        )
        client = ClientFactory(config).create(card)
        try:
            yield client
        finally:
            await client.close()


def message(*parts: dict[str, Any] | str, skill: str | None = None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "messageId": new_id(),
        "role": "ROLE_USER",
        "parts": [{"text": part} if isinstance(part, str) else part for part in parts],
        **more,
    }
    return {**made, "metadata": {"skill": skill}} if skill else made


def request(said: dict[str, Any], **configuration: Any) -> SendMessageRequest:
    given: dict[str, Any] = {"message": said}
    if configuration:
        given["configuration"] = configuration
    return ParseDict(given, SendMessageRequest())


async def told(client: Client, asked: SendMessageRequest) -> list[dict[str, Any]]:
    """Everything that the client hears in answer to a message."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        return [plain(event) async for event in client.send_message(asked, context=WITH_KEY)]


def plain(event: StreamResponse | Any) -> dict[str, Any]:
    return MessageToDict(event)


async def rpc(
    node: Node,
    method: str,
    params: Any,
    *,
    agent: str = "percy",
    version: str | None = "1.0",
    **more: Any,
) -> dict[str, Any]:
    """The reply's JSON."""
    reply = await raw(node, method, params, agent=agent, version=version, **more)
    answer: dict[str, Any] = reply.json
    assert answer["jsonrpc"] == "2.0"
    return answer


async def raw(
    node: Node,
    method: str,
    params: Any,
    *,
    agent: str = "percy",
    version: str | None = "1.0",
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Reply:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    said = {"A2A-Version": version} if version is not None else {}
    return await node.send("POST", f"/agents/{agent}", json=body, headers={**said, **(headers or {})}, **more)


def frames(body: bytes) -> list[tuple[int | None, dict[str, Any]]]:
    """Events of a stream: the id of each, and its JSON."""
    found: list[tuple[int | None, dict[str, Any]]] = []
    for block in body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in lines:
            number = int(lines["id"]) if "id" in lines else None
            found.append((number, json.loads(lines["data"])))
    return found
