"""Jobs per second, accepted or run to the end: in the store, in the job engine, and through a node.

CPU time is that of the process with the job engine: this process for the first two,
the node for the last. The CPU time of the servers of PostgreSQL and NATS is not included.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from io import StringIO
from pathlib import Path

import msgspec

from a2a_fabric import plugins
from a2a_fabric.app import Fabric
from a2a_fabric.config import Config
from a2a_fabric.core.call import Call, Input, Principal, ResponseForm, Target
from a2a_fabric.core.job import ClaimRequest, HoldRequest, JobOutcome, NewJob, new_job_id
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Result, status, token
from a2a_fabric.core.stores import Store
from a2a_fabric.jobs.settings import JobOptions, JobSettings
from bench import load, processes, rig
from bench.job_agent import AGENT_ID, agent
from bench.job_stores import RATE_ENGINES, BenchStores, run_node
from bench.load import Load
from bench.processes import TOKEN, Cores
from bench.rows import Effort

CALLERS = (1, 64)
WORDS = "What is six times seven?"
QUEUED = (status("queued"),)
BEGUN, ENDING = (token("forty-"), token("two")), (status("complete"),)
HOLD = HoldRequest(worker="bench", lease=60.0)

Work = Callable[[], Awaitable[object]]
Measure = Callable[[int, float], Awaitable[Load]]  # callers, seconds


async def closed_loop(work: Work, callers: int, seconds: float) -> Load:
    """Run `callers` loops, each calling again after its reply."""
    latencies: list[float] = []
    began, used = time.perf_counter(), time.process_time()

    async def call() -> None:
        while (started := time.perf_counter()) - began < seconds:
            await work()
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(call() for _ in range(callers)))
    past = time.perf_counter() - began
    return Load(len(latencies), past, latencies, cpu=time.process_time() - used)


def call() -> Call:
    return Call(
        trace=new_trace(),
        auth=Principal(mode="psk", principal_id="bench", trust="local"),
        target=Target(agent_id=AGENT_ID, capability="reason"),
        input=Input(task=WORDS),
        response=ResponseForm(stream=True),
    )


@asynccontextmanager
async def open_store(address: str) -> AsyncIterator[Store]:
    store: Store = await plugins.load_store(address.partition(":")[0]).build(address)
    try:
        yield store
    finally:
        await store.aclose()


async def _accept(store: Store) -> None:
    new_call = call()
    meta = {"trace_id": new_call.trace.trace_id, "may_repeat": True}
    await store.jobs.accept(NewJob(job_id=new_job_id(), owner="psk:bench", call=new_call, meta=meta, events=QUEUED))


async def _accept_and_do(store: Store) -> None:
    """Run the next job in the queue; there are as many jobs as callers."""
    await _accept(store)
    jobs = await store.jobs.claim(ClaimRequest(hold=HOLD))
    for job in jobs:
        await store.jobs.append(job.fencing_token, BEGUN)
        result = Result(data={"answer": "forty-two"})
        await store.jobs.release(job.fencing_token, JobOutcome(state="completed", result=result, events=ENDING))


@asynccontextmanager
async def _engine(address: str) -> AsyncIterator[Fabric]:
    """A node without doors that only accepts jobs."""
    jobs = JobSettings(concurrent=0, waiting_per_principal=10**9)
    settings = Config(store=address, jobs=jobs)
    async with Fabric(settings, base=Path("/"), sources=[], agents=[agent], log_stream=StringIO()) as fabric:
        await asyncio.sleep(1.0)  # what a start leaves behind is not what is measured
        yield fabric


class StoreMeasurement:
    def __init__(self, store: Store, *, is_whole: bool) -> None:
        self._work = _accept_and_do if is_whole else _accept
        self._store = store

    async def measure(self, callers: int, seconds: float) -> Load:
        return await closed_loop(lambda: self._work(self._store), callers, seconds)


class EngineMeasurement:
    def __init__(self, fabric: Fabric) -> None:
        self._jobs = fabric.jobs

    async def measure(self, callers: int, seconds: float) -> Load:
        options = JobOptions(at_once=True)
        return await closed_loop(lambda: self._jobs.accept(call(), options), callers, seconds)


def plan_jobs(port: int, *, is_whole: bool) -> load.RequestPlan:
    """Calls that are jobs: the reply has the answer of the whole job, or only says that the job is stored."""
    mode = {"priority": "high"} if is_whole else {"async": True}
    arguments = {"agent_id": AGENT_ID, "capability": "reason", "task": WORDS, **mode}
    body = msgspec.json.encode({"name": "fabric.call", "arguments": arguments})
    expected = b'"answer":"forty-two"' if is_whole else b'"job_id"'
    return load.repeat_request(load.request(port, "/mcp/call", body, token=TOKEN), expected)


class NodeMeasurement:
    def __init__(self, served: processes.ServerProcess, *, is_whole: bool) -> None:
        self._served = served
        self._plan = plan_jobs(served.port, is_whole=is_whole)

    async def measure(self, callers: int, seconds: float) -> Load:
        result = await rig.run(self._served.port, self._plan, callers, load.Limit(seconds), self._served.pid)
        if result.failures:
            raise SystemExit(f"{result.failures} of {result.calls} jobs had another result than expected")
        return result


class Rates:
    """A row of the table, and its figures of each round."""

    def __init__(self, engine: str, way: str, measure: Measure) -> None:
        self.name = f"{engine}, {way}"
        self._measure = measure
        self._rounds: dict[int, list[Load]] = {}

    async def round(self, effort: Effort, *, is_warm: bool) -> None:
        for callers in CALLERS:
            done = await self._measure(callers, effort.seconds if is_warm else effort.warm_up)
            if is_warm:
                self._rounds.setdefault(callers, []).append(done)

    def cells(self, callers: int) -> str:
        rounds = self._rounds[callers]
        rate = statistics.median(done.rate for done in rounds)
        p50, p99 = (statistics.median(done.percentile(share) for done in rounds) * 1000 for share in (0.5, 0.99))
        cpu = statistics.median(done.cpu / max(done.calls, 1) for done in rounds) * 1e6
        return f"| {self.name} | {callers} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {cpu:.0f} |"


async def run(cores: Cores, stores: BenchStores, effort: Effort) -> None:
    print("\n| durable jobs accepted | callers | jobs/s | p50 ms | p99 ms | CPU µs/job |")
    await _table(cores, stores, effort, is_whole=False)
    print("\n| jobs from beginning to end, 2 events of the agent's | callers | jobs/s | p50 ms | p99 ms | CPU µs/job |")
    await _table(cores, stores, effort, is_whole=True)


async def _table(cores: Cores, stores: BenchStores, effort: Effort, *, is_whole: bool) -> None:
    async with AsyncExitStack() as stack:
        rows = [row for engine in RATE_ENGINES for row in await _rows(stack, cores, stores, engine, is_whole=is_whole)]
        for number in range(effort.rounds + 1):
            for row in rows:
                await row.round(effort, is_warm=number > 0)
    print("|---|---|---|---|---|---|")
    for callers in CALLERS:
        for row in rows:
            print(row.cells(callers))


async def _rows(
    stack: AsyncExitStack, cores: Cores, stores: BenchStores, engine: str, *, is_whole: bool
) -> list[Rates]:
    """Each row has its own store, so that no row pays for the records of another."""
    store = await stack.enter_async_context(open_store(stores.create_store(engine)))
    whole = "whole jobs " if is_whole else ""
    rows = [Rates(engine, f"{whole}at the store", StoreMeasurement(store, is_whole=is_whole).measure)]
    if not is_whole:
        fabric = await stack.enter_async_context(_engine(stores.create_store(engine)))
        rows.append(Rates(engine, "in the engine", EngineMeasurement(fabric).measure))
    served = stack.enter_context(run_node(stores.create_store(engine), cores, concurrent=64 if is_whole else 0))
    rows.append(Rates(engine, f"{whole}through a node", NodeMeasurement(served, is_whole=is_whole).measure))
    return rows
