"""The mesh of `deploy/compose/mesh`, started as processes: three NATS servers, three nodes, and calls between them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.fixtures.nats import find_program, free_port
from tests.system.node import Node, running_node, until
from tests.system.test_mesh import HELD, KEY, call, online

FOLDER = Path(__file__).parents[2] / "deploy" / "compose" / "mesh"
AGENT = "- {{agent_id: of-{name}, endpoint: {{uri: 'python:held:one'}}}}\n"


@contextmanager
def running_server(folder: Path, config: str) -> Iterator[None]:
    folder.mkdir()
    (folder / "nats.conf").write_text(config.replace('"/data"', json.dumps(str(folder / "data"))))
    environ = {**os.environ, "NATS_NAME": folder.name, "NATS_PASSWORD": "secret"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([find_program(), "-c", "nats.conf"], cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(30)


def start_compose_node(folder: Path, nats: str, stack: ExitStack) -> Node:
    """With the files of the compose folder, and one agent of its own beside theirs."""
    (folder / "home").mkdir(mode=0o700, parents=True)
    (folder / "home" / "key").write_text(KEY)
    (folder / "home" / "key").chmod(0o600)
    config = (FOLDER / "fabric.yaml").read_text()
    (folder / "fabric.yaml").write_text(config.replace("[agents.yaml]", "[agents.yaml, own.yaml]"))
    (folder / "agents.yaml").write_text((FOLDER / "agents.yaml").read_text())
    (folder / "own.yaml").write_text(AGENT.format(name=folder.name))
    (folder / "held.py").write_text(HELD)
    environ = {
        "NODE_ID": folder.name,
        "FABRIC_PSK": KEY,
        "MESH_KEY": "a-secret-of-the-mesh",
        "FABRIC_NATS": nats,
        "FABRIC_STORE": f"{nats}/fabric",
        "NODE": folder.name,
        "PYTHONPATH": str(folder),
    }
    return stack.enter_context(running_node(folder, **environ))


async def test_the_mesh_of_the_compose_file_starts_and_calls_go_between_its_nodes(tmp_path: Path) -> None:
    ports = {name: (free_port(), free_port()) for name in ("nats-1", "nats-2", "nats-3")}
    routes = (FOLDER / "nats.conf").read_text()
    for name, (_, route) in ports.items():
        routes = routes.replace(f"{name}:6222", f"127.0.0.1:{route}")
    with ExitStack() as stack:
        for name, (port, route) in ports.items():
            config = routes.replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace("0.0.0.0:6222", f"127.0.0.1:{route}")
            stack.enter_context(running_server(tmp_path / name, config))
        nats = f"nats://fabric:secret@{','.join(f'127.0.0.1:{port}' for port, _ in ports.values())}"
        nodes = [start_compose_node(tmp_path / name, nats, stack) for name in ("node-1", "node-2", "node-3")]
        agents = {"of-node-1", "of-node-2", "of-node-3"}
        for node in nodes:
            until(partial(lambda node: online(node) >= agents, node), "all agents at every node")
            assert {each["state"] for each in node.json("nodes")["nodes"]} == {"up"}
        assert any("replicas: 3" in node.said for node in nodes)  # of the store
        for node, name in zip(nodes, ("node-2", "node-3", "node-1"), strict=True):
            assert (await call(node, f"of-{name}", "where"))["result"]["node"] == name
