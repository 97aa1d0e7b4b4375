"""Jobs through FabricClient: handles that outlive connections and nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.client import FabricClient, SyncFabricClient
from a2a_fabric.core.errors import CallTimeout, JobCancelled, JobNotFound, UpstreamRefused
from tests.fixtures.node import PSK, running, running_in_thread
from tests.marks import requirement


class Slow(Agent):
    def __init__(self) -> None:
        super().__init__("slow")
        self.gate = asyncio.Event()
        self.capability(self.count)
        self.capability(self.refuse)

    async def count(self, task: str) -> Any:
        """Say a word, wait, say the rest."""
        yield "one"
        await self.gate.wait()
        for word in task.split():
            yield word
        yield {"answer": task}

    async def refuse(self, task: str) -> dict[str, Any]:
        """Say no."""
        raise UpstreamRefused("no", why="because")


class Proxy:
    """Carries bytes to a node, and can drop all connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    def drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, onwards = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, onwards}
        await asyncio.gather(_pump(reader, onwards), _pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@requirement("001-04", "001-07")
async def test_a_job_is_submitted_followed_and_waited_for() -> None:
    async with running(agent := Slow()) as node, FabricClient(node.url, PSK) as fabric:
        job = await fabric.submit("slow", "count", "two three")
        with pytest.raises(CallTimeout):
            await job.result(timeout=0.05)
        agent.gate.set()
        assert (await job.result()).answer == "two three"
        events = [event async for event in job.events()]
        assert [event.text for event in events if event.text] == ["one", "two", "three"]
        assert [event.number for event in events[:-1]] == list(range(1, len(events)))
        assert [e.number for e in [event async for event in job.events(after=3)][:-1]] == list(range(4, len(events)))
        assert [known["job_id"] for known in await fabric.jobs()] == [job.job_id]


async def test_a_broken_connection_costs_no_event_and_repeats_none() -> None:
    async with running(agent := Slow()) as node, Proxy(node.port) as proxy, FabricClient(proxy.url, PSK) as fabric:
        job = await fabric.submit("slow", "count", "two three four")
        seen = []
        async with asyncio.timeout(30):
            async for event in job.events():
                seen.append(event)
                if event.text == "one":
                    proxy.drop()
                    agent.gate.set()
        assert [event.text for event in seen if event.text] == ["one", "two", "three", "four"]
        assert [event.number for event in seen[:-1]] == list(range(1, len(seen)))
        assert proxy.connections >= 2


async def test_a_handle_goes_on_after_the_node_was_restarted(tmp_path: Path) -> None:
    config = {"store": f"sqlite:{tmp_path / 'fabric.db'}"}
    async with running(agent := Slow(), config=config) as node, FabricClient(node.url, PSK) as fabric:
        agent.gate.set()
        job_id = (await fabric.submit("slow", "count", "two")).job_id
        assert (await fabric.job(job_id).result(20)).answer == "two"
    async with running(Slow(), config=config) as node, FabricClient(node.url, PSK) as fabric:
        assert (await fabric.job(job_id).result(20)).answer == "two"


async def test_a_jobs_failure_is_raised_as_what_it_is() -> None:
    async with running(Slow()) as node, FabricClient(node.url, PSK) as fabric:
        job = await fabric.submit("slow", "refuse", "x")
        with pytest.raises(UpstreamRefused, match="no") as failed:
            await job.result(20)
        assert failed.value.details["why"] == "because"
        waiting = await fabric.submit("slow", "count", "x")
        await waiting.cancel()
        with pytest.raises(JobCancelled):
            await waiting.result(20)
        with pytest.raises(JobNotFound):
            await fabric.job("job_nowhere").status()
        with pytest.raises(JobNotFound):
            await fabric.job("job_nowhere").result(20)


async def test_a_call_that_was_handed_over_says_so() -> None:
    config = {"jobs": {"job_after_ms": 50}}
    async with running(agent := Slow(), config=config) as node, FabricClient(node.url, PSK) as fabric:
        handed = await fabric.call("slow", "count", "two")
        assert handed.job_id is not None
        agent.gate.set()
        result = await fabric.job(handed.job_id).result(20)
        assert (result.answer, result.job_id) == ("two", None)


def test_the_same_without_an_event_loop() -> None:
    agent = Agent("slow")

    @agent.capability
    async def count(task: str) -> Any:
        yield "one"
        yield {"answer": task}

    with running_in_thread(agent) as url, SyncFabricClient(url, PSK) as fabric:
        job = fabric.submit("slow", "count", "two", priority="high")
        assert job.result(20).answer == "two"
        assert [event.text for event in job.events() if event.text] == ["one"]
        assert job.status()["priority"] == "high"
        assert job.cancel()["state"] == "completed"
        assert len(fabric.jobs()) == 1
