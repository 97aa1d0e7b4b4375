"""Where jobs are kept while they are measured: a file of SQLite's, and a PostgreSQL server of our own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench import processes
from bench.job_agent import MANIFEST
from bench.processes import Cores, Served
from tests.fixtures.postgres import Server

ENGINES = ("SQLite", "PostgreSQL")


class Places:
    """Empty stores by the name of their engine, as many as are asked for."""

    def __init__(self, folder: Path, server: Server) -> None:
        self._folder = folder
        self._server = server
        self._numbers = count(1)

    def fresh(self, engine: str) -> str:
        """The address of an empty store."""
        name = f"bench{next(self._numbers)}"
        if engine == "SQLite":
            return f"sqlite:{self._folder / name}.db"
        self._server.sql(f"CREATE DATABASE {name} TEMPLATE template0")
        return self._server.line(name)


@contextmanager
def places() -> Iterator[Places]:
    server = Server("fabric-bench-pg", shared_buffers="128MB")
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as folder:
        try:
            server.create()
            server.start()
            os.sched_setaffinity(server.pid, range(os.cpu_count() or 1))  # a server elsewhere would have its own cores
            yield Places(Path(folder), server)
        finally:
            server.remove()


@contextmanager
def node(store: str, cores: Cores, *, concurrent: int = 64) -> Iterator[Served]:
    """A node with the agent in its own process. With `concurrent` 0 it only accepts."""
    settings = f"store: '{store}'\njobs: {{concurrent: {concurrent}, waiting_per_principal: 100000000}}\n"
    with processes.node(MANIFEST, cores.gateway, settings=settings) as served:
        yield served
