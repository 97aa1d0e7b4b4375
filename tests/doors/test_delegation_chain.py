"""Every door reads the delegation chain that comes with a call, refuses a circle, and says what is no chain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest
import websockets
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_fabric.core.propagation import DELEGATION_HEADER, DELEGATION_META_KEY, encode_chain_header, make_chain_entry
from tests.doors.a2a_clients import message
from tests.fixtures.mcp_raw import Session, last_message, modern
from tests.fixtures.mcp_servers.serving import EVERYDAY
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy
from tests.marks import requirement
from tests.runtimes.fabric_nodes import QUIET

DOORS = [
    {"kind": "fabric"},
    {"kind": "mcp"},
    {"kind": "a2a", "grpc": "127.0.0.1:0"},
    {"kind": "directory"},
    {"kind": "rest"},
]
HOME = {"node_id": "home", **QUIET, "doors": DOORS}
ME, OTHER = make_chain_entry("home", "percy"), make_chain_entry("home", "caller")
Chain = list[str] | str  # a list goes into the message, text into the header
Ask = Callable[[Node, Chain], Awaitable[str]]


def split(chain: Chain) -> tuple[dict[str, str], list[str] | None]:
    """Headers, and what stands in the message."""
    return ({DELEGATION_HEADER: chain}, None) if isinstance(chain, str) else ({}, chain)


async def by_wire(node: Node, chain: Chain) -> str:
    headers, given = split(chain)
    arguments: dict[str, Any] = {"agent_id": "percy", "capability": "reason", "task": "?"}
    arguments |= {"delegation_chain": given} if given is not None else {}
    body = {"name": "fabric.call", "arguments": arguments}
    return (await node.send("POST", "/mcp/call", json=body, headers=headers)).body.decode()


async def by_socket(node: Node, chain: Chain) -> str:
    headers, given = split(chain)
    arguments: dict[str, Any] = {"agent_id": "percy", "capability": "reason", "task": "?"}
    arguments |= {"delegation_chain": given} if given is not None else {}
    try:
        async with websockets.connect(
            node.url.replace("http", "ws", 1) + "/mcp/call",
            additional_headers={"Authorization": f"Bearer {PSK}", **headers},
        ) as socket:
            await socket.send(json.dumps({"id": 1, "name": "fabric.call", "arguments": arguments}))
            return str(await socket.recv())
    except websockets.InvalidStatus as refused:
        return bytes(refused.response.body or b"").decode()


def _tool(given: list[str] | None, name: str) -> dict[str, Any]:
    meta = {} if given is None else {"_meta": {DELEGATION_META_KEY: given}}
    return {"name": name, "arguments": {"task": "?"}, **meta}


def by_stateless_mcp(path: str, name: str) -> Ask:
    async def ask(node: Node, chain: Chain) -> str:
        headers, given = split(chain)
        meta = {} if given is None else {DELEGATION_META_KEY: given}
        for _ in range(2):  # the SDK's way first, then the short one
            head, body = modern("tools/call", {"name": name, "arguments": {"task": "?"}}, meta=meta)
            async with node.client.post(node.url + path, json=body, headers={**head, **headers}) as reply:
                told = await reply.text()
        return told

    return ask


def by_session(path: str, name: str) -> Ask:
    async def ask(node: Node, chain: Chain) -> str:
        headers, given = split(chain)
        async with Session(node, path=path) as session:
            told = []
            for number in (1, 2):
                body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": _tool(given, name)}
                async with session.post(body, **headers) as reply:
                    told.append(json.dumps(last_message(await reply.text())))
            assert ("AUTH_DENIED" in told[0]) == ("AUTH_DENIED" in told[1])
            return told[1]

    return ask


async def by_mcp_socket(node: Node, chain: Chain) -> str:
    headers, given = split(chain)
    try:
        async with websockets.connect(
            node.url.replace("http", "ws", 1) + "/mcp/ws",
            additional_headers={"Authorization": f"Bearer {PSK}", **headers},
        ) as socket:
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}))
            await socket.recv()
            await socket.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _tool(given, "percy_reason")}
            await socket.send(json.dumps(call))
            return str(await socket.recv())
    except websockets.InvalidStatus as refused:
        return bytes(refused.response.body or b"").decode()


def _message(given: list[str] | None) -> dict[str, Any]:
    passed = {} if given is None else {DELEGATION_META_KEY: given}
    return message("?", metadata={"skill": "reason", **passed})


async def by_a2a(node: Node, chain: Chain) -> str:
    headers, given = split(chain)
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": _message(given)}}
    headers["A2A-Version"] = "1.0"
    return (await node.send("POST", "/agents/percy", json=body, headers=headers)).body.decode()


async def by_a2a_http(node: Node, chain: Chain) -> str:
    headers, given = split(chain)
    headers["A2A-Version"] = "1.0"
    reply = await node.send("POST", "/agents/percy/message:send", json={"message": _message(given)}, headers=headers)
    return reply.body.decode()


async def by_a2a_grpc(node: Node, chain: Chain) -> str:
    headers, given = split(chain)
    card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
    place = next(each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    metadata = (("authorization", f"Bearer {PSK}"), ("x-a2a-agent", "percy"), *headers.items())
    async with grpc.aio.insecure_channel(place.rpartition("/")[2]) as channel:
        send = channel.unary_unary(
            "/lf.a2a.v1.A2AService/SendMessage",
            request_serializer=pb.SendMessageRequest.SerializeToString,
            response_deserializer=pb.SendMessageResponse.FromString,
        )
        try:
            request = ParseDict({"message": _message(given)}, pb.SendMessageRequest())
            return json.dumps(MessageToDict(await send(request, metadata=metadata, timeout=WAIT_TIMEOUT)))
        except grpc.aio.AioRpcError as error:
            return f"{error.code()}: {error.details()}"


async def by_directory(node: Node, chain: Chain) -> str:
    params = {"taskId": f"t-{len(chain)}-{id(chain)}", "action": "reason", "agentId": "percy", "input": {"task": "?"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "a2a/task", "params": params}
    return (await node.send("POST", "/a2a/task", json=body, headers=split(chain)[0])).body.decode()


async def by_rest(node: Node, chain: Chain) -> str:
    body = {"agentId": "percy", "capability": "reason", "input": {"task": "?"}}
    reply = await node.send("POST", "/v1/tasks", json=body, headers=split(chain)[0])
    if reply.status != 201:
        return reply.body.decode()
    return await _finished(node, reply.json["id"])


async def by_message(node: Node, chain: Chain) -> str:
    body = {"parts": [{"type": "text", "content": "?"}], "metadata": {"capability": "reason"}}
    reply = await node.send("POST", "/v1/agents/percy/messages", json=body, headers=split(chain)[0])
    if reply.status != 201:
        return reply.body.decode()
    return await _finished(node, reply.json["metadata"]["delivery"]["task_id"])


def by_rpc_face(method: str) -> Ask:
    async def ask(node: Node, chain: Chain) -> str:
        parts = [{"type": "text", "content": "?"}]
        given: dict[str, Any] = {"agentId": "percy", "parts": parts, "capability": "reason"}
        if method == "executeTask":
            given = {"task": {"agentId": "percy", "name": "reason", "input": {"task": "?"}}}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
        reply = await node.send("POST", "/", json=body, headers=split(chain)[0])
        if isinstance(reply.json.get("result"), str):
            return await _finished(node, reply.json["result"])
        return reply.body.decode()

    return ask


async def _finished(node: Node, task_id: str) -> str:
    seen: list[str] = []

    async def is_over() -> bool:
        reply = await node.send("GET", f"/v1/tasks/{task_id}")
        seen.append(reply.body.decode())
        return reply.json["status"] in ("completed", "failed")

    await eventually(is_over)
    return seen[-1]


BY_HEADER: dict[str, Ask] = {
    "fabric wire": by_wire,
    "fabric socket": by_socket,
    "mcp stateless": by_stateless_mcp("/mcp", "percy_reason"),
    "mcp stateless fabric.call": by_stateless_mcp("/mcp", "percy_reason"),
    "mcp session": by_session("/mcp", "percy_reason"),
    "mcp socket": by_mcp_socket,
    "agent's mcp stateless": by_stateless_mcp("/agents/percy/mcp", "reason"),
    "agent's mcp session": by_session("/agents/percy/mcp", "reason"),
    "a2a json-rpc": by_a2a,
    "a2a http": by_a2a_http,
    "a2a grpc": by_a2a_grpc,
    "directory": by_directory,
    "rest tasks": by_rest,
    "rest messages": by_message,
    "rpc face: messages": by_rpc_face("sendMessage"),
    "rpc face: tasks": by_rpc_face("executeTask"),
}
IN_MESSAGE = [name for name in BY_HEADER if name.startswith(("fabric", "mcp", "agent's", "a2a"))]
WAYS = [*((name, "header") for name in BY_HEADER), *((name, "message") for name in IN_MESSAGE)]


def as_sent(chain: list[str], place: str) -> Chain:
    return encode_chain_header(tuple(chain)) if place == "header" else chain


@requirement("001-20")
@pytest.mark.parametrize(("door", "place"), WAYS)
async def test_the_chain_is_read_and_goes_on_to_the_agent(door: str, place: str) -> None:
    percy = Percy()
    async with running(percy.agent, config=HOME) as node, asyncio.timeout(WAIT_TIMEOUT):
        told = await BY_HEADER[door](node, as_sent(["afar", OTHER], place))
        assert percy.calls, told
        assert percy.calls[-1].delegation_chain == ("afar", OTHER, ME)


@requirement("001-20")
@pytest.mark.parametrize(("door", "place"), WAYS)
async def test_a_call_that_comes_back_for_the_same_agent_is_refused(door: str, place: str) -> None:
    percy = Percy()
    async with running(percy.agent, config=HOME) as node, asyncio.timeout(WAIT_TIMEOUT):
        for chain in ([ME], [ME, OTHER], ["home", "afar"]):
            told = await BY_HEADER[door](node, as_sent(chain, place))
            assert "already" in told, told
            assert not percy.calls


@pytest.mark.parametrize(("door", "place"), WAYS)
async def test_what_is_no_chain_is_bad_input(door: str, place: str) -> None:
    percy = Percy()
    async with running(percy.agent, config=HOME) as node, asyncio.timeout(WAIT_TIMEOUT):
        for chain in (["x" * 300], ["n"] * 65):
            told = await BY_HEADER[door](node, as_sent(chain, place))
            assert "chain" in told, told
            assert "passed" not in told, told
            assert not percy.calls


async def test_an_invented_chain_costs_its_author_a_call_and_other_callers_nothing() -> None:
    percy, second = Percy(), Percy("second")
    config = {**HOME, "health": {"interval": 0, "failures": 1}}
    async with running(percy.agent, second.agent, config=config) as node:
        assert (await node.ask("percy", "reason"))["ok"]
        for chain in ([ME], ["home", "x"], [f"n{number}" for number in range(40)]):
            for _ in range(5):
                refused = await node.ask("percy", "reason", delegation_chain=chain)
                assert refused["error_code"] == "AUTH_DENIED"
        envelope = await node.ask("percy", "reason", "still here")
        assert envelope["result"]["answer"] == "still here"
        assert "fallback" not in envelope or envelope["fallback"] is None
        listed = (await node.operation("fabric.agent.describe", {"agent_id": "percy"}))["result"]["agent"]
        assert listed["status"] == "online"


@pytest.mark.parametrize(
    "ask", [by_stateless_mcp("/agents/tools/mcp", "headers"), by_session("/agents/tools/mcp", "headers")]
)
async def test_what_goes_through_to_a_program_brings_its_chain(ask: Ask) -> None:
    """The program's tool tells what `_meta` held; the caller's own chain is longer by the node's entry."""
    manifest = {"agent_id": "tools", "runtime": "mcp", "endpoint": {"command": EVERYDAY}}
    async with running(manifests=[manifest], config=HOME) as node, asyncio.timeout(WAIT_TIMEOUT):
        told = await ask(node, ["afar"])
        assert f'"chain":["afar","{make_chain_entry("home", "tools")}"]' in told.replace(" ", ""), told
