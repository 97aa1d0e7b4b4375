"""What the crash tests share: nodes whose agents leave traces, clients that outlive nodes, and what must hold after."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.client import FabricClient, SyncFabricClient
from a2a_fabric.client.client import JobHandle
from a2a_fabric.client.wire import StreamEvent
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.propagation import new_id
from tests.system.node import Node, running_node, until

AGENTS = """
import asyncio, os
from a2a_fabric import Agent

worker = Agent("worker")


def note(task):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(task + "\\n")


@worker.capability(idempotent=True)
async def again(task: str, pause: float = 0.01, words: int = 5):
    for number in range(words):
        yield f"{task}:{number}"
        await asyncio.sleep(pause)
    yield {"answer": task, "pid": os.getpid()}


@worker.capability(idempotent=True)
async def held(task: str):
    yield str(os.getpid())
    while not os.path.exists(os.environ["LEDGER"] + ".open"):
        await asyncio.sleep(0.02)
    async for word in again(task):
        yield word


@worker.capability(idempotent=True)
async def flood(task: str, megabytes: int):
    for number in range(megabytes):
        yield "x" * 1_000_000
        note(task)


@worker.capability(idempotent=False)
async def once(task: str, pause: float = 0.01):
    note(task)
    yield task
    await asyncio.sleep(pause)
    yield {"answer": task, "pid": os.getpid()}
