"""Nothing acknowledged is lost: nodes that are killed, stopped and replaced while jobs run, with real processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from a2a_fabric.client import FabricClient
from a2a_fabric.core.errors import StoreUnavailable
from tests.fixtures import nats
from tests.fixtures.postgres import Server, shared
from tests.marks import requirement
from tests.system.job_crash import (
    LEASE,
    WAIT_TIMEOUT,
    Crowd,
    check_all,
    client,
    free_address,
    is_locked,
    ledger_in,
    let_go,
    log_of,
    node_in,
    started,
    until_ended,
)
from tests.system.node import Node, run

ROUNDS = int(os.environ.get("JOB_CRASH_ROUNDS", "3"))  # `make soak` asks for more


@pytest.fixture(params=["sqlite", "postgresql", "nats"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that several nodes share."""
    if request.param == "nats":
        return nats.shared().address()
    return shared().database() if request.param == "postgresql" else f"sqlite:{tmp_path / 'shared.db'}"


@pytest.mark.rounds
@requirement("001-07")
async def test_a_node_killed_at_random_moments_loses_and_doubles_nothing(tmp_path: Path, store: str) -> None:
    folder, address, crowd = tmp_path / "node", free_address(), None
    try:
        for _ in range(ROUNDS):
            async with started(folder, store, address) as node:
                crowd = crowd or Crowd(node)
                await crowd.more(random.randint(1, 20))
                await asyncio.sleep(random.uniform(0, 0.5))  # the moment is what is tried, not what is waited for
                node.signal(signal.SIGKILL)
                await asyncio.to_thread(node.wait)
                assert '"level":"error"' not in node.said
        async with started(folder, store, address) as node:
            assert crowd is not None
            await crowd.finish()
            async with client(node) as fabric:
                await check_all(fabric, crowd, ledger_in(folder))
            assert '"level":"error"' not in node.said
    finally:
        if crowd is not None:
            await crowd.leave()


@requirement("001-51")
async def test_two_nodes_on_one_store_share_the_work_and_one_takes_over_from_the_other(
    tmp_path: Path, store: str
) -> None:
    with node_in(tmp_path / "a", store) as a, node_in(tmp_path / "b", store) as b:
        async with client(a) as at_a, client(b) as at_b:
            short = [await at_a.submit("worker", "once", f"s{number}") for number in range(30)]
            for job in short:
                assert (await until_ended(at_b, job.job_id))["state"] == "completed"
            assert ledger_in(tmp_path / "a") == Counter(f"s{number}" for number in range(30))
            await _survives([a], [b], at_a, at_b)


@pytest.mark.soak
async def test_three_nodes_on_one_database_do_each_job_once_and_two_take_over_from_the_third(tmp_path: Path) -> None:
    store = shared().database()
    with ExitStack() as running:
        nodes = [running.enter_context(node_in(tmp_path / name, store)) for name in "abc"]
        async with client(nodes[0]) as at_a, client(nodes[1]) as at_b, client(nodes[2]) as at_c:
            doors = (at_a, at_b, at_c)
            asked = (doors[n % 3].submit("worker", "once", f"s{n}", {"pause": 0.5}) for n in range(120))
            jobs = await asyncio.gather(*asked)
            results = [(await at_c.job(job.job_id).result(60)).data for job in jobs]
            assert ledger_in(tmp_path / "a") == Counter(f"s{n}" for n in range(120))
            assert len({each["pid"] for each in results}) > 1, "one node did it all"
            await _survives(nodes[:1], nodes[1:], at_a, at_b)


async def _survives(dying: list[Node], heirs: list[Node], there: FabricClient, here: FabricClient) -> None:
    """What runs on nodes that are killed is taken over by the others when its lease is over, and not before."""
    jobs = [await there.submit("worker", "held", f"l{number}") for number in range(24)]
    holders = [await _holder(here, job.job_id) for job in jobs]
    killed_at = time.time()
    for node in dying:
        node.signal(signal.SIGKILL)
        await asyncio.to_thread(node.wait)
    let_go(dying[0].folder)
    lost = {node.process.pid for node in dying}
    assert lost & set(holders), "nothing ran where it was to be killed"
    for job, holder in zip(jobs, holders, strict=True):
        ended = await until_ended(here, job.job_id)
        log = await log_of(here, job.job_id)
        assert (ended["state"], ended["attempt"]) == ("completed", 2 if holder in lost else 1)
        assert [event.number for event in log] == list(range(1, ended["events"] + 1))
        if holder in lost:
            assert await _holder(here, job.job_id, attempt=2) in {node.process.pid for node in heirs}
            assert killed_at < ended["started_at"] < killed_at + LEASE + 20


