"""An agent that says far more than anybody can want: the job ends, and the node stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_fabric.core.errors import FabricError
from tests.fixtures.postgres import shared
from tests.system.job_crash import client, ledger_in, log_of, node_in, until_ended

GIGABYTE = {"megabytes": 1000}
POLICY = 64 << 20  # of `jobs.event_bytes`, unless an operator says otherwise


def largest(pid: int) -> int:
    """What the process had in memory at most, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_a_gigabyte_of_events_is_cut_by_policy_with_a_typed_end_and_costs_the_node_little(
    tmp_path: Path, engine: str
) -> None:
    store = shared().database() if engine == "postgresql" else f"sqlite:{tmp_path / 'kept.db'}"
    with node_in(tmp_path / "node", store) as node:
        async with client(node) as fabric:
            before = largest(node.process.pid)
            job = await fabric.submit("worker", "flood", "flood", GIGABYTE)
            ended = await until_ended(fabric, job.job_id)
            assert (ended["state"], ended["attempt"]) == ("failed", 1)
            error = ended["error"]
            assert (error["code"], error["details"]["reason"]) == ("UPSTREAM_ERROR", "events_too_large")
            kept = await log_of(fabric, job.job_id)
            assert [event.number for event in kept] == list(range(1, ended["events"] + 1))
            assert POLICY * 0.9 < sum(len(event.text) for event in kept) <= POLICY
            assert ledger_in(node.folder)["flood"] < 100, "the agent was not stopped"
            assert largest(node.process.pid) - before < 2 * POLICY  # the caches of the database among it
            with pytest.raises(FabricError, match="events"):
                await job.result(5)
            assert (await fabric.call("worker", "again", "plain")).answer == "plain"
