"""Nodes that find each other over a real NATS: one catalog, calls to the node with the agent, no sticky sessions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.fixtures.nats import NatsServer, find_program, free_port
from tests.marks import requirement
from tests.system.node import Node, run, running_node, until

KEY = "the-key-of-the-operator"
HELD = """
import asyncio, os, signal
from a2a_fabric import Agent
from a2a_fabric.core.result import progress

def make(name):
    agent = Agent(name)

    @agent.capability
    async def where(task: str = "") -> dict:
        return {"node": os.environ["NODE"], "task": task}

    @agent.capability
    async def write(size: int) -> dict:
        return {"text": "x" * size}

    @agent.capability
    async def rest(seconds: float) -> dict:
        started.append(seconds)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(seconds)
            raise
        return {"rested": seconds}

    @agent.capability
    async def cancelled_rests() -> dict:
        return {"started": len(started), "cancelled": len(cancelled)}

    return agent

started, cancelled = [], []
one, two, three, shared = make("one"), make("two"), make("three"), make("shared")
"""
SERVER = """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("asking")

class Name(BaseModel):
    name: str

@server.tool()
async def greet(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", schema=Name)
    return f"Hello {answer.data.name}"

server.run()
"""


def write_node(folder: Path, name: str, nats: NatsServer, *, agents: str, site: str = "here", more: str = "") -> None:
    folder.mkdir()
    (folder / "fabric.yaml").write_text(
        f"node_id: {name}\nagents: [agents.yaml]\nstore: sqlite:fabric.db\n"
        f"mesh: {{nats: 'nats://127.0.0.1:{nats.port}', site: {site}, key: env:MESH_KEY{more}}}\n"
    )
    (folder / "agents.yaml").write_text(agents)
    (folder / "held.py").write_text(HELD)
    (folder / "server.py").write_text(SERVER)
    (folder / "home").mkdir(mode=0o700)
    (folder / "home" / "key").write_text(KEY)
    (folder / "home" / "key").chmod(0o600)


def start_node(
    folder: Path, stack: ExitStack, *words: str, mesh_key: str = "a-secret-of-the-mesh", source: Path | None = None
) -> Node:
    """`source` is the code of another version of the program."""
    path = os.pathsep.join(map(str, [*filter(None, [source]), folder]))
    env = {"NODE": folder.name, "PYTHONPATH": path, "MESH_KEY": mesh_key}
    return stack.enter_context(running_node(folder, *words, **env))


class Mesh:
    def __init__(self, nats: NatsServer, folder: Path, one: Node, two: Node, three: Node) -> None:
        self.nats = nats
        self.folder = folder
        self.nodes = (one, two, three)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("mesh")
    held = "- {agent_id: shared, endpoint: {uri: 'python:held:shared'}}\n"
    for name, shares in (("one", False), ("two", True), ("three", True)):
        own = f"- {{agent_id: of-{name}, endpoint: {{uri: 'python:held:{name}'}}}}\n"
        asking = f"- {{agent_id: asking, runtime: mcp, endpoint: {{command: [{sys.executable}, server.py]}}}}\n"
        agents = own + (held if shares else "") + (asking if name == "three" else "")
        write_node(folder / name, name, nats, agents=agents, site="there" if name == "three" else "here")
    with ExitStack() as stack:
        nodes = [start_node(folder / name, stack) for name in ("one", "two", "three")]
        for node in nodes:
            until(partial(has_all, node), "all agents at every node", timeout=25)  # a lost question takes 30
        yield Mesh(nats, folder, *nodes)


def has_all(node: Node) -> bool:
    return len(online(node)) == 5


def online(node: Node) -> set[str]:
    return {each["agent_id"] for each in node.json("agents")["agents"] if each["status"] == "online"}


def connect(node: Node, **headers: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        node.url, headers={"Authorization": f"Bearer {KEY}", **headers}, timeout=aiohttp.ClientTimeout(total=40)
    )


async def call(node: Node, agent: str, capability: str, **arguments: Any) -> Any:
    names: tuple[str, ...] = ("continuation", "answers", "timeout_ms")
    more = {name: arguments.pop(name) for name in names if name in arguments}
    body: dict[str, Any] = {"agent_id": agent, "capability": capability, "task": "", "context": arguments, **more}
    async with (
        connect(node) as session,
        session.post("/mcp/call", json={"name": "fabric.call", "arguments": body}) as reply,
    ):
        return await reply.json()


@requirement("000-24", "001-12")
async def test_every_node_calls_every_agent_wherever_it_is(mesh: Mesh) -> None:
    for node in mesh.nodes:
        for name in ("one", "two", "three"):
            envelope = await call(node, f"of-{name}", "where")
            assert envelope["ok"], envelope
            assert envelope["result"]["node"] == name


async def test_of_several_nodes_that_hold_an_agent_those_of_the_own_site_come_first(mesh: Mesh) -> None:
    one = mesh.nodes[0]
    assert (await call(one, "shared", "where"))["result"]["node"] == "two"
    plan = one.json("route", "shared", "where")
    assert (plan["node"], "site" in plan["node_reason"]) == ("two", True)
    assert "The call would go to node two: " in one.run("route", "shared", "where").stderr
    assert (await call(mesh.nodes[2], "shared", "where"))["result"]["node"] == "three"


async def test_the_overview_for_operators_lists_the_nodes(mesh: Mesh) -> None:
    async with connect(mesh.nodes[0]) as session, session.post("/admin/v1/overview", json={}) as reply:
        overview = (await reply.json())["result"]
    assert overview["mesh_nodes"][0]["node"] == "one"  # which tells its own figures
    assert {each["node"] for each in overview["mesh_nodes"]} >= {"one", "two", "three"}
    assert overview["missing_processes"] == []


async def test_the_call_at_the_other_node_has_the_same_trace(mesh: Mesh) -> None:
    envelope = await call(mesh.nodes[0], "of-two", "where")
    trace = envelope["trace"]["trace_id"]
    until(lambda: trace in mesh.nodes[1].said, "the call in the other node's log")


async def test_the_trace_of_a_call_is_one_tree_over_both_nodes(mesh: Mesh) -> None:
    envelope = await call(mesh.nodes[0], "of-two", "where")
    spans = mesh.nodes[0].json("trace", envelope["trace"]["trace_id"])["spans"]
    assert {span["node"] for span in spans} == {"one", "two"}
    known = {span["span_id"] for span in spans}
    assert [span["name"] for span in spans if span.get("parent_span_id") not in known] == [spans[0]["name"]]
    assert len(known) == len(spans)


async def test_replies_of_any_size_arrive_whole(mesh: Mesh) -> None:
    envelope = await call(mesh.nodes[0], "of-three", "write", size=10_000_000)
    assert envelope["ok"], str(envelope)[:500]
    assert len(envelope["result"]["text"]) == 10_000_000


async def test_a_caller_that_leaves_cancels_the_work_at_the_other_node(mesh: Mesh) -> None:
    one, two, _ = mesh.nodes
    body = {"agent_id": "of-two", "capability": "rest", "task": "", "context": {"seconds": 60}}
    async with connect(one) as session:
        request = asyncio.ensure_future(session.post("/mcp/call", json={"name": "fabric.call", "arguments": body}))
        await wait_for_rest(two, "started")
        request.cancel()
    await wait_for_rest(two, "cancelled")


async def wait_for_rest(node: Node, state: str) -> None:
    async with asyncio.timeout(20):
        while not (await call(node, "of-two", "cancelled_rests"))["result"][state]:  # noqa: ASYNC110  # elsewhere
            await asyncio.sleep(0.05)


async def test_a_deadline_holds_over_nodes(mesh: Mesh) -> None:
    envelope = await call(mesh.nodes[0], "of-three", "rest", seconds=30, timeout_ms=300)
    assert envelope["error_code"] == "TIMEOUT", envelope


def last_message(text: str) -> Any:
    data = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    return json.loads(data[-1] if data else text)


async def test_a_session_of_mcp_goes_on_at_every_node(mesh: Mesh) -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    accept = {"Accept": "application/json, text/event-stream"}
    async with connect(mesh.nodes[0], **accept) as session:
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        async with session.post("/mcp", json=begin) as reply:
            assert reply.status == 200
            name = reply.headers["mcp-session-id"]
    headers = {**accept, "Mcp-Session-Id": name, "MCP-Protocol-Version": "2025-06-18"}
    for node in mesh.nodes:
        async with connect(node, **headers) as session:
            async with session.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}) as reply:
                assert reply.status == 202
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
                    "params": {"name": "of_two_where", "arguments": {}}}  # fmt: skip
            async with session.post("/mcp", json=body) as reply:
                text = await reply.text()
                assert reply.status == 200, text
            assert last_message(text)["result"]["structuredContent"]["node"] == "two", text
    async with connect(mesh.nodes[2], **headers) as session, session.delete("/mcp") as reply:
        assert reply.status in (200, 202, 204)
    ping = {"jsonrpc": "2.0", "id": 3, "method": "ping"}
    async with connect(mesh.nodes[0], **headers) as session, session.post("/mcp", json=ping) as reply:
        assert reply.status == 404


async def test_a_question_of_an_agent_elsewhere_is_answered_at_any_node(mesh: Mesh) -> None:
    for asked_at, answered_at in ((0, 0), (0, 1), (1, 2)):
        envelope = await call(mesh.nodes[asked_at], "asking", "greet")
        questions = envelope["result"]["input_required"]
        (key,) = questions["questions"]
        answers = {key: {"content": {"name": "Ada"}}}
        continuation = questions["continuation"]
        answered = await call(mesh.nodes[answered_at], "asking", "greet", continuation=continuation, answers=answers)
        assert answered["ok"], (asked_at, answered_at, answered)
        assert answered["result"]["result"] == "Hello Ada"


def test_the_nodes_are_listed_with_site_state_and_load(mesh: Mesh) -> None:
    nodes = mesh.nodes[0].json("nodes")["nodes"]
    assert [(each["member"], each["site"], each["state"]) for each in nodes] == [
        ("one", "here", "up"),
        ("three", "there", "up"),
        ("two", "here", "up"),
    ]
    assert "three" in mesh.nodes[1].run("nodes").stdout
    health = mesh.nodes[0].json("health")
    assert health["mesh"]["nodes"] == 3
    for _ in range(10):  # also one that was heard of in this moment
        _, own, *others = mesh.nodes[0].run("nodes").stdout.splitlines()
        assert own.endswith(" here")
        assert all(line.endswith(" ago") for line in others), others


async def test_a_node_that_dies_is_noticed_and_its_replicas_take_over(nats: NatsServer, tmp_path: Path) -> None:
    declared = {"alpha": "twin-a, pool: twins", "beta": "twin-b, pool: twins", "gamma": "lonely"}
    for name, start in declared.items():
        agents = f"- {{agent_id: {start}, endpoint: {{uri: 'python:held:one'}}}}\n"
        write_node(tmp_path / name, name, nats, agents=agents, more=", name: second, heartbeat_seconds: 0.5")
    with ExitStack() as stack:
        alpha, _, gamma = (start_node(tmp_path / name, stack) for name in ("alpha", "beta", "gamma"))
        until(lambda: len(online(gamma)) == 3, "both twins")
        assert (await call(gamma, "twin-a", "where"))["ok"]
        alpha.process.kill()
        alpha.wait()
        until(lambda: "twin-a" not in online(gamma), "the dead node to be noticed", timeout=5)
        envelope = await call(gamma, "twin-a", "where")
        assert envelope["ok"], envelope
        assert envelope["result"]["node"] == "beta"
        until(lambda: "node alpha has left the mesh: it was silent" in gamma.said, "the line in the log")
        offline = next(each for each in gamma.json("agents")["agents"] if each["agent_id"] == "twin-a")
        assert offline["status"] == "offline"
        start_node(tmp_path / "alpha", stack)
        until(lambda: len(online(gamma)) == 3, "the node to be back")


async def test_nodes_go_on_alone_while_nats_is_away_and_join_again(tmp_path: Path) -> None:
    server = NatsServer(jetstream="").start()
    try:
        for name in ("left", "right"):
            agents = f"- {{agent_id: of-{name}, endpoint: {{uri: 'python:held:one'}}}}\n"
            write_node(tmp_path / name, name, server, agents=agents, more=", heartbeat_seconds: 0.5")
        with ExitStack() as stack:
            left, right = (start_node(tmp_path / name, stack) for name in ("left", "right"))
            until(lambda: len(online(left)) == 2, "the other node")
            server.kill()
            until(lambda: online(left) == {"of-left"}, "the other node's agent to be offline")
            assert (await call(left, "of-left", "where"))["ok"]
            envelope = await call(left, "of-right", "where")
            assert envelope["error_code"] == "AGENT_OFFLINE", envelope
            server.start()
            until(lambda: len(online(left)) == 2 and len(online(right)) == 2, "both to be one mesh again")
            assert (await call(left, "of-right", "where"))["result"]["node"] == "right"
    finally:
        server.remove()


async def test_a_site_that_is_cut_off_goes_on_with_its_own_agents_and_joins_again(tmp_path: Path) -> None:
    port = free_port()
    hub = NatsServer(f"leafnodes {{ listen: 127.0.0.1:{port} }}", jetstream="").start()
    leaf = NatsServer(
        f"leafnodes {{ remotes: [{{ url: nats://127.0.0.1:{port} }}], reconnect: 1 }}", jetstream=""
    ).start()
    try:
        for name, server, site in (("head", hub, "office"), ("mill", leaf, "plant"), ("saw", leaf, "plant")):
            agents = f"- {{agent_id: of-{name}, endpoint: {{uri: 'python:held:one'}}}}\n"
            write_node(tmp_path / name, name, server, agents=agents, site=site, more=", heartbeat_seconds: 0.5")
        with ExitStack() as stack:
            head, mill, _ = (start_node(tmp_path / name, stack) for name in ("head", "mill", "saw"))
            until(lambda: len(online(mill)) == 3 and len(online(head)) == 3, "one mesh over both servers")
            assert (await call(head, "of-saw", "where"))["result"]["node"] == "saw"
            hub.kill()
            until(lambda: online(mill) == {"of-mill", "of-saw"}, "the site to be alone")
            assert (await call(mill, "of-saw", "where"))["result"]["node"] == "saw"
            hub.start()
            until(lambda: len(online(mill)) == 3 and len(online(head)) == 3, "the site to be back")
            assert (await call(head, "of-saw", "where"))["ok"]
    finally:
        leaf.remove()
        hub.remove()


async def test_a_node_without_the_key_of_the_mesh_is_no_part_of_it(mesh: Mesh, tmp_path: Path) -> None:
    agents = "- {agent_id: of-stranger, endpoint: {uri: 'python:held:one'}}\n"
    write_node(tmp_path / "stranger", "stranger", mesh.nats, agents=agents)
    with ExitStack() as stack:
        stranger = start_node(tmp_path / "stranger", stack, mesh_key="another-secret-of-16")
        until(lambda: "joined the mesh" in stranger.said, "the stranger to be connected")
        sentence = "it has another `key`. Nodes hear each other only with the same `key`"
        until(lambda: f"said to be of node 'one', was dropped: {sentence}" in stranger.said, "the stranger to be told")
        one = mesh.nodes[0]
        until(lambda: f"said to be of node 'stranger', was dropped: {sentence}" in one.said, "the others to be told")
        await asyncio.sleep(2.5)  # more than two heartbeats
        assert online(stranger) == {"of-stranger"}
        assert "of-stranger" not in online(one)
        assert one.said.count("said to be of node 'stranger'") == 1


async def test_of_two_nodes_with_one_name_the_later_gives_way_and_says_so(mesh: Mesh, tmp_path: Path) -> None:
    agents = "- {agent_id: of-second, endpoint: {uri: 'python:held:one'}}\n"
    write_node(tmp_path / "two", "two", mesh.nats, agents=agents)
    with ExitStack() as stack:
        second = start_node(tmp_path / "two", stack)
        until(lambda: "is called 'two', too" in second.said, "the second node to notice")
        assert "Give this node another `node_id`" in second.json("health")["mesh"]["problem"]
        assert "is called 'two', too" in second.run("health").stdout
        assert "mesh      3 nodes" in mesh.nodes[0].run("health").stdout
        assert (await call(mesh.nodes[0], "of-two", "where"))["ok"]
        assert "of-second" not in online(mesh.nodes[0])


async def test_a_node_that_stops_says_so_and_is_gone_at_once(mesh: Mesh, tmp_path: Path) -> None:
    agents = "- {agent_id: of-guest, endpoint: {uri: 'python:held:one'}}\n"
    write_node(tmp_path / "guest", "guest", mesh.nats, agents=agents)
    with ExitStack() as stack:
        guest = start_node(tmp_path / "guest", stack)
        until(lambda: "of-guest" in online(mesh.nodes[0]), "the guest")
        guest.signal(signal.SIGTERM)
        assert guest.wait() == 0
        until(lambda: "node guest has left the mesh: it stopped" in mesh.nodes[0].said, "the others to know")


async def test_a_site_shares_only_what_it_exports(nats: NatsServer, tmp_path: Path) -> None:
    own = "".join(
        f"- {{agent_id: {name}, endpoint: {{uri: 'python:held:one'}}, tags: [{tag}]}}\n"
        for name, tag in (("open", "public"), ("closed", "internal"))
    )
    shares = ", name: sites, exports: {tags: [public]}"
    write_node(tmp_path / "plant", "plant", nats, agents=own, site="plant", more=shares)
    write_node(tmp_path / "bench", "bench", nats, agents="[]\n", site="plant", more=", name: sites")
    write_node(tmp_path / "office", "office", nats, agents="[]\n", site="office", more=", name: sites")
    with ExitStack() as stack:
        _, bench, office = (start_node(tmp_path / name, stack) for name in ("plant", "bench", "office"))
        until(lambda: online(bench) == {"open", "closed"}, "the same site to see all")
        until(lambda: "open" in online(office), "the other site to see what is exported")
        assert online(office) == {"open"}
        assert (await call(office, "closed", "where"))["error_code"] == "AGENT_NOT_FOUND"


def test_a_mesh_needs_a_name_for_each_node(tmp_path: Path, nats: NatsServer) -> None:
    write_node(tmp_path / "nameless", "local", nats, agents="[]\n")
    with ExitStack() as stack, pytest.raises(AssertionError, match="Set `node_id`"):
        start_node(tmp_path / "nameless", stack)


def test_the_mesh_of_the_compose_file_is_well_formed(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "deploy" / "compose" / "mesh"
    environ = {"NATS_NAME": "nats-1", "NATS_PASSWORD": "secret"}
    checked = subprocess.run(
        [find_program(), "-t", "-c", str(folder / "nats.conf")],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is valid" in checked.stdout + checked.stderr
    nats = "nats://fabric:secret@127.0.0.1:4222"
    secrets = {"NODE_ID": "node-1", "FABRIC_PSK": KEY, "MESH_KEY": "a-secret-of-the-mesh", "FABRIC_NATS": nats}
    config = str(folder / "fabric.yaml")
    done = run("check", "--config", config, home=tmp_path, folder=tmp_path, FABRIC_STORE=f"{nats}/fabric", **secrets)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for name in ("node-1", "node-2", "node-3"):
        assert services[name]["environment"].keys() >= {*secrets, "FABRIC_STORE"}
        assert f"server {name}:8000" in (folder / "nginx.conf").read_text()
    mounted = [each for service in services.values() for each in service.get("volumes", ()) if each.startswith("./")]
    assert all((folder / each.partition(":")[0]).is_file() for each in mounted)
