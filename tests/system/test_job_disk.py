"""A disk that is full or a file that may grow no further under a running node, and files that no node starts on."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.client import FabricClient
from a2a_fabric.core.errors import FabricError, StoreUnavailable
from tests.fixtures.disk import enlarge, needs_root, small_disk
from tests.system.job_crash import client, ledger_in, log_of, node_in, until_ended
from tests.system.node import Node, run

LARGE = "x" * 100_000
WAIT_TIMEOUT = 60.0


def let_files_grow(node: Node, most: int) -> None:
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


async def fill(fabric: FabricClient) -> tuple[dict[str, str], FabricError]:
    """Jobs until one is refused: those acknowledged, by id, and the refusal."""
    accepted: dict[str, str] = {}
    async with asyncio.timeout(WAIT_TIMEOUT):
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
    async with asyncio.timeout(WAIT_TIMEOUT):
        while True:
            try:
                job = await fabric.submit("worker", "once", "after")
                assert (await job.result(WAIT_TIMEOUT)).answer == "after"
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
@needs_root
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


@contextmanager
def newer(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (99, '0099_future', 'x', 0)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    yield


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x5a" * (len(content) - 4096))
    yield


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Before anybody has made tables in it."""
    path.unlink()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def content_of(path: Path) -> bytes:
    """Read by another process: our own lock on it would end with the reading."""
    return subprocess.run(["cat", str(path)], capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (newer, "has schema 99, and this program knows up to"),
        (damaged, "It was left as it is: restore a copy"),
        pytest.param(locked, "is locked by another program", marks=pytest.mark.soak),  # it is waited for
    ],
)
def test_a_node_does_not_start_on_a_file_that_it_must_leave_alone(tmp_path: Path, fault: Any, words: str) -> None:
    store = tmp_path / "kept.db"
    with node_in(tmp_path / "node", f"sqlite:{store}"):
        pass
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the node was killed
    with fault(store):
        before = content_of(store)
        done = run("up", "--listen", "127.0.0.1:0", "--store", f"sqlite:{store}", home=tmp_path / "node" / "home",
                   folder=tmp_path / "node")  # fmt: skip
        assert content_of(store) == before
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
