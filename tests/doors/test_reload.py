"""Limits and views that change while the node runs, without a restart."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from a2a_fabric.agent import Agent
from a2a_fabric.core.view import View
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

READER = "the-key-of-a-reader"
JSON_TYPES = {"content-type": "application/json", "accept": "application/json, text/event-stream", "a2a-version": "1.0"}


def edit(node: Node, **sections: Any) -> tuple[str, ...]:
    """Put an edited configuration into effect; what has changed."""
    config = node.fabric.settings.running
    changed = {
        name: msgspec.convert({**msgspec.to_builtins(getattr(config, name)), **section}, type(getattr(config, name)))
        if isinstance(section, dict)
        else msgspec.convert(section, tuple[View, ...])
        for name, section in sections.items()
    }
    outcome = node.fabric.reload(msgspec.structs.replace(config, **changed))
    assert outcome.waiting == ()
    return outcome.applied


def make_agent(agent_id: str) -> tuple[Agent, threading.Event, list[str]]:
    """An agent with a function that blocks its thread until the event is set, and one that answers at once."""
    agent, release, started = Agent(agent_id), threading.Event(), list[str]()

    @agent.capability
    def wait(task: str = "") -> dict[str, Any]:
        started.append(task)
        release.wait(WAIT_TIMEOUT)
        return {"done": task}

    @agent.capability
    async def say(task: str = "1") -> dict[str, Any]:
        return {"text": "x" * int(task or 1)}

    return agent, release, started


async def until_true(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds)


@requirement("001-58")
async def test_limits_on_calls_and_threads_count_at_once() -> None:
    agent, release, started = make_agent("slow")
    limits = {"agent_threads": 1, "share_per_caller": 1.0}
    async with running(agent, config={"limits": limits}) as node:
        calls = [asyncio.ensure_future(node.ask("slow", "wait", str(number))) for number in range(2)]
        await until_true(lambda: len(started) == 1)
        assert edit(node, limits={"agent_threads": 2}) == ("limits.agent_threads",)
        await until_true(lambda: len(started) == 2)  # the call that waited for a thread has one
        edit(node, limits={"concurrent_calls_per_agent": 2})
        refused = await node.ask("slow", "say", "1")
        assert refused["error_code"] == "RATE_LIMITED"
        assert "busy with 2 calls" in refused["error"]
        edit(node, limits={"concurrent_calls_per_agent": 8})
        assert (await node.ask("slow", "say", "1"))["ok"]
        edit(node, limits={"share_per_caller": 0.25})
        refused = await node.ask("slow", "say", "1")
        assert "which is its share" in refused["error"]
        release.set()
        assert all(reply["ok"] for reply in await asyncio.gather(*calls))


async def test_the_size_of_replies_and_the_time_for_the_end_count_at_once() -> None:
    agent, _, _ = make_agent("far")
    async with running(agent) as behind:
        endpoint = {"uri": behind.url, "agent": "far", "psk": PSK}
        manifest = {"agent_id": "near", "runtime": "fabric", "endpoint": endpoint}
        async with running(manifests=[manifest]) as node:
            assert (await node.ask("near", "say", "5000"))["ok"]
            assert edit(node, limits={"reply_bytes": 4096, "drain_seconds": 1.0}) == (
                "limits.reply_bytes",
                "limits.drain_seconds",
            )
            assert not (await node.ask("near", "say", "5000"))["ok"]
            edit(node, limits={"reply_bytes": 65536})
            assert (await node.ask("near", "say", "5000"))["ok"]


@requirement("001-58")
async def test_the_size_of_requests_counts_at_once_at_every_door() -> None:
    agent, _, _ = make_agent("percy")
    doors: list[dict[str, Any]] = [{"kind": kind} for kind in ("fabric", "mcp", "directory")]
    doors.append({"kind": "a2a", "body_bytes": 2048, "grpc": "127.0.0.1:0"})
    async with running(agent, config={"doors": doors, "limits": {"body_bytes": 2048}}) as node:
        call = {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "say", "task": "1"}}
        bodies = {
            "/mcp/call": json.dumps(call),
            "/mcp": json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}),
            "/agents/percy/message:send": "{}",
            "/mcp/register_agent": "{}",
        }

        async def send_all(length: int) -> set[bool]:
            """Whether bodies of this length are too large at each door."""
            replies = [
                await node.send("POST", path, data=body.ljust(length), headers=JSON_TYPES)
                for path, body in bodies.items()
            ]
            return {reply.status == 413 for reply in replies}

        assert await send_all(5000) == {True}
        assert edit(node, limits={"body_bytes": 8192}) == ("limits.body_bytes",)
        assert await send_all(5000) == {False}
        await until_true(lambda: "the gRPC port takes up to 2048 bytes until" in node.log.getvalue())
        assert await send_all(9000) == {True}
        edit(node, limits={"body_bytes": 1024})
        assert await send_all(5000) == {True}


@requirement("001-58")
async def test_cards_say_what_a_client_needs_now() -> None:
    doors = [{"kind": "a2a", "grpc": "127.0.0.1:0"}, {"kind": "rest"}]
    issuer = {"id": "corp", "issuer": "https://login.example", "audience": ["here"]}
    async with running(make_agent("percy")[0], config={"doors": doors}) as node:

        async def read_needs() -> tuple[list[str], str]:
            card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
            agent = (await node.send("GET", "/v1/agents/percy")).json
            return sorted(card.get("securitySchemes", {})), agent["auth"]["type"]

        assert await read_needs() == (["bearer"], "api_key")
        edit(node, auth={"issuers": [issuer]})
        assert await read_needs() == (["bearer", "issuer1"], "api_key")
        edit(node, auth={"issuers": [], "anonymous": True})
        assert await read_needs() == ([], "none")


async def test_a_grpc_port_for_other_machines_never_opens_to_callers_without_credentials() -> None:
    """The node itself listens on loopback, so its anonymous callers are local; those of this port are not."""
    config = {"doors": [{"kind": "a2a", "grpc": "0.0.0.0:0"}]}
    async with running(make_agent("percy")[0], config=config) as node:
        card = (await node.send("GET", "/agents/percy/.well-known/agent-card.json")).json
        [address] = {each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"}
        edit(node, auth={"anonymous": True})
        assert (await node.send("GET", "/agents/percy/tasks", token=None, headers=JSON_TYPES)).status == 200
        async with grpc.aio.insecure_channel(address.replace("0.0.0.0", "127.0.0.1")) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ListTasks(a2a_pb2.ListTasksRequest(), timeout=WAIT_TIMEOUT)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@requirement("001-58")
async def test_views_count_at_once_for_keys_and_addresses() -> None:
    agents = [make_agent(name)[0] for name in ("one", "two")]
    keys = [{"id": "reader", "key": READER, "view": "small"}]
    config = {"views": [{"name": "small", "agents": ["one"]}], "auth": {"keys": keys}}
    async with running(*agents, config=config) as node:

        async def list_ids(path: str = "/mcp/call", token: str | None = READER) -> Any:
            body = {"name": "fabric.agent.list", "arguments": {}}
            reply = await node.send("POST", path, token=token, json=body)
            if not reply.json["ok"]:
                return reply.json["error_code"]
            return sorted(each["agent_id"] for each in reply.json["result"]["agents"])

        assert await list_ids() == ["one"]
        assert await list_ids("/views/other/mcp/call", PSK) == "BAD_INPUT"
        small = {"name": "small", "agents": ["two"]}
        assert edit(node, views=[small, {"name": "other", "agents": ["one"]}]) == ("views",)
        assert await list_ids() == ["two"]
        assert await list_ids("/views/other/mcp/call", PSK) == ["one"]
        edit(node, views=[small])
        assert await list_ids("/views/other/mcp/call", PSK) == "BAD_INPUT"
