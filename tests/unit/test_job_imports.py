"""What a process loads for jobs before it has any: nothing of the engine, and of the databases only the one in use."""

from __future__ import annotations

import subprocess
import sys

import pytest

DRIVERS = {"asyncpg", "sqlite3", "a2a_fabric.stores.sqlite", "a2a_fabric.stores.postgres"}
ENGINE = {"a2a_fabric.jobs.desk", "a2a_fabric.jobs.worker", "a2a_fabric.jobs.webhook"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("a2a_fabric.jobs", DRIVERS | ENGINE),
        ("a2a_fabric.jobs.settings", DRIVERS | ENGINE),
        ("a2a_fabric.client", DRIVERS | ENGINE),
        ("a2a_fabric.app", DRIVERS),
        ("a2a_fabric.stores.sqlite", {"asyncpg", "a2a_fabric.stores.postgres"}),
    ],
)
def test_importing_it_loads_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert unwanted.isdisjoint(done.stdout.split())
