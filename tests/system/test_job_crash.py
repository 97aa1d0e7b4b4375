"""Nothing acknowledged is lost: nodes that are killed, stopped and replaced while jobs run, with real processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.client import FabricClient, SyncFabricClient
from a2a_fabric.client.values import StreamEvent
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.store_errors import StoreUnavailable
from tests.fixtures.postgres import Server, shared
from tests.marks import requirement
from tests.system.node import Node, run, running_node, until

AGENTS = """
import asyncio, os
from a2a_fabric import Agent

ledger = os.environ["LEDGER"]
worker = Agent("worker")


def note(task):
    with open(ledger, "a") as file:
        file.write(task + "\\\\n")


@worker.capability(idempotent=True)
async def again(task: str, pause: float = 0.01, words: int = 5):
    for number in range(words):
        yield f"{task}:{number}"
        await asyncio.sleep(pause)
    yield {"answer": task}


@worker.capability(idempotent=False)
async def once(task: str, pause: float = 0.01):
    note(task)
    yield task
    await asyncio.sleep(pause)
    yield {"answer": task}
""".replace("\\\\", "\\")
MANIFESTS = "- {agent_id: worker, runtime: python, endpoint: {uri: 'python:crash_agents:worker'}}\n"
LEASE = 2.0
ENDED = {"completed", "failed", "cancelled", "timeout", "rejected"}


def prepare(folder: Path, ledger: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "crash_agents.py").write_text(AGENTS)
    (folder / "agents.yaml").write_text(MANIFESTS)
    (folder / "fabric.yaml").write_text(f"jobs: {{lease_seconds: {LEASE}, concurrent: 16}}\n")
    return {"LEDGER": str(ledger), "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@contextmanager
def node_in(folder: Path, store: str | None = None) -> Iterator[Node]:
    """A node whose agents write to the ledger beside its folder."""
    environment = prepare(folder, folder.parent / "ledger")
    options = [] if store is None else ["--store", store]
    with running_node(folder, *options, **environment) as node:
        with SyncFabricClient(node.url, node.token) as fabric:
            until(lambda: fabric.describe("worker")["capabilities"], "the agent to say what it does")
        yield node


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that several nodes share."""
    return shared().database() if request.param == "postgresql" else f"sqlite:{tmp_path / 'shared.db'}"


def client(node: Node) -> FabricClient:
    return FabricClient(node.url, node.token, timeout=20)


