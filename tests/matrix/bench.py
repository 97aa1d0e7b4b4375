"""The node of the matrix, with every agent behind it that is wanted, and a client at every door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from a2a_fabric.agent import Agent
from tests.fixtures.node import Node, running
from tests.matrix.agents import KINDS
from tests.matrix.agents.kind import STAND_IN, Started
from tests.matrix.door_client import WAIT_TIMEOUT, DoorClient
from tests.matrix.doors import DOORS

# Agents here fail for the sake of it, again and again, and should be asked all the same.
CONFIG: dict[str, Any] = {
    "breaker": {"failures": 100_000},
    "routing": {"retries": {"floor": 100_000}},
    "health": {"failures": 100_000, "timeout": WAIT_TIMEOUT},
    "tools": {"web_allow": ["127.0.0.1"]},
    "jobs": {"concurrent": 1000},  # every sleeper sleeps at the same time
    "doors": [
        {"kind": "a2a", "grpc": "127.0.0.1:0"},
        {"kind": "fabric"},
        {"kind": "mcp", "max_listed": 1000},
        {"kind": "directory"},
        {"kind": "rest", "requests_per_minute": None},
    ],
}


class Bench:
    def __init__(self, node: Node, folder: Path, runtimes: Collection[str]) -> None:
        self.runtimes = runtimes
        self.clients: dict[str, DoorClient] = {name: make(node) for name, make in DOORS.items()}
        self._folder = folder
        self._numbers = count(1)

    def new_file(self) -> Path:
        """The name of a file that is not there yet."""
        return self._folder / f"{next(self._numbers)}.note"

    async def aclose(self) -> None:
        for client in self.clients.values():
            await client.aclose()


async def until(claim: Callable[[], bool]) -> None:
    """Wait, bounded, for what happens in another process or in a file."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not claim():  # noqa: ASYNC110  # files and processes send no events
            await asyncio.sleep(0.01)


def stand_in() -> Agent:
    """Does what the others fail at."""
    agent = Agent(STAND_IN)

    @agent.capability
    async def fail(reason: str) -> dict[str, str]:
        return {"done": reason}

    return agent


@asynccontextmanager
async def set_up(folder: Path, runtimes: Collection[str]) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        wanted = [kind for kind in KINDS if kind.name in runtimes]
        started: list[Started] = [await stack.enter_async_context(kind.started()) for kind in wanted]
        agents = [agent for each in started for agent in each.agents]
        manifests = [manifest for each in started for manifest in each.manifests]
        node = await stack.enter_async_context(running(stand_in(), *agents, manifests=manifests, config=CONFIG))
        await until(lambda: all(manifest.capabilities for manifest in node.fabric.registry.catalog.agents))
        bench = Bench(node, folder, runtimes)
        stack.push_async_callback(bench.aclose)
        yield bench
