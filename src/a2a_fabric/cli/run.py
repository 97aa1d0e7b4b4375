"""`a2a-fabric run GRAPH.yaml`: run a task graph and show all its nodes as they work, or only print its plan."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from a2a_fabric.cli.connection import connect, run_request
from a2a_fabric.cli.follow import build_follow_command
from a2a_fabric.cli.options import Json, Token, Url
from a2a_fabric.cli.output import clip_text, format_value, print_json, print_json_line, print_line, print_table, remark
from a2a_fabric.client.client import FabricClient, JobHandle
from a2a_fabric.client.wire import CallResult, StreamEvent
from a2a_fabric.core.errors import UpstreamInterrupted
from a2a_fabric.graphs.model import TaskGraph, plan_graph, render_mermaid
from a2a_fabric.yamlfile import YAMLFile

_SHOWN_NODES = 30  # rows of the table on a terminal


def run(
    file: Annotated[Path, typer.Argument(metavar="GRAPH.yaml", help="The graph: YAML or JSON.")],
    form: Annotated[str, typer.Argument(metavar="[mermaid]", help="With --plan: a Mermaid flowchart.")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Run nothing; print the order of the nodes.")] = False,
    as_job: Annotated[bool, typer.Option("--async", help="Do not wait: start the graph and print its job.")] = False,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A second run with the same key returns the same graph.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Run a task graph: work for several agents, as one job.

    Nodes that do not depend on one another run in parallel.

    Each node is a job of its own. Ctrl-C stops following; the graph goes on. The exit code is 1 if a node failed.

    Example: a2a-fabric run trip.yaml --plan mermaid
    """
    if form and (form != "mermaid" or not plan):
        raise typer.BadParameter(f"'{form}': only `mermaid`, and only with --plan", param_hint="[mermaid]")
    graph = read_graph(file)
    if plan and form:
        print_line(render_mermaid(plan_graph(graph)))
        return
    node = connect(url, token)
    arguments: dict[str, Any] = {"graph": msgspec.to_builtins(graph)}
    if plan:
        answer = run_request(node, lambda client: client.operation("fabric.graph.plan", **arguments), as_json=as_json)
        _print_plan(answer, as_json=as_json)
        return
    arguments |= {"async": True, **({} if key is None else {"idempotency_key": key})}
    follower = _Follower(graph, as_json=as_json)

    async def start_and_follow(client: FabricClient) -> CallResult | None:
        job = await client.operation("fabric.graph.run", **arguments)
        follower.job_id = str(job["job_id"])
        return None if as_job else await follower.follow(client.job(follower.job_id))

    try:
        result = run_request(node, start_and_follow, as_json=as_json)
    except KeyboardInterrupt:
        if follower.job_id is not None:
            remark(f"Detached; the graph goes on. Follow it with: {build_follow_command(follower.job_id, url=url)}")
        raise
    if result is None:
        if as_json:
            print_json({"job_id": follower.job_id})
        else:
            print_line(str(follower.job_id))
        return
    _print_result(result.data, as_json=as_json)
    if result.data.get("status") != "completed":
        raise typer.Exit(1)


def read_graph(file: Path) -> TaskGraph:
    """Raises ConfigError, which names the file, the line and the field."""
    return YAMLFile.read(file).decode(TaskGraph)


class _Follower:
    """Shows the nodes of a graph: a live table on a terminal, else one line for each change."""

    def __init__(self, graph: TaskGraph, *, as_json: bool) -> None:
        self.job_id: str | None = None
        self._as_json = as_json
        self._states = {
            node.id: ("waiting", f"{node.agent} {node.capability or ''}".strip(), "") for node in graph.nodes
        }
        self._console = Console(stderr=True)

    async def follow(self, job: JobHandle) -> CallResult:
        is_live = self._console.is_terminal and not self._as_json
        if not is_live:
            return await self._read(job, None)
        with Live(self._build_table(), console=self._console, transient=True, refresh_per_second=8) as live:
            return await self._read(job, live)

    async def _read(self, job: JobHandle, live: Live | None) -> CallResult:
        async with aclosing(job.events()) as events:
            async for event in events:
                if event.kind == "final":
                    return event.result
                if event.kind == "progress" and event.data.get("node") in self._states:
                    self._show(event, live)
        raise UpstreamInterrupted("The stream ended before the graph did")

    def _show(self, event: StreamEvent, live: Live | None) -> None:
        node_id, state, reason = event.data["node"], str(event.data["state"]), str(event.data.get("reason") or "")
        self._states[node_id] = (state, self._states[node_id][1], reason)
        if live is not None:
            live.update(self._build_table())
        elif self._as_json:
            print_json_line({"event": "node", **event.data})
        else:
            remark(f"{event.data.get('percent', 0):5.1f} %  {node_id}: {state}" + (f" ({reason})" if reason else ""))
        sys.stdout.flush()

    def _build_table(self) -> Table:
        table = Table("node", "state", "agent", "", box=None, pad_edge=False)
        order = sorted(self._states.items(), key=lambda item: item[1][0] != "running")
        for node_id, (state, agent, reason) in order[:_SHOWN_NODES]:
            table.add_row(node_id, state, agent, reason)
        if len(order) > _SHOWN_NODES:
            table.add_row(f"… {len(order) - _SHOWN_NODES} more")
        return table


def _print_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    nodes = {node["id"]: node for node in plan["nodes"]}
    rows = [
        (str(number), node_id, f"{nodes[node_id]['agent']} {nodes[node_id]['capability']}",
         ", ".join(nodes[node_id]["needs"]), nodes[node_id]["when"] or "")
        for number, level in enumerate(plan["levels"], 1)
        for node_id in level
    ]  # fmt: skip
    print_table(("step", "node", "agent", "needs", "only if"), rows)


def _print_result(data: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json_line({"event": "final", "result": data})
        return
    rows = []
    for node_id, node in data["nodes"].items():
        problem = (node.get("error") or {}).get("message") or node.get("reason")
        result = node.get("result") or {}
        shown = (
            result["answer"] if isinstance(result.get("answer"), str) else format_value(result) if result else problem
        )
        rows.append((node_id, node.get("state", "waiting"), clip_text(shown or "")))
    print_table(("node", "state", "result"), rows)
    print_line(data["answer"])