async def _holder(fabric: FabricClient, job_id: str, attempt: int = 1) -> int:
    """Which process does a job of `held`: it says so first."""
    begun = 0
    async with asyncio.timeout(WAIT_TIMEOUT):
        async for event in fabric.job(job_id).events():
            if event.text.isdigit():
                begun += 1
                if begun == attempt:
                    return int(event.text)
    raise AssertionError("the job ended without a word")


@pytest.mark.soak
async def test_a_node_that_was_stopped_and_woken_cannot_write_to_what_another_has_taken_over(
    tmp_path: Path, store: str
) -> None:
    with node_in(tmp_path / "a", store) as a, node_in(tmp_path / "b", store) as b:
        async with client(a) as at_a:
            job = await at_a.submit("worker", "held", "x")
            holder = await _holder(at_a, job.job_id)
        sleeper, heir = (a, b) if holder == a.process.pid else (b, a)
        await _put_to_sleep(sleeper, store)
        let_go(sleeper.folder)
        try:
            async with client(heir) as at_heir:
                ended = await until_ended(at_heir, job.job_id)
                assert (ended["state"], ended["attempt"]) == ("completed", 2)
                before = await log_of(at_heir, job.job_id)
        finally:
            sleeper.signal(signal.SIGCONT)
        async with client(sleeper) as woken, asyncio.timeout(WAIT_TIMEOUT):
            while "taken over by another worker" not in sleeper.said:
                await woken.health()
                await asyncio.sleep(0.05)
            assert await woken.job(job.job_id).status() == ended
            after = await log_of(woken, job.job_id)
        assert [(e.number, e.data) for e in after] == [(e.number, e.data) for e in before]
        words = [event.text for event in after if event.text]
        assert words == [str(sleeper.process.pid), str(heir.process.pid), *(f"x:{number}" for number in range(5))]


async def _put_to_sleep(node: Node, store: str) -> None:
    """At any moment, with PostgreSQL. Who sleeps while it writes to a SQLite file keeps it from all: docs/jobs.md."""
    for _ in range(20):
        node.signal(signal.SIGSTOP)
        if not await asyncio.to_thread(is_locked, store):
            return
        node.signal(signal.SIGCONT)
        await asyncio.sleep(0.03)
    raise AssertionError("the node writes without a pause")


@pytest.fixture
def server() -> Iterator[Server]:
    """A database server of the test's own, to be stopped and started."""
    server = Server()
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.soak
async def test_a_database_that_is_restarted_costs_plain_calls_nothing_and_jobs_only_time(
    tmp_path: Path, server: Server
) -> None:
    with node_in(tmp_path / "a", server.database()) as node:
        async with client(node) as fabric:
            job = await fabric.submit("worker", "again", "x", {"pause": 0.1, "words": 30})
            async for event in job.events():
                if event.kind == "token":
                    break
            server.stop()
            await _told_in_time(node)
            server.start()
            assert (await (await fabric.submit("worker", "again", "y")).result(30)).answer == "y"
            with server.frozen():
                await _told_in_time(node)
            ended = await until_ended(fabric, job.job_id)
            assert ended["state"] == "completed"
            words = [event.text for event in await log_of(fabric, job.job_id) if event.text]
            assert words == [f"x:{number}" for number in range(30)]
            assert (await (await fabric.submit("worker", "again", "z")).result(30)).answer == "z"


async def _told_in_time(node: Node) -> None:
    """Plain calls go on; who wants a job hears before long that there is none to be had."""
    async with client(node) as fabric:
        began = time.monotonic()
        asked = [asyncio.create_task(fabric.submit("worker", "again", "lost")) for _ in range(3)]
        while not all(each.done() for each in asked):
            assert (await fabric.call("worker", "again", "plain")).answer == "plain"
            await asyncio.sleep(0.1)
        for each in asked:
            assert isinstance(each.exception(), StoreUnavailable)
        assert time.monotonic() - began < 18  # before a client's own timeout ends, which is longer


def test_without_a_word_about_it_jobs_are_kept_beside_the_configuration(tmp_path: Path) -> None:
    with node_in(tmp_path / "node"):
        assert (tmp_path / "node" / "fabric.db").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("sqlite:{folder}/no/such/folder/x.db", "no/such/folder"),
        ("sqlite:{folder}/notes.txt", "notes.txt"),
        ("sqlite:", "path"),
        ("oracle:x", "oracle"),
    ],
)
def test_a_store_that_cannot_be_used_is_said_in_a_sentence(tmp_path: Path, address: str, words: str) -> None:
    (tmp_path / "agents.yaml").write_text("[]\n")
    (tmp_path / "notes.txt").write_text("dear diary " * 100)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    at = address.format(folder=tmp_path)
    done = run("up", "--listen", "127.0.0.1:0", "--store", at, home=home, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "notes.txt").read_text().startswith("dear diary")
