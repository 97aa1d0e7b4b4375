"""A task graph of 1,000 nodes beside the same 1,000 jobs alone, in one node with SQLite."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from a2a_fabric.agent import Agent
from a2a_fabric.app import Fabric
from a2a_fabric.config import Config
from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.graphs.model import GraphNode, TaskGraph
from a2a_fabric.graphs.runner import GraphRequest, Graphs
from a2a_fabric.jobs.settings import JobOptions

NODES = 1000
CHAINS = 50
PARALLEL = 64
ROUNDS = 3


def run(runner: asyncio.Runner) -> None:
    alone, graph = runner.run(_measure())
    print(f"\n| {NODES:,} jobs, {PARALLEL} at a time | s | ratio |")
    print("|---|---|---|")
    print(f"| alone | {alone:.2f} | 1.00 |")
    print(f"| as a graph of {CHAINS} chains | {graph:.2f} | {graph / alone:.2f} |")


async def _measure() -> tuple[float, float]:
    agent = Agent("echo")

    @agent.capability(side_effects="none")
    async def say(task: str) -> dict[str, Any]:
        return {"answer": task}

    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        config = Config(store=f"sqlite:{Path(folder) / 'fabric.db'}")
        async with Fabric(config, base=Path(folder), sources=[], agents=[agent], log_stream=log) as node:
            times: dict[str, list[float]] = {"alone": [], "graph": []}
            graphs = node.operations.graphs
            for _ in range(ROUNDS):
                times["alone"].append(await _run_alone(node))
                times["graph"].append(await _run_graph(node, graphs))
            return statistics.median(times["alone"]), statistics.median(times["graph"])


async def _run_alone(node: Fabric) -> float:
    slots = asyncio.Semaphore(PARALLEL)

    async def run_job(number: int) -> None:
        async with slots:
            call = Call(
                trace=new_trace(),
                auth=Principal(trust="local"),
                target=Target(agent_id="echo", capability="say"),
                input=Input(task=f"job {number}"),
            )
            job = await node.jobs.accept(call, JobOptions(at_once=True))
            await node.jobs.wait_for_end(job.job_id)

    began = time.perf_counter()
    await asyncio.gather(*(run_job(number) for number in range(NODES)))
    return time.perf_counter() - began


async def _run_graph(node: Fabric, graphs: Graphs) -> float:
    nodes = tuple(
        GraphNode(
            id=f"n{number}",
            agent="echo",
            capability="say",
            task=f"job {number}" if number < CHAINS else f"after ${{n{number - CHAINS}.answer}}"[:80],
        )
        for number in range(NODES)
    )
    graph = TaskGraph(nodes=nodes, parallel=PARALLEL)
    began = time.perf_counter()
    job = await graphs.accept(GraphRequest(graph=graph, principal=Principal(trust="local"), trace=new_trace()))
    ended = await node.jobs.wait_for_end(job.job_id)
    seconds = time.perf_counter() - began
    if ended.result is None or ended.result.data["status"] != "completed":
        raise RuntimeError(f"the graph ended as {ended.state}: {ended.error}")
    return seconds
