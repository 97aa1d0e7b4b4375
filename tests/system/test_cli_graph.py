"""`a2a-fabric run`: plans, live progress, exit codes, and a graph whose node is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marks import requirement
from tests.system.node import Node, running_node, until

AGENTS = """
- agent_id: shop
  endpoint: {uri: "python:workshop:agent"}
"""
CODE = """
import asyncio
from pathlib import Path
from a2a_fabric import Agent

agent = Agent("shop")

@agent.capability(side_effects="none")
async def mark(task: str):
    with Path("marks").open("a") as marks:
        marks.write(task + "\\n")
    return {"answer": task}

@agent.capability(side_effects="none")
async def wait(task: str):
    with Path("marks").open("a") as marks:
        marks.write("waits\\n")
    while not Path("gate").exists():
        await asyncio.sleep(0.02)
    return {"answer": "passed"}
"""
GRAPH = """
graph_id: trip
nodes:
  - {id: first, agent: shop, capability: mark, task: one}
  - {id: second, agent: shop, capability: wait, task: "after ${first}"}
  - {id: third, agent: shop, capability: mark, task: "${first}, ${second}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "agents.yaml").write_text(AGENTS)
    (folder / "workshop.py").write_text(CODE)
    (folder / "graph.yaml").write_text(GRAPH)
    (folder / "fabric.yaml").write_text("jobs: {lease_seconds: 1}\nstore: sqlite:fabric.db\n")
    return folder


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    with running_node(folder) as found:
        yield found


@requirement("003-40")
def test_a_graph_runs_with_plain_progress_on_a_pipe(node: Node) -> None:
    (node.folder / "gate").touch()
    done = node.run("run", "graph.yaml")
    assert done.returncode == 0, done.stderr
    assert "first: completed" in done.stderr
    assert "\x1b[" not in done.stderr
    assert done.stdout.endswith("3 of 3 nodes are completed.\n")
    as_json = [json.loads(line) for line in node.run("run", "graph.yaml", "--json").stdout.splitlines()]
    assert {(line["node"], line["state"]) for line in as_json if line["event"] == "node"} >= {("third", "completed")}
    assert as_json[-1]["result"]["nodes"]["third"]["result"]["answer"] == "one, passed"


@requirement("003-40")
def test_a_plan_is_printed_as_a_table_and_as_mermaid(node: Node) -> None:
    plan = node.run("run", "graph.yaml", "--plan")
    assert [line.split()[:2] for line in plan.stdout.splitlines()[-3:]] == [
        ["1", "first"],
        ["2", "second"],
        ["3", "third"],
    ]
    mermaid = node.run("run", "graph.yaml", "--plan", "mermaid").stdout
    assert mermaid.splitlines()[:2] == ["flowchart TD", '  first["first: shop mark"]']
    assert "  first --> second" in mermaid
    assert not (node.folder / "marks").exists()


def test_a_bad_graph_says_where(node: Node) -> None:
    (node.folder / "cycle.yaml").write_text(GRAPH.replace("task: one", 'task: "${third}"'))
    cycle = node.run("run", "cycle.yaml")
    assert cycle.returncode == 1
    assert "the graph has a cycle" in cycle.stderr
    (node.folder / "typo.yaml").write_text(GRAPH.replace("capability: wait", "capabilty: wait"))
    typo = node.run("run", "typo.yaml")
    assert typo.returncode == 1
    assert "typo.yaml:5" in typo.stderr
    assert "capabilty" in typo.stderr
    assert node.run("run", "missing.yaml").returncode == 1
    assert node.run("run", "graph.yaml", "mermaid").returncode == 2


@requirement("003-40")
def test_a_killed_graph_goes_on_without_repeating_what_is_done(folder: Path) -> None:
    marks = folder / "marks"
    with running_node(folder) as node:
        job_id = node.run("run", "graph.yaml", "--async").stdout.strip()
        until(lambda: marks.exists() and "waits" in marks.read_text(), "the second node to begin")
        node.process.kill()
        node.process.wait()
    (folder / "gate").touch()
    with running_node(folder) as node:
        done = node.run("jobs", "follow", job_id)
        assert done.returncode == 0, done.stderr
        assert "3 of 3 nodes are completed." in done.stdout
        lines = marks.read_text().splitlines()
        assert lines.count("one") == 1
        assert lines[-1] == "one, passed"
