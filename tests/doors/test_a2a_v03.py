"""The A2A door with clients of version 0.3: its own SDK over JSON-RPC and HTTP, and its gRPC service."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.doors.a2a_agents import adder, percy
from tests.doors.a2a_clients import message
from tests.fixtures.environments import NotInstalled, python_of
from tests.fixtures.node import PSK, Node, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAM = Path(__file__).parent / "a2a_v03_client.py"
WAIT_TIMEOUT = 90.0  # for a program with a large SDK


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    doors = [{"kind": "a2a", "grpc": "127.0.0.1:0"}]
    async with running(percy(), adder(), config={"doors": doors}) as node:
        yield node


async def seen_by_old_client(node: Node, transport: str) -> dict[str, Any]:
    try:
        interpreter = await asyncio.to_thread(python_of, "a2a-0.3")
    except NotInstalled as exc:
        pytest.skip(f"the environment of the SDK 0.3 cannot be made: {exc}")
    arguments = [str(PROGRAM), f"{node.url}/agents/percy", PSK, transport]
    process = await asyncio.create_subprocess_exec(interpreter, *arguments, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(WAIT_TIMEOUT):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    seen: dict[str, Any] = json.loads(out)
    return seen


@pytest.mark.parametrize("transport", ["JSONRPC", "HTTP+JSON"])
async def test_a_client_of_0_3_does_everything_that_it_can(node: Node, transport: str) -> None:
    seen = await seen_by_old_client(node, transport)
    assert {"shout", "paint"} <= {skill["id"] for skill in seen["card"]["skills"]}
    task = seen["sent"][-1]["task"]
    assert task["status"]["state"] == "completed"
    assert task["artifacts"][0]["parts"] == [{"kind": "data", "data": {"text": "HELLO", "times": 3}}]
    assert seen["got"]["id"] == task["id"]
    assert (seen["asked"]["state"], seen["asked"]["message"]["parts"]) == (
        "input-required",
        [{"kind": "text", "text": "Which colour?"}],
    )
    assert seen["answered"][-1]["task"]["status"]["message"]["parts"][0]["text"] == "Which size?"
    assert seen["cancelled"] == "canceled"
    events = [each["event"] for each in seen["streamed"]]
    assert events == [None, "status-update", *["artifact-update"] * 4, "status-update"]
    words = [part["text"] for part in seen["streamed"][-1]["task"]["artifacts"][0]["parts"]]
    assert "".join(words) == "one two three "
    assert "-32001" in seen["missing"] or "404" in seen["missing"]


async def test_the_grpc_service_of_0_3_reaches_the_gateway_and_by_metadata_an_agent(node: Node) -> None:
    card = (await node.send("GET", "/.well-known/agent-card.json")).json
    [address] = [each["url"] for each in card["additionalInterfaces"] if each["transport"] == "GRPC"]
    said = message(skill="add")
    del said["parts"]
    said["content"] = [{"data": {"data": {"a": 1, "b": 2}}}]
    asked = ParseDict({"message": said}, pb.SendMessageRequest())
    key = ("authorization", f"Bearer {PSK}")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        some: list[tuple[tuple[str, str], ...]] = [(key,), (key, ("x-a2a-agent", "adder"))]
        for metadata in some:
            reply = MessageToDict(await stub.SendMessage(asked, metadata=metadata))
            assert reply["task"]["artifacts"][0]["parts"] == [{"data": {"data": {"sum": 3.0}}}]
        for wrong, code in (((), "UNAUTHENTICATED"), ((key, ("x-a2a-agent", "nobody")), "NOT_FOUND")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.SendMessage(asked, metadata=wrong)
            assert refused.value.code() == grpc.StatusCode[code]


async def test_a_card_over_grpc_of_0_3_names_the_address_of_grpc(node: Node) -> None:
    card = (await node.send("GET", "/.well-known/agent-card.json")).json
    [address] = [each["url"] for each in card["additionalInterfaces"] if each["transport"] == "GRPC"]
    metadata = (("authorization", f"Bearer {PSK}"), ("x-a2a-agent", "adder"))
    async with grpc.aio.insecure_channel(address) as channel:
        stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        found = await stub.GetAgentCard(pb.GetAgentCardRequest(), metadata=metadata)
    assert (found.name, found.url, found.preferred_transport) == ("adder", address, "GRPC")
