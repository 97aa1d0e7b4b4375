"""What a start must not wait for: modules that only some nodes need are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

DOORS = [f"a2a_fabric.doors.{kind}.door" for kind in ("fabric", "mcp", "a2a", "directory", "rest", "discovery")]
IMPORTED_AT_THE_START = [
    "a2a_fabric.cli.up",
    *DOORS,
    "a2a_fabric.stores.sqlite.store",
    "a2a_fabric.runtimes.http.runtime",
]
IMPORTED_ON_USE = {
    "a2a_fabric.agent",
    "a2a_fabric.client.client",
    "a2a_fabric.federation.source",
    "a2a_fabric.importing.servers",
    "a2a_fabric.mesh.app",
    "a2a_fabric.mesh.workers",
    "a2a_fabric.semantic.matcher",
    "a2a_fabric.tools.catalog",
    "a2a_fabric.tools.validator_process",
    "cryptography",
    "grpc",
    "jmespath",
    "mcp",
    "pydantic",
    "rich",
    "zoneinfo",
}


def test_a_start_imports_nothing_that_only_some_nodes_need() -> None:
    code = f"import sys, {', '.join(IMPORTED_AT_THE_START)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert IMPORTED_ON_USE.isdisjoint(run.stdout.split())
