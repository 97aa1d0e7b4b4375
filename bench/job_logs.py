"""Reading a job's log: a long log from its start, and a log that thousands of clients follow while it grows."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

import msgspec

from bench import load, load_python, processes
from bench.job_agent import AGENT_ID
from bench.job_stores import ENGINES, BenchStores, run_node
from bench.processes import TOKEN, Cores, ServerProcess

_MARK = b"\nevent: token\n"
_FINAL = b"\nevent: final\n"
_PACE = 1.0  # seconds between two events
_PACED = 10
_SPARE_FILES = 200
_LONGEST = 600.0
_ONE_CALLER = "limits: {share_per_caller: 1}\n"  # all followers are one caller, who may have every stream of the node


class Follower(asyncio.Protocol):
    """One connection that counts events until the last one."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._rest = b""
        self.events = 0
        self.bytes = 0
        self.is_open = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.is_open.set()
        self.bytes += len(data)
        seen = self._rest + data
        self.events += seen.count(_MARK)
        if _FINAL in seen:
            self.ended.set()
        self._rest = seen[-(len(_MARK) - 1) :]  # too short to be counted twice

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def follow(port: int, job_id: str) -> Follower:
    body = _request("fabric.job.stream", {"job_id": job_id})
    request = load.request(port, "/mcp/call", body, token=TOKEN, accept="text/event-stream")
    _, follower = await asyncio.get_running_loop().create_connection(lambda: Follower(request), "127.0.0.1", port)
    return follower


def _request(operation: str, arguments: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"name": operation, "arguments": arguments})


async def _call_operation(port: int, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    _, connection = await asyncio.get_running_loop().create_connection(load_python.Connection, "127.0.0.1", port)
    try:
        await connection.send(load.request(port, "/mcp/call", _request(operation, arguments), token=TOKEN))
        reply: dict[str, Any] = msgspec.json.decode(connection.body)
        if not reply["ok"]:
            raise SystemExit(f"{operation}: {reply['error']}")
        result: dict[str, Any] = reply["result"]
        return result
    finally:
        connection.transport.close()


async def _start_job(port: int, events: int, pause: float) -> str:
    context = {"events": events, "pause": pause}
    arguments = {"agent_id": AGENT_ID, "capability": "tell", "task": "all", "context": context, "async": True}
    return str((await _call_operation(port, "fabric.call", arguments))["job_id"])


async def _until_ended(port: int, job_id: str) -> float:
    """Seconds that the job ran, by the clock of the store."""
    ends_at = time.monotonic() + _LONGEST
    while time.monotonic() < ends_at:
        job = await _call_operation(port, "fabric.job.status", {"job_id": job_id})
        if job["ended_at"] is not None:
            if job["state"] != "completed":
                raise SystemExit(f"the job ended as {job['state']}: {job.get('error')}")
            return float(job["ended_at"] - job["started_at"])
        await asyncio.sleep(0.05)
    raise SystemExit("the job does not end")


async def run(cores: Cores, stores: BenchStores, *, events: int, followers: int) -> None:
    print(f"\n| a log of {events:,} events | written/s | replayed/s | MB/s | CPU µs/event read |")
    print("|---|---|---|---|---|")
    for engine in ENGINES:
        with run_node(stores.create_store(engine), cores) as served:
            print(await _measure_replay(served, engine, events))
    most = min(followers, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES)
    print(f"\n| one job, {_PACED} events at {_PACE:g} s | followers | work took s | alone s | events that arrived "
          "| memory KB/follower | CPU µs/event |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for engine in ENGINES:
        with run_node(stores.create_store(engine), cores, settings=_ONE_CALLER) as served:
            print(await _measure_followers(served, engine, most))


async def _measure_replay(served: ServerProcess, engine: str, events: int) -> str:
    job_id = await _start_job(served.port, events, 0.0)
    took = await _until_ended(served.port, job_id)
    began, used = time.perf_counter(), processes.cpu_seconds(served.pid)
    follower = await follow(served.port, job_id)
    await asyncio.wait_for(follower.ended.wait(), _LONGEST)
    seconds, cpu = time.perf_counter() - began, processes.cpu_seconds(served.pid) - used
    follower.transport.close()
    if follower.events != events:
        raise SystemExit(f"{follower.events} of {events} events were replayed")
    return (
        f"| {engine} | {events / took:,.0f} | {events / seconds:,.0f} | {follower.bytes / seconds / 1e6:.1f} "
        f"| {cpu / events * 1e6:.1f} |"
    )


async def _measure_followers(served: ServerProcess, engine: str, count: int) -> str:
    port = served.port
    alone = await _until_ended(port, await _start_job(port, _PACED, _PACE))
    job_id = await _start_job(port, _PACED, _PACE)
    before = processes.memory_mb(served.pid)
    crowd = [await follow(port, job_id) for _ in range(count)]
    await asyncio.wait_for(asyncio.gather(*(each.is_open.wait() for each in crowd)), _LONGEST)
    used = processes.cpu_seconds(served.pid)
    memory = processes.memory_mb(served.pid) - before
    took = await _until_ended(port, job_id)
    await asyncio.wait_for(asyncio.gather(*(each.ended.wait() for each in crowd)), _LONGEST)
    arrived = sum(each.events for each in crowd)
    cpu = (processes.cpu_seconds(served.pid) - used) / max(arrived, 1)
    for each in crowd:
        each.transport.close()
    return (
        f"| {engine} | {count:,} | {took:.2f} | {alone:.2f} | {arrived:,} of {count * _PACED:,} "
        f"| {memory * 1024 / count:.1f} | {cpu * 1e6:.0f} |"
    )
