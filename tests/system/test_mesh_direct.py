"""Calls between nodes directly over HTTP, and over NATS where that does not work."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.result import progress
from a2a_fabric.web.server import bind_socket
from tests.fixtures.nats import NatsServer, free_port
from tests.fixtures.nats_relay import NatsRelay
from tests.fixtures.node import Node, eventually, running


class Work:
    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.runs = 0


def make_agent(name: str, work: Work) -> Agent:
    agent = Agent(f"of-{name}")

    @agent.capability
    async def echo(task: str) -> dict[str, str]:
        return {"node": name, "task": task}

    @agent.capability
    async def count() -> Any:
        for number in range(3):
            yield progress(number * 10, f"step {number}")
        yield {"node": name}

    @agent.capability
    async def fail() -> None:
        raise ValueError("it failed")

    @agent.capability
    async def rest() -> None:
        work.started.set()
        work.runs += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            work.cancelled.set()
            raise

    return agent


@asynccontextmanager
async def joined(
    name: str, nats: NatsServer, mesh: str, *, url: str | None = "own", work: Work | None = None
) -> AsyncIterator[Node]:
    """A node in this process whose `url` is its own unless another one is given."""
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    own = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = {
        "nats": f"nats://127.0.0.1:{nats.port}", "name": mesh, "key": "a-secret-of-the-mesh",
        "heartbeat_seconds": 5, "direct": {"url": own if url == "own" else url},
    }  # fmt: skip
    config = {"node_id": name, "mesh": settings, "limits": {"body_bytes": 16 << 20, "reply_bytes": 16 << 20}}
    async with running(make_agent(name, work or Work()), config=config, listener=listener) as node:
        yield node


async def wait_until_online(node: Node, name: str) -> None:
    async def is_online() -> bool:
        return node.fabric.registry.health.get(f"of-{name}").status == "online"

    await eventually(is_online)


async def test_calls_go_to_the_port_of_the_other_node_with_events_errors_and_replies_of_any_size(
    nats: NatsServer,
) -> None:
    async with joined("near", nats, "direct") as near, joined("far", nats, "direct") as far:
        await wait_until_online(near, "far")
        assert not far.connections
        for task in ("hi", "x" * 10_000_000):
            arguments = {"agent_id": "of-far", "capability": "echo", "task": task}
            body = io.BytesIO(msgspec.json.encode({"name": "fabric.call", "arguments": arguments}))
            reply = await near.send("POST", "/mcp/call", data=body, headers={"Content-Type": "application/json"})
            envelope = reply.json
            assert envelope["result"] == {"node": "far", "task": task}, str(envelope)[:300]
        assert len(far.connections) == 1  # of the other node
        events = await near.events("of-far", "count")
        steps = [event["data"]["message"] for event in events if event["event"] == "progress"]
        assert steps == ["step 0", "step 1", "step 2"], events
        failed = await near.ask("of-far", "fail")
        assert failed["error_code"] == "UPSTREAM_ERROR", failed
        late = await near.ask("of-far", "rest", timeout_ms=300)
        assert late["error_code"] == "TIMEOUT", late
        assert failed["trace"]["trace_id"] in far.log.getvalue()


async def test_a_caller_that_leaves_cancels_the_work_at_the_other_node(nats: NatsServer) -> None:
    work = Work()
    async with joined("near", nats, "leave") as near, joined("far", nats, "leave", work=work):
        await wait_until_online(near, "far")
        call = asyncio.ensure_future(near.ask("of-far", "rest"))
        async with asyncio.timeout(20):
            await work.started.wait()
            call.cancel()
            await work.cancelled.wait()


async def test_a_node_that_is_not_reached_over_http_is_called_over_nats(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with joined("near", nats, "closed") as near, joined("far", nats, "closed", url=url) as far:
        await wait_until_online(near, "far")
        for _ in range(2):
            assert (await near.ask("of-far", "echo", "hi"))["result"]["node"] == "far"
        assert caplog.text.count("so calls go over NATS for 10 s") == 1
        assert not far.connections


async def test_a_node_without_an_address_is_called_over_nats_and_calls_others_directly(nats: NatsServer) -> None:
    async with joined("near", nats, "one-way", url=None) as near, joined("far", nats, "one-way") as far:
        await wait_until_online(near, "far")
        await wait_until_online(far, "near")
        assert (await near.ask("of-far", "echo", "hi"))["result"]["node"] == "far"
        assert (len(near.connections), len(far.connections)) == (1, 1)  # of the test, and of the node
        assert (await far.ask("of-near", "echo", "hi"))["result"]["node"] == "near"
        assert (len(near.connections), len(far.connections)) == (1, 2)


async def test_a_connection_that_breaks_under_a_call_interrupts_it_and_the_next_call_is_answered(
    nats: NatsServer,
) -> None:
    work = Work()
    taken = bind_socket("127.0.0.1", 0, exact_port=True)
    async with NatsRelay(taken.getsockname()[1]) as relay:
        url = f"http://127.0.0.1:{relay.port}"
        settings = {
            "nats": f"nats://127.0.0.1:{nats.port}", "name": "broken", "key": "a-secret-of-the-mesh",
            "heartbeat_seconds": 5, "direct": {"url": url},
        }  # fmt: skip
        config = {"node_id": "far", "mesh": settings}
        async with (
            joined("near", nats, "broken") as near,
            running(make_agent("far", work), config=config, listener=taken),
        ):
            await wait_until_online(near, "far")
            call = asyncio.ensure_future(near.ask("of-far", "rest"))
            async with asyncio.timeout(20):
                await work.started.wait()
                relay.drop()
                envelope = await call
            assert envelope["error_code"] == "UPSTREAM_ERROR", envelope
            assert "node 'far'" in envelope["error"], envelope
            assert (await near.ask("of-far", "echo", "hi"))["ok"]


@asynccontextmanager
async def giving_up(port: int, started: asyncio.Event) -> AsyncIterator[int]:
    """A proxy before a node that answers 503 itself while the node works on the call. Its port."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, upstream = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, upstream))
        upstream.write(await reader.read(100_000))
        await started.wait()
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def test_a_call_that_may_have_run_is_not_sent_again_over_nats(nats: NatsServer) -> None:
    """Only a refusal of the node itself says that it did not look at the call."""
    work = Work()
    listener = bind_socket("127.0.0.1", 0, exact_port=True)
    async with giving_up(listener.getsockname()[1], work.started) as port, joined("near", nats, "given-up") as near:
        settings = {
            "nats": f"nats://127.0.0.1:{nats.port}", "name": "given-up", "key": "a-secret-of-the-mesh",
            "heartbeat_seconds": 5, "direct": {"url": f"http://127.0.0.1:{port}"},
        }  # fmt: skip
        config = {"node_id": "far", "mesh": settings}
        async with running(make_agent("far", work), config=config, listener=listener):
            await wait_until_online(near, "far")
            envelope = await near.ask("of-far", "rest")
            assert envelope["error_code"] == "UPSTREAM_ERROR", envelope
            assert work.runs == 1
            assert (await near.ask("of-far", "echo", "hi"))["ok"]  # over NATS


async def test_strangers_are_refused_before_their_body_is_read(nats: NatsServer) -> None:
    async with joined("alone", nats, "strangers") as node:
        for headers in ({}, {"X-Fabric-Node": "near start 0123"}, {"X-Fabric-Node": "ü"}):
            reply = await node.send("POST", "/.peer/call", data=b"\xff" * 100, headers=headers)
            assert (reply.status, reply.json) == (403, {"error": "Only nodes of the mesh are served here"})
            assert reply.headers["x-fabric-refused"] == "1"
        assert (await node.send("GET", "/.peer/call")).status == 403
    async with running(make_agent("plain", Work())) as node:
        assert (await node.send("POST", "/.peer/call", data=b"")).status == 404
