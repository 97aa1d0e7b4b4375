"""Ended jobs go by themselves, by age and by size, and what has not ended stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from a2a_fabric.client import FabricClient
from tests.system.job_crash import client, node_in, until_ended

WAIT_TIMEOUT = 180.0  # nodes look about once a minute


@pytest.mark.soak
async def test_a_node_removes_by_itself_what_is_too_old_or_too_much(tmp_path: Path) -> None:
    with node_in(tmp_path / "a", keep_seconds=0) as old, node_in(tmp_path / "b", keep_bytes=0) as large:
        async with client(old) as at_old, client(large) as at_large:
            await asyncio.gather(forgets(at_old), forgets(at_large))


async def forgets(fabric: FabricClient) -> None:
    held = await fabric.submit("worker", "held", "stays")
    ended = await fabric.submit("worker", "again", "goes")
    await until_ended(fabric, ended.job_id)
    async with asyncio.timeout(WAIT_TIMEOUT):
        while ended.job_id in {job["job_id"] for job in await fabric.jobs()}:  # noqa: ASYNC110  # over a wire
            await asyncio.sleep(0.5)
    assert [job["job_id"] for job in await fabric.jobs()] == [held.job_id]
    assert (await held.status())["state"] == "running"
