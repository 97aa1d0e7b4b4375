"""What a node says about itself: alive, ready with reasons, well or not. It is true while its store is away, too."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.disk import needs_root, small_disk
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy
from tests.fixtures.postgres import Server
from tests.marks import requirement

GONE = {"agent_id": "gone", "endpoint": {"uri": "http://127.0.0.1:9/"}, "capabilities": [{"name": "act"}]}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """Tests that stop it start it again."""
    server = Server("fabric-health")
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


async def read(node: Node, path: str, *, token: str | None = None) -> tuple[int, Any]:
    reply = await node.send("GET", path, token=token)
    return reply.status, reply.json


async def eventually(node: Node, path: str, is_so: Callable[[int, Any], bool]) -> tuple[int, Any]:
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            found = await read(node, path)
            if is_so(*found):
                return found
            await asyncio.sleep(0.05)


async def test_a_node_that_is_well_says_so_everywhere() -> None:
    async with running(Percy().agent) as node:
        assert await read(node, "/livez") == (200, {"status": "alive"})
        status, ready = await read(node, "/readyz")
        assert (status, ready) == (200, {"status": "ready", "checks": {"doors": "open", "store": "ok"}})
        status, health = await read(node, "/health")
        assert (status, health["status"], health["version"]) == (200, "ok", "af-mcp-0.1")
        assert set(health["checks"]) == {"doors", "store", "agents", "registry", "log", "event_loop"}
        assert set(health["checks"].values()) == {"ok"}
        told = (await node.operation("fabric.health"))["result"]
        assert told["status"] == "ok"
        assert all(check == {"status": "ok"} for check in told["checks"].values())


@requirement("001-06")
async def test_no_page_says_ok_while_postgresql_is_down(postgres: Server) -> None:
    async with running(Percy().agent, config={"store": postgres.database()}) as node:
        assert (await read(node, "/health"))[1]["status"] == "ok"
        await asyncio.to_thread(postgres.stop)
        ready = await eventually(node, "/readyz", lambda status, _: status == 503)
        assert ready[1]["checks"]["store"] == "down"
        assert ready[1]["reasons"] == ["The store does not answer"]
        status, health = await read(node, "/health")
        assert (status, health["status"], health["checks"]["store"]) == (200, "degraded", "down")
        assert health["version"] == "af-mcp-0.1"
        told = (await node.operation("fabric.health"))["result"]
        assert (told["status"], told["checks"]["store"]["status"]) == ("degraded", "down")
        assert told["checks"]["store"]["reason"] != ready[1]["reasons"][0]  # the operator reads the store's own words
        page = (await read(node, "/monitoring/health", token=PSK))[1]
        assert (page["status"], page["checks"]["database"]) == ("degraded", "down")
        assert (await read(node, "/livez"))[0] == 200
        assert (await node.ask("percy", "reason", "hello"))["ok"]  # a plain call needs no store
        await asyncio.to_thread(postgres.start)
        await eventually(node, "/readyz", lambda status, _: status == 200)
        assert (await read(node, "/health"))[1]["status"] == "ok"


def list_remarks(node: Node) -> list[Any]:
    """Lines of the log that tell the operator something; not those of calls and requests."""
    node.fabric.telemetry.log.flush()
    lines = map(json.loads, node.log.getvalue().splitlines())
    return [line for line in lines if line["event"] == "log" and line["level"] != "debug"]


async def check_outage(node: Node, begin: Callable[[], None], end: Callable[[], None], words: str) -> None:
    """While the store can be read but not written, every page says so; the log has one line for it, and one after."""
    assert (await read(node, "/readyz"))[0] == 200
    known = len(list_remarks(node))
    await asyncio.to_thread(begin)
    refused = await node.operation(
        "fabric.call", {"agent_id": "percy", "capability": "reason", "task": "t", "async": True}
    )
    assert refused["error_code"].startswith("STORE_"), refused
    ready = await eventually(node, "/readyz", lambda status, _: status == 503)
    assert ready[1]["reasons"] == ["The store cannot be written"]
    assert (await read(node, "/health"))[1]["checks"]["store"] == "down"
    told = (await node.operation("fabric.health"))["result"]["checks"]["store"]
    assert (told["status"], words in told["reason"]) == ("down", True), told
    assert "fabric_store_up 0.0" in (await node.send("GET", "/metrics", token=PSK)).body.decode()
    await asyncio.to_thread(end)
    await eventually(node, "/readyz", lambda status, _: status == 200)
    assert (await read(node, "/health"))[1]["status"] == "ok"
    remarks = list_remarks(node)[known:]
    assert len(remarks) == 2, remarks


@needs_root
async def test_a_node_whose_disk_is_full_is_not_ready_and_says_why(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, megabytes=2):
        rest = disk / "rest"

        def fill() -> None:
            with rest.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(b"x" * 512)

        async with running(Percy().agent, config={"store": f"sqlite:{disk / 'fabric.db'}"}) as node:
            await check_outage(node, fill, rest.unlink, "No space left")


async def test_a_node_whose_postgresql_became_read_only_is_not_ready_and_says_why(postgres: Server) -> None:
    async with running(Percy().agent, config={"store": postgres.database()}) as node:
        await check_outage(
            node,
            lambda: postgres.set("default_transaction_read_only", "on"),
            lambda: postgres.set("default_transaction_read_only", "off"),
            "read-only",
        )


async def test_a_node_is_not_ready_without_the_agents_that_it_requires() -> None:
    config = {"health": {"required": ["percy", "gone", "nobody"]}}
    async with running(Percy().agent, manifests=[GONE], config=config) as node:

        def is_settled(status: int, page: Any) -> bool:
            return bool(page.get("reasons") == ["2 of 3 required agents cannot be called"])

        status, ready = await eventually(node, "/readyz", is_settled)
        assert (status, ready["checks"]["agents"]) == (503, "down")
        told = (await node.operation("fabric.health"))["result"]["checks"]["agents"]["reason"]
        assert "nobody (not in the catalog)" in told
        assert "gone (offline)" in told or "gone (unknown)" in told
        assert "percy" not in told


async def test_a_required_agent_that_answers_makes_the_node_ready() -> None:
    async with running(Percy().agent, config={"health": {"required": ["percy"]}}) as node:
        _, ready = await eventually(node, "/readyz", lambda status, _: status == 200)
        assert ready["checks"]["agents"] == "ok"


async def test_callers_without_credentials_learn_no_names_and_no_addresses(postgres: Server) -> None:
    config = {"store": postgres.database(), "health": {"required": ["secret-agent"]}}
    async with running(Percy().agent, config=config) as node:
        await asyncio.to_thread(postgres.stop)
        await eventually(node, "/readyz", lambda _, page: page["checks"]["store"] == "down")
        for path in ("/livez", "/readyz", "/health"):
            text = (await node.send("GET", path, token=None)).body.decode()
            assert "secret-agent" not in text
            assert str(postgres.folder) not in text
        await asyncio.to_thread(postgres.start)


async def test_a_file_of_agents_that_cannot_be_read_is_no_secret(tmp_path: Path) -> None:
    agents = tmp_path / "agents.yaml"
    agents.write_text("agents: []\n")
    async with running(base=tmp_path, from_files=True) as node:
        assert (await read(node, "/health"))[1]["checks"]["registry"] == "ok"
        agents.write_text("agents: {{\n")
        found = await eventually(node, "/health", lambda _, page: page["status"] == "degraded")
        assert found[1]["checks"]["registry"] == "degraded"
        assert (await read(node, "/readyz"))[0] == 200  # the agents that it had are still served


async def test_a_log_on_a_full_disk_is_told_and_calls_go_on(tmp_path: Path) -> None:
    """`/dev/full` takes no byte, as a full disk does."""
    async with running(Percy().agent, config={"log": {"file": "/dev/full", "format": "json"}}) as node:
        assert (await node.ask("percy", "reason", "hello"))["ok"]
        found = await eventually(node, "/health", lambda _, page: page["checks"]["log"] == "degraded")
        assert found[1]["status"] == "degraded"
        reason = (await node.operation("fabric.health"))["result"]["checks"]["log"]["reason"]
        assert "No space left" in reason
        assert (await read(node, "/readyz"))[0] == 200


async def test_a_blocked_event_loop_is_told() -> None:
    async with running(Percy().agent) as node:
        assert (await read(node, "/health"))[1]["checks"]["event_loop"] == "ok"
        time.sleep(1.6)  # noqa: ASYNC251  # blocking is the point
        found = await eventually(node, "/health", lambda _, page: page["checks"]["event_loop"] == "degraded")
        assert found[1]["status"] == "degraded"
        told = (await node.operation("fabric.health"))["result"]["checks"]["event_loop"]
        assert told["reason"].startswith("The event loop was blocked for 1.")
