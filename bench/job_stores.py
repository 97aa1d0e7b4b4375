"""Stores for the measurements of jobs: SQLite files, and a PostgreSQL server that the bench starts."""

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
from tests.fixtures.postgres import Server

ENGINES = ("SQLite", "PostgreSQL")


class BenchStores:
    """Creates empty stores."""

    def __init__(self, folder: Path, server: Server) -> None:
        self._folder = folder
        self._server = server
        self._numbers = count(1)

    def create_store(self, engine: str) -> str:
        """The address of an empty store."""
        name = f"bench{next(self._numbers)}"
        if engine == "SQLite":
            return f"sqlite:{self._folder / name}.db"
        self._server.sql(f"CREATE DATABASE {name} TEMPLATE template0")
        return self._server.line(name)


@contextmanager
def open_stores() -> Iterator[BenchStores]:
    server = Server("fabric-bench-pg", shared_buffers="128MB")
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as folder:
        try:
            server.create()
            server.start()
            os.sched_setaffinity(server.pid, range(os.cpu_count() or 1))  # a server elsewhere would have its own cores
            yield BenchStores(Path(folder), server)
        finally:
            server.remove()


@contextmanager
def run_node(store: str, cores: Cores, *, concurrent: int = 64) -> Iterator[ServerProcess]:
    """A node with the agent in its own process. With `concurrent` 0 it only accepts jobs."""
    settings = f"store: '{store}'\njobs: {{concurrent: {concurrent}, waiting_per_principal: 100000000}}\n"
    with processes.node(MANIFEST, cores.gateway, settings=settings) as served:
        yield served
