"""Sources that send wrong credentials again and again are slowed down; other callers are not."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import websockets
from a2a.types import a2a_pb2, a2a_pb2_grpc

from a2a_fabric.agent import Agent
from a2a_fabric.identity.failed_attempts import FailedAttempts
from a2a_fabric.testing import FakeClock
from tests.fixtures.node import WAIT_TIMEOUT, Node, running
from tests.marks import requirement

HEALTH = {"name": "fabric.health", "arguments": {}}
WRONG = "a-wrong-key"
PATHS = ("/mcp/call", "/mcp", "/v1/messages", "/a2a", "/search", "/agents/percy/message:send")


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def greet(task: str) -> dict[str, Any]:
        return {"answer": "hello"}

    return agent


async def guess_by_socket(node: Node, path: str) -> int:
    try:
        await websockets.connect(node.url.replace("http", "ws", 1) + path, additional_headers={"X-API-Key": WRONG})
    except websockets.InvalidStatus as refused:
        return refused.response.status_code
    return 101


async def guess_by_grpc(node: Node) -> Any:
    card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
    place = next(each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    async with grpc.aio.insecure_channel(place.removeprefix("http://")) as channel:
        service = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            metadata = (("authorization", f"Bearer {WRONG}"),)
            await service.GetTask(a2a_pb2.GetTaskRequest(id="x"), metadata=metadata, timeout=WAIT_TIMEOUT)
        except grpc.aio.AioRpcError as refused:
            return refused.code()


@requirement("001-58")
async def test_refusals_wait_at_every_door_and_the_owner_does_not() -> None:
    doors = [{"kind": kind} for kind in ("fabric", "mcp", "rest", "directory", "discovery")]
    config = {
        "limits": {"failed_attempts_per_minute": 1},
        "doors": [*doors, {"kind": "a2a", "grpc": "127.0.0.1:0"}],
    }
    async with running(percy(), config=config) as node:
        assert (await node.send("POST", "/mcp/call", token=WRONG, json=HEALTH)).status == 401  # the free one
        guesses = [asyncio.ensure_future(node.send("POST", path, token=WRONG, json={})) for path in PATHS]
        by_socket = [asyncio.ensure_future(guess_by_socket(node, path)) for path in ("/mcp/ws", "/mcp/call")]
        by_grpc = asyncio.ensure_future(guess_by_grpc(node))
        assert (await node.send("POST", "/mcp/call", json=HEALTH)).status == 200
        assert (await node.send("POST", "/mcp/call", token=None, json=HEALTH)).status == 401  # no attempt at all
        assert not any(each.done() for each in (*guesses, *by_socket, by_grpc))  # from the same address
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert {reply.status for reply in await asyncio.gather(*guesses)} == {401}
            assert set(await asyncio.gather(*by_socket)) == {401}
            assert await by_grpc == grpc.StatusCode.UNAUTHENTICATED
        assert (await node.send("POST", "/mcp/call", json=HEALTH)).status == 200


def test_sources_are_networks_and_recover() -> None:
    clock = FakeClock()
    attempts = FailedAttempts(2, clock)
    assert [attempts.find_delay("2001:db8::1"), attempts.find_delay("2001:db8::2")] == [0.0, 0.0]
    assert attempts.find_delay("2001:db8::3") > 0  # the same network
    assert attempts.find_delay("2001:db8:0:1::3") == 0.0
    assert [attempts.find_delay("::ffff:192.0.2.1"), attempts.find_delay("192.0.2.1")] == [0.0, 0.0]
    assert attempts.find_delay("192.0.2.1") > 0
    assert attempts.find_delay("192.0.2.2") == 0.0
    clock.advance(60)
    assert attempts.find_delay("2001:db8::1") == 0.0
