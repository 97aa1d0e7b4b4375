"""Stores for the measurements of jobs: SQLite files, and servers of PostgreSQL and NATS that the bench starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench import processes
from bench.job_agent import MANIFEST
from bench.processes import Cores, ServerProcess
from tests.fixtures.nats import NatsServer
from tests.fixtures.postgres import Server

ENGINES = ("SQLite", "PostgreSQL")
RATE_ENGINES = (*ENGINES, "NATS")  # reads are those of SQLite, so only the rates of writes are measured


class BenchStores:
    """Creates empty stores."""

    def __init__(self, folder: Path, server: Server, nats_server: NatsServer) -> None:
        self._folder = folder
        self._server = server
        self._nats_server = nats_server
        self._numbers = count(1)

    def create_store(self, engine: str) -> str:
        """The address of an empty store."""
        name = f"bench{next(self._numbers)}"
        if engine == "SQLite":
            return f"sqlite:{self._folder / name}.db"
        if engine == "NATS":
            return self._nats_server.address(name)
        self._server.sql(f"CREATE DATABASE {name} TEMPLATE template0")
        return self._server.line(name)


@contextmanager
def open_stores() -> Iterator[BenchStores]:
    server, nats_server = Server("fabric-bench-pg", shared_buffers="128MB"), NatsServer()
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as folder:
        try:
            server.create()
            server.start()
            os.sched_setaffinity(server.pid, range(os.cpu_count() or 1))  # a server elsewhere would have its own cores
            nats_server.start()
            yield BenchStores(Path(folder), server, nats_server)
        finally:
            nats_server.remove()
            server.remove()


@contextmanager
def run_node(store: str, cores: Cores, *, concurrent: int = 64, settings: str = "") -> Iterator[ServerProcess]:
    """A node with the agent in its own process. With `concurrent` 0 it only accepts jobs."""
    settings += f"store: '{store}'\n{node_settings(concurrent=concurrent)}"
    with processes.node(MANIFEST, cores.gateway, settings=settings) as served:
        yield served


def node_settings(*, concurrent: int) -> str:
    return f"jobs: {{concurrent: {concurrent}, waiting_per_principal: 100000000}}\n"
