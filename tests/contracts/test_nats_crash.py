"""Nodes and servers that are killed at random moments: nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from a2a_fabric.nats.address import parse_nats_address
from a2a_fabric.stores.nats.store import NatsStore, settings_from_address
from tests.contracts.test_nats_faults import ask
from tests.contracts.test_store_processes import Ledger, child, heard, said
from tests.fixtures.nats import NatsCluster, NatsServer, new_name

SMALL_MESSAGES = "max_payload: 65536"  # so that large writes become several messages
SNAPSHOTS = "snapshot_messages=20"
ROUNDS = int(os.environ.get("STORE_CRASH_ROUNDS", "2"))  # `make soak` asks for more


@pytest.fixture
def cluster() -> Iterator[NatsCluster]:
    cluster = NatsCluster(settings=SMALL_MESSAGES).start()
    try:
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture
def server() -> Iterator[NatsServer]:
    server = NatsServer(SMALL_MESSAGES).start()
    try:
        yield server
    finally:
        server.remove()


async def run_rounds(address: str, choose_server: Callable[[], Awaitable[NatsServer]], rounds: int) -> None:
    """In each round two nodes write; a server is killed and comes back, and one node is killed while it is away.

    The nodes write snapshots and shorten the log meanwhile.
    """
    ledger = Ledger()
    chance = random.Random()
    for number in range(rounds):
        async with (
            child("write", address, f"a{number}") as dying,
            child("write", address, f"b{number}") as living,
        ):
            first = [*await heard(dying, 5), *await heard(living, 5)]
            await asyncio.sleep(chance.uniform(0, 0.3))  # the moment is what is tried, not what is waited for
            server = await choose_server()
            server.kill()
            await asyncio.sleep(chance.uniform(0, 0.3))
            dying.kill()
            await asyncio.to_thread(server.start)
            ledger.note(acknowledged([*first, *await said(dying)]))
            ledger.note(acknowledged(await heard(living, 200)))  # it goes on after the fault
            living.kill()
            ledger.note(acknowledged(await said(living)))
        store = await NatsStore.open(settings_from_address(address))
        try:
            await ledger.check(store)
        finally:
            await store.aclose()
    assert len(ledger.jobs) >= rounds
    log = await ask(address, f"STREAM.INFO.{parse_nats_address(address).name}_log")
    assert log["state"]["first_seq"] > 1


def acknowledged(lines: list[list[str]]) -> list[list[str]]:
    strange = [" ".join(line) for line in lines if len(line) != 3]
    assert not strange, "\n".join(strange)
    return lines


@pytest.mark.rounds
async def test_killed_nodes_and_a_killed_server_lose_and_double_nothing(server: NatsServer) -> None:
    async def choose() -> NatsServer:
        return server

    await run_rounds(server.address(options=SNAPSHOTS), choose, ROUNDS)


@pytest.mark.soak
async def test_killed_nodes_and_servers_of_a_cluster_lose_and_double_nothing(cluster: NatsCluster) -> None:
    async def choose() -> NatsServer:
        return random.choice(cluster.servers)

    await run_rounds(cluster.address(options=f"timeout=25&{SNAPSHOTS}"), choose, ROUNDS)


@pytest.mark.soak
async def test_killed_nodes_and_leaders_of_a_cluster_lose_and_double_nothing(cluster: NatsCluster) -> None:
    name = new_name()
    address = cluster.address(name, f"timeout=25&{SNAPSHOTS}")

    async def choose() -> NatsServer:
        leader = (await ask(address, f"STREAM.INFO.{name}_log"))["cluster"]["leader"]
        return next(server for server in cluster.servers if server.name == leader)

    await run_rounds(address, choose, ROUNDS)