class Caller:
    """Submits jobs and follows them until the node is gone; remembers what it was told."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}  # job id to task
        self.heard: dict[str, dict[int, Any]] = {}
        self._number = 0

    async def call(self, node: Node, seconds: float) -> None:
        """As much as goes in so many seconds; then the node is killed in the middle of it."""
        async with client(node) as fabric:
            work = [asyncio.ensure_future(self._busy(fabric)) for _ in range(4)]
            await asyncio.sleep(seconds)
            node.signal(signal.SIGKILL)
            await asyncio.to_thread(node.wait)
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _busy(self, fabric: FabricClient) -> None:
        while True:
            self._number += 1
            task, capability = f"t{self._number}", random.choice(["again", "once"])
            try:
                job = await fabric.submit("worker", capability, task)
                self.tasks[job.job_id] = task
                async for event in job.events():
                    self.hear(job.job_id, event)
            except FabricError:
                await asyncio.sleep(0.01)

    def hear(self, job_id: str, event: StreamEvent) -> None:
        if event.number:
            self.heard.setdefault(job_id, {})[event.number] = event.data


async def log_of(fabric: FabricClient, job_id: str, after: int = 0) -> list[StreamEvent]:
    """The whole log; how it ended does not matter here."""
    seen: list[StreamEvent] = []
    try:
        async for event in fabric.job(job_id).events(after):
            seen.append(event)
    except FabricError as error:
        if error.trace_id is None:  # the way to it broke, not the job
            raise
    return [event for event in seen if event.number]


async def until_ended(fabric: FabricClient, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        await log_of(fabric, job_id)
        status = await fabric.job(job_id).status()
    assert status["state"] in ENDED
    return status


async def check(fabric: FabricClient, caller: Caller, folder: Path) -> None:
    ledger = Counter((folder.parent / "ledger").read_text().split())
    for job_id, task in caller.tasks.items():
        status = await until_ended(fabric, job_id)
        log = await log_of(fabric, job_id)
        assert [event.number for event in log] == list(range(1, status["events"] + 1))
        now = {event.number: event.data for event in log}
        heard = caller.heard.get(job_id, {})
        assert heard == {number: now[number] for number in heard}
        rest = await log_of(fabric, job_id, max(heard, default=0))
        assert [event.number for event in rest] == list(range(max(heard, default=0) + 1, status["events"] + 1))
        if status["capability"] == "again":
            assert status["state"] == "completed", status
        else:
            assert ledger[task] <= 1
            assert status["state"] == "completed" or status["error"]["details"]["reason"] == "interrupted", status


@requirement("001-07")
async def test_a_node_killed_at_random_moments_loses_and_doubles_nothing(tmp_path: Path, store: str) -> None:
    folder, caller = tmp_path / "node", Caller()
    for _ in range(3):
        with node_in(folder, store) as node:
            await caller.call(node, random.uniform(0.2, 1.2))
    assert caller.tasks
    with node_in(folder, store) as node:
        async with client(node) as fabric:
            known = await fabric.jobs(limit=1000)
            assert set(caller.tasks) <= {job["job_id"] for job in known}
            await check(fabric, caller, folder)


@requirement("001-51")
async def test_two_nodes_on_one_store_share_the_work_and_one_takes_over_from_the_other(
    tmp_path: Path, store: str
) -> None:
    with node_in(tmp_path / "a", store) as a, node_in(tmp_path / "b", store) as b:
        async with client(a) as at_a, client(b) as at_b:
            short = [await at_a.submit("worker", "once", f"s{number}") for number in range(30)]
            for job in short:
                assert (await until_ended(at_b, job.job_id))["state"] == "completed"
            ledger = Counter((tmp_path / "ledger").read_text().split())
            assert ledger == Counter(f"s{number}" for number in range(30))
            slow = {"pause": 0.3, "words": 10}
            long = [await at_a.submit("worker", "again", f"l{number}", slow) for number in range(24)]
            await asyncio.sleep(0.5)
            a.signal(signal.SIGKILL)
            await asyncio.to_thread(a.wait)
            ended = [await until_ended(at_b, job.job_id) for job in long]
            assert [each["state"] for each in ended] == ["completed"] * 24
            for job, each in zip(long, ended, strict=True):
                log = await log_of(at_b, job.job_id)
                assert [event.number for event in log] == list(range(1, each["events"] + 1))


@pytest.mark.soak
async def test_a_node_that_was_stopped_and_woken_cannot_write_to_what_another_has_taken_over(
    tmp_path: Path, store: str
) -> None:
    with node_in(tmp_path / "a", store) as a:
        async with client(a) as at_a:
            job = await at_a.submit("worker", "again", "x", {"pause": 0.2, "words": 25})
            async for event in job.events():
                if event.kind == "token":
                    break
        with node_in(tmp_path / "b", store) as b:
            a.signal(signal.SIGSTOP)
            try:
                async with client(b) as at_b:
                    ended = await until_ended(at_b, job.job_id)
                    assert (ended["state"], ended["attempt"]) == ("completed", 2)
                    before = await log_of(at_b, job.job_id)
            finally:
                a.signal(signal.SIGCONT)
            async with client(a) as at_a, asyncio.timeout(20):
                while "somebody else's" not in a.said:
                    await at_a.health()
                    await asyncio.sleep(0.05)
                assert await at_a.job(job.job_id).status() == ended
                after = await log_of(at_a, job.job_id)
            assert [(e.number, e.data) for e in after] == [(e.number, e.data) for e in before]
            words = [event.text for event in after if event.text]
            assert words[-25:] == [f"x:{number}" for number in range(25)]


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
            assert (await fabric.call("worker", "again", "plain")).answer == "plain"
            with pytest.raises(StoreUnavailable):
                await FabricClient(node.url, node.token).submit("worker", "again", "y")
            server.start()
            ended = await until_ended(fabric, job.job_id)
            assert ended["state"] == "completed"
            words = [event.text for event in await log_of(fabric, job.job_id) if event.text]
            assert words == [f"x:{number}" for number in range(30)]
            assert (await (await fabric.submit("worker", "again", "z")).result(30)).answer == "z"


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
