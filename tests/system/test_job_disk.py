"""A disk that is full, and a file that may grow no further, under a running node."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from a2a_fabric.client import FabricClient
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.store_errors import StoreUnavailable
from tests.system.job_crash import client, ledger_in, log_of, node_in, until_ended
from tests.system.node import Node

LARGE = "x" * 100_000
PATIENCE = 60.0


@contextmanager
def small_disk(at: Path) -> Iterator[None]:
    """A file system of six megabytes."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)


def let_files_grow(node: Node, most: int) -> None:
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


async def fill(fabric: FabricClient) -> tuple[dict[str, str], FabricError]:
    """Jobs until one is refused: those acknowledged, by id, and the refusal."""
    accepted: dict[str, str] = {}
    async with asyncio.timeout(PATIENCE):
        for number in count():
            try:
                job = await fabric.submit("worker", "once", f"t{number}", {"pause": 0.01})
                accepted[job.job_id] = f"t{number}"
                await fabric.submit("worker", "again", LARGE, {"words": 1})
            except FabricError as error:
                return accepted, error
    raise AssertionError("unreachable")


async def go_on(fabric: FabricClient) -> None:
    """By itself, and soon."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                job = await fabric.submit("worker", "once", "after")
                assert (await job.result(PATIENCE)).answer == "after"
                return
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def check(fabric: FabricClient, accepted: dict[str, str], folder: Path) -> None:
    """What was acknowledged is there, was done once, and has its whole log."""
    ledger = ledger_in(folder)
    for job_id, task in accepted.items():
        ended = await until_ended(fabric, job_id)
        assert (ended["state"], ledger[task]) == ("completed", 1)
        assert [event.number for event in await log_of(fabric, job_id)] == list(range(1, ended["events"] + 1))


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root: run the tests with sudo")
async def test_a_full_disk_refuses_new_jobs_loses_none_and_is_got_over(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk), node_in(tmp_path / "node", f"sqlite:{disk / 'fabric.db'}") as node:
        async with client(node) as fabric:
            accepted, refusal = await fill(fabric)
            assert isinstance(refusal, StoreUnavailable)
            assert refusal.message.startswith("No space left for sqlite:")
            assert (await fabric.call("worker", "again", "plain")).answer == "plain"
            enlarge(disk)
            await go_on(fabric)
            await check(fabric, accepted, node.folder)
        assert "Traceback" not in node.said


async def test_a_file_that_may_not_grow_refuses_new_jobs_loses_none_and_is_got_over(tmp_path: Path) -> None:
    with node_in(tmp_path / "node") as node:
        async with client(node) as fabric:
            let_files_grow(node, 3 << 20)
            accepted, refusal = await fill(fabric)
            assert isinstance(refusal, StoreUnavailable)
            assert "nothing was acknowledged" in refusal.message
            assert (await fabric.call("worker", "again", "plain")).answer == "plain"
            let_files_grow(node, resource.RLIM_INFINITY)
            await go_on(fabric)
            await check(fabric, accepted, node.folder)
        assert "Traceback" not in node.said
