"""What a process loads for jobs before it has any: nothing of the engine, and of the databases only the one in use."""

from __future__ import annotations

import subprocess
import sys

import pytest

DRIVERS = {"asyncpg", "sqlite3", "a2a_fabric.stores.sqlite.store", "a2a_fabric.stores.postgres.store"}
ENGINE = {"a2a_fabric.jobs.jobs", "a2a_fabric.jobs.worker", "a2a_fabric.jobs.webhooks"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("a2a_fabric.jobs", DRIVERS | ENGINE),
        ("a2a_fabric.jobs.settings", DRIVERS | ENGINE),
        ("a2a_fabric.client", DRIVERS | ENGINE),
        ("a2a_fabric.app", DRIVERS),
        ("a2a_fabric.stores.sqlite.store", {"asyncpg", "a2a_fabric.stores.postgres.store"}),
    ],
)
def test_importing_it_loads_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert unwanted.isdisjoint(done.stdout.split())
