"""A caller that waits for a job gets its end at once, however it ends: every way to wait, on each kind of store.

Waiting tasks also poll every few seconds, should they ever miss a notice. Here they do not, so each
end has to be posted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call
from a2a_fabric.core.errors import AgentOffline, BadInput, UpstreamRefused
from a2a_fabric.core.job import ClaimRequest, HoldRequest
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Question, make_input_required
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.node import Node, eventually, running
from tests.fixtures.postgres import shared

SOON = 30.0  # seconds
WAYS = ("result", "call", "a2a", "rest")
pytestmark = pytest.mark.usefixtures("without_polling")


class Desk(Agent):
    """Its work goes on until the gate is open; how it ends then is what the capability is called after."""

    def __init__(self) -> None:
        super().__init__("desk")
        self.gate = asyncio.Event()
        self.begun = 0
        for work in (self.completes, self.fails, self.rejects, self.asks):
            self.capability(idempotent=False)(work)
        self.capability(idempotent=True)(self.is_late)

    async def completes(self, task: str) -> AsyncIterator[Any]:
        self.begun += 1
        yield "a word"
        await self.gate.wait()
        yield {"answer": "done"}

    async def fails(self, task: str) -> Any:
        await self.gate.wait()
        raise UpstreamRefused("no")

    async def rejects(self, task: str) -> Any:
        await self.gate.wait()
        raise BadInput("not like this")

    async def asks(self, task: str, call: Call) -> Any:
        await self.gate.wait()
        return (
            {"answer": "done"}
            if call.answers
            else make_input_required({"name": Question(kind="form", message="Who?")}, "c1")
        )

    async def is_late(self, task: str) -> Any:
        """Away at first."""
        await self.gate.wait()
        self.begun += 1
        if self.begun <= len(WAYS):
            raise AgentOffline("not now")
        return {"answer": "done"}


_ADDRESSES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory:",
    "sqlite": lambda folder: f"sqlite:{folder / 'fabric.db'}",
    "postgresql": lambda folder: shared().database(),
}


class StoreAddress(NamedTuple):
    """Where nodes find the one store."""

    store: str

    @asynccontextmanager
    async def node(self, desk: Desk, **jobs: Any) -> AsyncIterator[Node]:
        settings = {"lease_seconds": 1.0, "retry": {"pause_seconds": 0.05}, **jobs}
        config = {"store": self.store, "jobs": settings, "limits": {"drain_seconds": 0}}
        async with running(desk, config=config) as node:
            yield node


@pytest.fixture(params=list(_ADDRESSES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    return StoreAddress(_ADDRESSES[request.param](tmp_path))


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """On a store that several nodes can use."""
    return StoreAddress(_ADDRESSES[request.param](tmp_path))


class Waiters:
    """One for each way to wait, each for a job of its own."""

    def __init__(self, node: Node, capability: str) -> None:
        self.node = node
        self.capability = capability
        self.ids: list[str] = []
        self.waiting: list[asyncio.Future[Any]] = []

    async def come(self) -> None:
        for way in WAYS:
            self.waiting.append(asyncio.ensure_future(await getattr(self, f"_by_{way}")()))
            await eventually(self._has_come)
        await eventually(self._all_wait)

    async def hear(self) -> list[Any]:
        """What each was told."""
        async with asyncio.timeout(SOON):
            return await asyncio.gather(*self.waiting)

    async def _by_result(self) -> Any:
        given = {"agent_id": "desk", "capability": self.capability, "task": "go", "async": True}
        job = (await self.node.operation("fabric.call", given))["result"]
        return self.node.operation("fabric.job.result", {"job_id": job["job_id"], "wait_ms": 30_000})

    async def _by_call(self) -> Any:
        return self.node.ask("desk", self.capability, idempotency_key=new_id())

    async def _by_a2a(self) -> Any:
        return rpc(self.node, "SendMessage", {"message": message("go", skill=self.capability)}, agent="desk")

    async def _by_rest(self) -> Any:
        body = {
            "recipient": {"id": "desk", "type": "agent"},
            "parts": [{"type": "text", "content": "go"}],
            "metadata": {"capability": self.capability},
        }
        sent = await self.node.send("POST", "/v1/messages", json=body)
        assert sent.status == 201, sent.body
        return self._reply_to(sent.json["id"])

    async def _reply_to(self, message_id: str) -> Any:
        return (await self.node.send("GET", f"/v1/messages/{message_id}/reply?wait=25")).json

    async def _has_come(self) -> bool:
        jobs = (await self.node.operation("fabric.job.list"))["result"]["jobs"]
        self.ids = [job["job_id"] for job in jobs]
        return len(jobs) == len(self.waiting)

    async def _all_wait(self) -> bool:
        return self.node.fabric.jobs.waiting_requests.in_use == len(self.waiting)

    async def states(self) -> set[str]:
        jobs = (await self.node.operation("fabric.job.list"))["result"]["jobs"]
        return {job["state"] for job in jobs}

    async def all_are(self, state: str) -> None:
        async def are() -> bool:
            return await self.states() == {state}

        await eventually(are)

    async def each(self, operation: str, **given: Any) -> None:
        for job_id in self.ids:
            reply = await self.node.operation(operation, {"job_id": job_id, **given})
            assert reply["ok"], reply


@asynccontextmanager
async def waited_for(node: Node, capability: str) -> AsyncIterator[Waiters]:
    waiters = Waiters(node, capability)
    try:
        await waiters.come()
        yield waiters
    finally:
        for each in waiters.waiting:
            each.cancel()
        await asyncio.gather(*waiters.waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("capability", "state"),
    [
        ("completes", "completed"),
        ("fails", "failed"),
        ("rejects", "rejected"),
        ("asks", "input_required"),
        ("is_late", "completed"),
    ],
)
async def test_who_waits_hears_at_once_what_the_agent_came_to(store: StoreAddress, capability: str, state: str) -> None:
    async with store.node(desk := Desk()) as node, waited_for(node, capability) as waiters:
        await waiters.all_are("running")
        desk.gate.set()
        await waiters.hear()
        assert await waiters.states() == {state}


async def test_who_waits_for_an_answered_job_hears_its_end_at_once(store: StoreAddress) -> None:
    async with store.node(desk := Desk()) as node, waited_for(node, "asks") as waiters:
        desk.gate.set()
        await waiters.hear()
        desk.gate.clear()
        await waiters.each("fabric.job.answer", answers={"name": {"content": "Ann"}})
        given: Iterable[dict[str, Any]] = ({"job_id": job_id, "wait_ms": 30_000} for job_id in waiters.ids)
        waiters.waiting = [asyncio.ensure_future(node.operation("fabric.job.result", each)) for each in given]
        await waiters.all_are("running")
        desk.gate.set()
        assert [reply["result"] for reply in await waiters.hear()] == [{"answer": "done"}] * len(WAYS)


async def test_who_waits_hears_at_once_that_running_work_was_cancelled(store: StoreAddress) -> None:
    async with store.node(Desk()) as node, waited_for(node, "completes") as waiters:
        await waiters.all_are("running")
        await waiters.each("fabric.job.cancel")
        await waiters.hear()
        assert await waiters.states() == {"cancelled"}


async def test_who_waits_hears_at_once_that_a_job_was_cancelled_before_it_began(store: StoreAddress) -> None:
    async with store.node(Desk(), concurrent=0) as node, waited_for(node, "completes") as waiters:
        await waiters.each("fabric.job.cancel")
        await waiters.hear()
        assert await waiters.states() == {"cancelled"}


async def test_who_waits_hears_at_once_what_a_worker_left_that_is_gone(store: StoreAddress) -> None:
    async with store.node(Desk(), concurrent=0) as node, waited_for(node, "completes") as waiters:
        gone = HoldRequest(worker="gone", lease=0.01)
        taken = await node.fabric.store.jobs.claim(ClaimRequest(hold=gone, limit=len(WAYS)))
        assert len(taken) == len(WAYS)
        await waiters.hear()
        assert await waiters.states() == {"failed"}


async def test_who_waits_hears_at_once_that_the_node_stops(store: StoreAddress) -> None:
    async with store.node(Desk()) as node, waited_for(node, "completes") as waiters:
        await waiters.all_are("running")
        node.fabric.app.stop()
        for heard in await waiters.hear():
            assert "being stopped" in str(heard)


async def test_who_waits_at_one_node_hears_at_once_what_another_did(shared_store: StoreAddress) -> None:
    async with (
        shared_store.node(Desk(), concurrent=0) as node,
        shared_store.node(desk := Desk()),
        waited_for(node, "completes") as waiters,
    ):
        await waiters.all_are("running")
        desk.gate.set()
        await waiters.hear()
        assert await waiters.states() == {"completed"}
        assert desk.begun == len(WAYS)


async def test_who_waits_at_one_node_hears_at_once_of_a_cancel_at_another(shared_store: StoreAddress) -> None:
    async with (
        shared_store.node(Desk()) as node,
        shared_store.node(Desk(), concurrent=0) as other,
        waited_for(node, "completes") as waiters,
    ):
        await waiters.all_are("running")
        waiters.node = other
        await waiters.each("fabric.job.cancel")
        await waiters.hear()
        assert await waiters.states() == {"cancelled"}