"""
MANIFESTS = "- {agent_id: worker, runtime: python, endpoint: {uri: 'python:crash_agents:worker'}}\n"
LEASE = 4.0
ENDED = {"completed", "failed", "cancelled", "timeout", "rejected"}
WAIT_TIMEOUT = 60.0
_AT_ONCE = 16


@contextmanager
def node_in(folder: Path, store: str | None = None, listen: str = "127.0.0.1:0", **jobs: float) -> Iterator[Node]:
    """A node whose agents write to the ledger beside its folder; `jobs` is more to say about them."""
    folder.mkdir(exist_ok=True)
    (folder / "crash_agents.py").write_text(AGENTS)
    (folder / "agents.yaml").write_text(MANIFESTS)
    settings = {"lease_seconds": LEASE, "concurrent": 16, **jobs}
    (folder / "fabric.yaml").write_bytes(msgspec.json.encode({"jobs": settings}))
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    options = [] if store is None else ["--store", store]
    with running_node(folder, *options, listen=listen, LEDGER=str(ledger_of(folder)), PYTHONPATH=paths) as node:
        with SyncFabricClient(node.url, node.token) as fabric:
            until(lambda: fabric.describe("worker")["capabilities"], "the agent to say what it does")
        yield node
        assert "Traceback" not in node.said


@asynccontextmanager
async def started(folder: Path, store: str, listen: str) -> AsyncIterator[Node]:
    """The same, while others go on."""
    starting = node_in(folder, store, listen)
    node = await asyncio.to_thread(starting.__enter__)
    try:
        yield node
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


def ledger_of(folder: Path) -> Path:
    return folder.parent / "ledger"


def ledger_in(folder: Path) -> Counter[str]:
    """How often each task of `once` was begun."""
    ledger = ledger_of(folder)
    return Counter(ledger.read_text().split()) if ledger.exists() else Counter()


def let_go(folder: Path) -> None:
    """From now on `held` holds nothing."""
    ledger_of(folder).with_name("ledger.open").touch()


def client(node: Node) -> FabricClient:
    return FabricClient(node.url, node.token, timeout=20)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def is_locked(store: str) -> bool:
    """Whether a process holds the write lock of a SQLite store, and keeps it."""
    if not store.startswith("sqlite:"):
        return False
    connection = sqlite3.connect(store.removeprefix("sqlite:"), timeout=1.0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()
    return False


class Told(NamedTuple):
    """A job as its client knows it."""

    task: str
    heard: list[StreamEvent]


class Crowd:
    """Clients at one address, whichever node answers there: they submit, follow, and come back with the last number.

    Some wait for the answer of a job, and ask again under the same key when the node is gone.
    """

    def __init__(self, node: Node, followers: int = 6, submitters: int = 3, waiters: int = 6) -> None:
        self.jobs: dict[str, Told] = {}  # all that was acknowledged
        self.answered: dict[str, str] = {}  # the tasks that were answered, by the keys of their jobs
        self._fabric = FabricClient(node.url, node.token, timeout=20)
        self._is_finishing = False
        self._number = 0
        lanes = [self._follow() for _ in range(followers)] + [self._submit() for _ in range(submitters)]
        lanes += [self._wait() for _ in range(waiters)]
        self._lanes = [asyncio.ensure_future(lane) for lane in lanes]

    async def more(self, count: int) -> None:
        """Until so many more jobs are acknowledged."""
        wanted = len(self.jobs) + count
        async with asyncio.timeout(WAIT_TIMEOUT):
            while len(self.jobs) < wanted:
                await self._check_lanes()
                await asyncio.sleep(0.005)

    async def finish(self) -> None:
        """Every client sees its last job to its end."""
        self._is_finishing = True
        async with asyncio.timeout(WAIT_TIMEOUT):
            await asyncio.gather(*self._lanes)

    async def leave(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        await self._fabric.aclose()

    async def _check_lanes(self) -> None:
        for lane in self._lanes:
            if lane.done():
                await lane

    async def _follow(self) -> None:
        while not self._is_finishing:
            job = await self._submitted()
            heard = self.jobs[job.job_id].heard
            while not await self._is_over(job, heard):
                pass  # with the last number that we have

    async def _is_over(self, job: JobHandle, heard: list[StreamEvent]) -> bool:
        """Whether the job ended while we listened; else the way to it broke, and stayed so for long."""
        try:
            async for event in job.events(heard[-1].number if heard else 0):
                if event.number:
                    heard.append(event)
        except FabricError as error:
            return error.trace_id is not None  # it is how the job ended
        return True

    async def _submit(self) -> None:
        while not self._is_finishing:
            await self._submitted()
            await asyncio.sleep(0.02)

    async def _wait(self) -> None:
        while not self._is_finishing:
            task, key, capability = self._choose_work()
            work = {"agent_id": "worker", "capability": capability, "task": task, "idempotency_key": key}
            async with asyncio.timeout(WAIT_TIMEOUT):
                while True:
                    try:
                        result = await self._fabric.operation("fabric.call", **work)
                    except FabricError as error:
                        if error.details.get("reason") == "interrupted":
                            break
                        await asyncio.sleep(0.05)
                        continue
                    assert result["answer"] == task
                    self.answered[key] = task
                    break

    def _choose_work(self) -> tuple[str, str, str]:
        """Its task, key and capability."""
        self._number += 1
        return f"t{self._number}", new_id(), random.choice(["again", "once"])

    async def _submitted(self) -> JobHandle:
        """Asked again under the same key until a node acknowledges it."""
        task, key, capability = self._choose_work()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while True:
                try:
                    job = await self._fabric.submit("worker", capability, task, idempotency_key=key)
                    break
                except FabricError:
                    await asyncio.sleep(0.05)
        assert job.job_id not in self.jobs
        self.jobs[job.job_id] = Told(task, [])
        return job


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
    async with asyncio.timeout(WAIT_TIMEOUT):
        await log_of(fabric, job_id)
        status = await fabric.job(job_id).status()
    assert status["state"] in ENDED
    return status


async def check_all(fabric: FabricClient, crowd: Crowd, ledger: Counter[str]) -> None:
    """Nothing acknowledged is missing, nothing is doubled, and every log is whole."""
    kept, jobs = await fabric.jobs(limit=10**6), crowd.jobs
    assert crowd.answered.keys() <= {job["idempotency_key"] for job in kept if job["state"] == "completed"}
    assert jobs.keys() <= {job["job_id"] for job in kept}
    assert max(Counter(job["idempotency_key"] for job in kept).values()) == 1
    assert max(ledger.values(), default=0) <= 1
    room = asyncio.Semaphore(_AT_ONCE)

    async def check(job_id: str) -> None:
        async with room:
            await _check_one(fabric, job_id, jobs.get(job_id))

    await asyncio.gather(*(check(job["job_id"]) for job in kept))


async def _check_one(fabric: FabricClient, job_id: str, told: Told | None) -> None:
    status = await until_ended(fabric, job_id)
    log = await log_of(fabric, job_id)
    assert [event.number for event in log] == list(range(1, status["events"] + 1))
    heard = told.heard if told is not None else []
    assert [event.number for event in heard] == list(range(1, len(heard) + 1)), "a client missed or heard twice"
    assert [event.data for event in heard] == [event.data for event in log[: len(heard)]]
    rest = await log_of(fabric, job_id, len(heard))
    assert [event.number for event in rest] == list(range(len(heard) + 1, status["events"] + 1))
    if status["capability"] == "again":
        assert status["state"] == "completed", status
    else:
        assert status["state"] == "completed" or status["error"]["details"]["reason"] == "interrupted", status
