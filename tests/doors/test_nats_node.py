"""A node whose store is on NATS while the server is away: calls go on, jobs wait, and no page says that all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.nats import NatsServer
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.fixtures.percy import Percy


@pytest.fixture
def server() -> Iterator[NatsServer]:
    server = NatsServer().start()
    try:
        yield server
    finally:
        server.remove()


async def test_while_nats_is_away_calls_go_on_and_a_job_waits_for_it(server: NatsServer) -> None:
    async with running(Percy().agent, config={"store": server.address()}) as node:
        before = await _accept(node)
        server.kill()

        async def is_not_ready() -> bool:
            reply = await node.send("GET", "/readyz", token=None)
            return bool(reply.status == 503 and reply.json["checks"]["store"] == "down")

        await eventually(is_not_ready)
        assert (await node.ask("percy", "reason"))["ok"]
        job = await node.operation("fabric.job.status", {"job_id": before["job_id"]})
        assert job["ok"]  # known jobs are read from the copy
        waiting = asyncio.create_task(_accept(node))
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(WAIT_TIMEOUT):
            accepted = await waiting

        async def is_ready() -> bool:
            return (await node.send("GET", "/readyz", token=None)).status == 200

        async def is_done() -> bool:
            job = await node.operation("fabric.job.status", {"job_id": accepted["job_id"]})
            return bool(job["result"]["state"] == "completed")

        await eventually(is_ready)
        await eventually(is_done)


async def _accept(node: Node) -> dict[str, Any]:
    arguments = {"agent_id": "percy", "capability": "reason", "task": "go", "async": True}
    reply = await node.operation("fabric.call", arguments)
    assert reply["ok"], reply
    accepted: dict[str, Any] = reply["result"]
    return accepted
