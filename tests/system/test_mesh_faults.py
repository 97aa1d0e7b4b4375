"""What other nodes and callers see when something between nodes fails, is slow, refuses, is old, or is large."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.core.agent import Capability, ListedAgent, Manifest, NodeListing
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.propagation import new_id
from a2a_fabric.mesh.app import PeerApp
from a2a_fabric.mesh.mailbox import NodeMailbox
from a2a_fabric.mesh.membership import Announcement
from a2a_fabric.mesh.services import PeerServices
from a2a_fabric.nats.address import parse_nats_address
from a2a_fabric.nats.connection import NatsConnection
from a2a_fabric.nats.direct import DirectClient
from tests.fixtures.nats import NatsCluster, NatsServer, free_port
from tests.fixtures.nats_relay import NatsRelay
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.system.node import Node as NodeProcess
from tests.system.node import until
from tests.system.test_mesh import call as call_process
from tests.system.test_mesh import online, start_node, write_node

OLD_REVISION = "c100336"  # of this repository: before the mesh's protocol had a number
ROOT = Path(__file__).parents[2]


def make_agent(name: str) -> Agent:
    agent = Agent(f"of-{name}")

    @agent.capability
    async def where(task: str = "") -> dict[str, str]:
        return {"node": name, "task": task}

    return agent


@asynccontextmanager
async def joined(
    name: str,
    address: str,
    mesh: str,
    body_bytes: int = 16 << 20,
    *,
    site: str = "default",
    store: str = "memory:",
    heartbeat: float = 0.3,
) -> AsyncIterator[Node]:
    """A node in this process, with one agent."""
    settings = {
        "nats": address,
        "name": mesh,
        "site": site,
        "key": "a-secret-of-the-mesh",
        "heartbeat_seconds": heartbeat,
    }
    limits = {"body_bytes": body_bytes, "reply_bytes": 16 << 20}
    config = {"node_id": name, "mesh": settings, "limits": limits, "store": store}
    async with running(make_agent(name), config=config) as node:
        yield node


async def ask(node: Node, name: str, task: str = "hi") -> Any:
    return await node.ask(f"of-{name}", "where", task)


async def wait_until_online(node: Node, name: str) -> None:
    async def is_online() -> bool:
        return node.fabric.registry.health.get(f"of-{name}").status == "online"

    await eventually(is_online)


async def wait_until_offline(node: Node, name: str) -> None:
    async def is_offline() -> bool:
        return node.fabric.registry.health.get(f"of-{name}").status == "offline"

    await eventually(is_offline)


async def test_a_killed_server_of_a_cluster_costs_its_nodes_one_reconnection() -> None:
    cluster = NatsCluster()
    try:
        await asyncio.to_thread(cluster.start)
        addresses = [f"nats://127.0.0.1:{server.port}" for server in cluster.servers]
        both = f"nats://127.0.0.1:{cluster.servers[0].port},127.0.0.1:{cluster.servers[1].port}"
        async with joined("left", both, "killed") as left, joined("right", addresses[2], "killed") as right:
            await wait_until_online(left, "right")
            cluster.servers[0].kill()

            async def is_answered() -> bool:
                there, back = await ask(left, "right"), await ask(right, "left")
                return bool(there["ok"] and back["ok"])

            await eventually(is_answered)
    finally:
        cluster.remove()


async def test_a_node_whose_connection_falls_silent_goes_on_alone_and_joins_again(nats: NatsServer) -> None:
    async with NatsRelay(nats.port) as relay:
        near, far = f"nats://127.0.0.1:{nats.port}", f"nats://127.0.0.1:{relay.port}"
        async with joined("near", near, "cut") as stays, joined("far", far, "cut") as cut:
            await wait_until_online(stays, "far")
            await wait_until_online(cut, "near")
            relay.hold()
            await wait_until_offline(stays, "far")
            await wait_until_offline(cut, "near")
            assert (await ask(cut, "far"))["ok"]  # its own agents go on
            refused = await ask(stays, "far")
            assert (refused["error_code"], "node 'far'" in refused["error"]) == ("AGENT_OFFLINE", True), refused
            relay.go_on()
            relay.drop()
            await wait_until_online(stays, "far")
            await wait_until_online(cut, "near")
            assert (await ask(stays, "far"))["result"]["node"] == "far"


async def test_announcements_that_were_recorded_bring_back_no_node_and_silence_none(nats: NatsServer) -> None:
    """A client of NATS that has no key sends again what it heard."""
    address = f"nats://127.0.0.1:{nats.port}"
    connection = await NatsConnection.open(parse_nats_address(address).settings, "recorder", WAIT_TIMEOUT)
    recorded: list[bytes] = []
    subject = b"fabric.recorded.announce"
    try:
        await connection.client.subscribe_directly(subject.decode(), recorded.append)
        async with NatsRelay(nats.port) as relay, joined("near", address, "recorded") as near:
            async with joined("far", f"nats://127.0.0.1:{relay.port}", "recorded") as far:
                await wait_until_online(near, "far")
                await wait_until_online(far, "near")
                relay.hold()  # it is killed
                await wait_until_offline(near, "far")
                heard = list(recorded)

                async def has_replayed() -> bool:
                    for announcement in heard:
                        connection.client.publish_soon(subject, announcement)
                    return len(recorded) > 6 * len(heard)

                await eventually(has_replayed)
                nodes = (await near.operation("fabric.node.list"))["result"]["nodes"]
                assert [each["node"] for each in nodes] == ["near"]
                relay.go_on()
                relay.drop()
                await wait_until_online(near, "far")
            async with joined("far", address, "recorded") as far:  # another start of it
                await wait_until_online(near, "far")
                replayed = len(recorded)
                heard = recorded[:replayed]

                async def has_replayed_once() -> bool:
                    return len(recorded) > 2 * replayed

                for announcement in heard:
                    connection.client.publish_soon(subject, announcement)
                await eventually(has_replayed_once)
                assert (await far.operation("fabric.health"))["result"]["mesh"]["problem"] is None
                assert (await ask(near, "far"))["result"]["node"] == "far"
    finally:
        await connection.aclose()


async def test_calls_over_a_slow_nats_are_slow_and_right(nats: NatsServer) -> None:
    async with (
        NatsRelay(nats.port) as relay,
        joined("near", f"nats://127.0.0.1:{nats.port}", "slow") as near,
        joined("far", f"nats://127.0.0.1:{relay.port}", "slow"),
    ):
        await wait_until_online(near, "far")
        relay.delay = 0.2
        replies = await asyncio.gather(*(ask(near, "far", f"task {number}") for number in range(20)))
        assert [each["result"]["task"] for each in replies] == [f"task {number}" for number in range(20)]


async def test_a_message_of_ten_megabytes_arrives_whole_both_ways_or_is_refused(nats: NatsServer) -> None:
    address, text = f"nats://127.0.0.1:{nats.port}", "x" * 10_000_000
    async with (
        joined("near", address, "large", heartbeat=5) as near,
        joined("far", address, "large", heartbeat=5),
        joined("small", address, "large", body_bytes=1 << 20, heartbeat=5),
    ):
        for name in ("far", "small"):
            await wait_until_online(near, name)
            arguments = {"agent_id": f"of-{name}", "capability": "where", "task": text}
            body = io.BytesIO(msgspec.json.encode({"name": "fabric.call", "arguments": arguments}))
            reply = await near.send("POST", "/mcp/call", data=body, headers={"Content-Type": "application/json"})
            if name == "far":
                assert reply.json["ok"], str(reply.json)[:300]
                assert reply.json["result"]["task"] == text
            else:
                assert reply.json["error_code"] == "PAYLOAD_TOO_LARGE", str(reply.json)[:300]


async def test_a_node_with_wrong_credentials_serves_its_own_agents_and_says_why_it_is_alone() -> None:
    server = NatsServer("authorization { user: fabric, password: secret }", jetstream="").start()
    try:
        async with joined("alone", f"nats://fabric:wrong@127.0.0.1:{server.port}", "refused") as node:

            async def is_told() -> bool:
                return "uthorization" in str((await node.operation("fabric.health"))["result"]["mesh"]["problem"])

            await eventually(is_told)
            assert (await ask(node, "alone"))["ok"]
            (own,) = (await node.operation("fabric.node.list"))["result"]["nodes"]
            assert "uthorization" in own["problem"]
            await asyncio.to_thread(server.restart_with, "authorization { user: fabric, password: wrong }")

            async def has_joined() -> bool:
                return (await node.operation("fabric.health"))["result"]["mesh"]["problem"] is None

            await eventually(has_joined)
    finally:
        server.remove()


async def read_problem(node: Node) -> str:
    return str((await node.operation("fabric.health"))["result"]["mesh"]["problem"])


async def test_a_server_that_takes_only_small_messages_is_told_with_what_to_set() -> None:
    server = NatsServer("max_payload: 65536", jetstream="").start()
    try:
        async with joined("alone", f"nats://127.0.0.1:{server.port}", "small") as node:

            async def is_told() -> bool:
                return "Set `max_payload` of the server to 262144 or more" in await read_problem(node)

            await eventually(is_told)
            assert (await ask(node, "alone"))["ok"]
            await asyncio.to_thread(server.restart_with, "")

            async def has_joined() -> bool:
                return await read_problem(node) == "None"

            await eventually(has_joined)
    finally:
        server.remove()


RIGHTS = (
    "authorization {{ users: [{{ user: all, password: x }}, {{ user: few, password: x, permissions: {{ {} }} }}] }}"
)


@pytest.mark.parametrize(
    ("permissions", "refused"),
    [
        ('publish: { deny: "fabric.rights.node.>" }', "publish to fabric.rights.node.near"),
        ('publish: { deny: "fabric.rights.node.far" }', "publish to fabric.rights.node.far"),
        ('publish: { deny: "fabric.rights.announce" }', "publish to fabric.rights.announce"),
        ('subscribe: { deny: "fabric.rights.announce" }', "subscribe to fabric.rights.announce"),
        ('subscribe: { deny: "fabric.rights.node.near" }', "subscribe to fabric.rights.node.near"),
    ],
)
async def test_a_right_that_nats_refuses_is_told_with_what_to_grant(permissions: str, refused: str) -> None:
    server = NatsServer(RIGHTS.format(permissions), jetstream="").start()
    host = f"127.0.0.1:{server.port}"
    try:
        async with (
            joined("near", f"nats://few:x@{host}", "rights") as near,
            joined("far", f"nats://all:x@{host}", "rights"),
        ):

            async def is_told() -> bool:
                problem = await read_problem(near)
                return f"{refused}. Grant it to publish and to subscribe to fabric.rights.>" in problem

            await eventually(is_told)
            assert (await ask(near, "near"))["ok"]
            await asyncio.to_thread(server.restart_with, RIGHTS.format(""))
            await wait_until_online(near, "far")

            async def is_over() -> bool:
                return await read_problem(near) == "None" and (await ask(near, "far"))["ok"]

            await eventually(is_over)
    finally:
        server.remove()


async def test_an_old_server_without_jetstream_carries_a_mesh(nats: NatsServer) -> None:
    async with NatsRelay(nats.port) as relay:
        relay.version = b"2.0.0"
        address = f"nats://127.0.0.1:{relay.port}"
        async with joined("near", address, "old") as near, joined("far", address, "old"):
            await wait_until_online(near, "far")
            assert (await ask(near, "far"))["result"]["node"] == "far"


async def test_a_full_log_of_the_store_leaves_calls_between_nodes_alone() -> None:
    server = NatsServer().start()
    try:
        address = f"nats://127.0.0.1:{server.port}"
        store = f"{address}/full?max_bytes=300000&timeout=1"
        async with joined("near", address, "full", store=store) as near, joined("far", address, "full") as far:
            await wait_until_online(near, "far")
            await wait_until_online(far, "near")
            errors = set[str]()

            async def is_full() -> bool:
                task = {"agent_id": "of-far", "capability": "where", "task": "x" * 100_000, "async": True}
                envelope = await near.operation("fabric.call", task)
                errors.add(envelope.get("error_code") or "")
                return "STORE_UNAVAILABLE" in errors

            await eventually(is_full)
            assert (await ask(near, "far"))["result"]["node"] == "far"
            assert (await ask(far, "near"))["result"]["node"] == "near"
    finally:
        server.remove()


async def test_sites_that_cannot_reach_each_other_go_on_and_are_one_mesh_again() -> None:
    """The cable between them is pulled: no connection is closed."""
    port = free_port()
    hub = NatsServer(f"leafnodes {{ listen: 127.0.0.1:{port} }}", jetstream="").start()
    try:
        async with NatsRelay(port) as border:
            remote = f"leafnodes {{ remotes: [{{ url: nats://127.0.0.1:{border.port} }}], reconnect: 1 }}"
            leaf = NatsServer(remote, jetstream="").start()
            try:
                office, plant = (f"nats://127.0.0.1:{server.port}" for server in (hub, leaf))
                async with (
                    joined("head", office, "apart", site="office") as head,
                    joined("mill", plant, "apart", site="plant") as mill,
                    joined("saw", plant, "apart", site="plant"),
                ):
                    for node, name in ((head, "saw"), (mill, "head"), (mill, "saw")):
                        await wait_until_online(node, name)
                    border.hold()
                    await wait_until_offline(mill, "head")
                    await wait_until_offline(head, "saw")
                    assert (await ask(mill, "saw"))["result"]["node"] == "saw"
                    assert (await ask(head, "saw"))["error_code"] == "AGENT_OFFLINE"
                    border.go_on()
                    border.drop()
                    await wait_until_online(mill, "head")
                    await wait_until_online(head, "saw")
                    assert (await ask(head, "saw"))["result"]["node"] == "saw"
            finally:
                leaf.remove()
    finally:
        hub.remove()


CLOCK = """
import time
_time = time.time
time.time = lambda: _time() + {seconds}
"""


async def test_clocks_that_are_minutes_apart_change_nothing_for_callers(nats: NatsServer, tmp_path: Path) -> None:
    for name, seconds in (("early", -120), ("late", 120)):
        agents = f"- {{agent_id: of-{name}, endpoint: {{uri: 'python:held:one'}}}}\n"
        write_node(tmp_path / name, name, nats, agents=agents, more=", name: clocks, heartbeat_seconds: 0.5")
        (tmp_path / name / "sitecustomize.py").write_text(CLOCK.format(seconds=seconds))
    with ExitStack() as stack:
        early, late = (start_node(tmp_path / name, stack) for name in ("early", "late"))
        until(lambda: len(online(early)) == 2 and len(online(late)) == 2, "both in one mesh")
        for node, other in ((early, "late"), (late, "early")):
            assert (await call_process(node, f"of-{other}", "where"))["result"]["node"] == other
            slow = await call_process(node, f"of-{other}", "rest", seconds=30, timeout_ms=500)
            assert slow["error_code"] == "TIMEOUT", slow
            nodes = {each["node"]: each for each in node.json("nodes")["nodes"]}
            assert {each["state"] for each in nodes.values()} == {"up"}
            assert nodes[other]["heard_seconds"] < 30
        started = {each["node"]: each["started_at"] for each in early.json("nodes")["nodes"]}
        assert started["late"] - started["early"] > 200  # the clocks are apart


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as it was before the protocol had a number."""
    archive = subprocess.run(["git", "archive", OLD_REVISION, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"needs revision {OLD_REVISION} of this repository: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as content:
        content.extractall(folder, filter="data")
    return folder / "src"


def uses_source(node: NodeProcess, source: Path) -> bool:
    return str(source) in Path(f"/proc/{node.process.pid}/environ").read_text()


async def test_a_node_of_the_previous_version_is_part_of_the_mesh(
    nats: NatsServer, tmp_path: Path, old_source: Path
) -> None:
    for name in ("old", "new"):
        agents = f"- {{agent_id: of-{name}, endpoint: {{uri: 'python:held:one'}}}}\n"
        write_node(tmp_path / name, name, nats, agents=agents, more=", name: versions, heartbeat_seconds: 0.5")
    with ExitStack() as stack:
        old = start_node(tmp_path / "old", stack, source=old_source)
        assert uses_source(old, old_source)
        new = start_node(tmp_path / "new", stack)
        until(lambda: len(online(old)) == 2 and len(online(new)) == 2, "both versions in one mesh")
        for node in (old, new):
            for name in ("old", "new"):
                envelope = await call_process(node, f"of-{name}", "where")
                assert envelope["ok"], envelope
                assert envelope["result"]["node"] == name
            large = await call_process(node, f"of-{'new' if node is old else 'old'}", "write", size=1_000_000)
            assert len(large["result"]["text"]) == 1_000_000
            late = await call_process(node, f"of-{'new' if node is old else 'old'}", "rest", seconds=30, timeout_ms=300)
            assert late["error_code"] == "TIMEOUT", late


class SimulatedNodes:
    """Members of a mesh that announce themselves and answer questions, over a few connections."""

    def __init__(self, count: int, mesh: str) -> None:
        self.mesh = mesh
        self.names = [f"sim-{number}" for number in range(count)]
        self.start_id = new_id()
        self._clients: list[DirectClient] = []

    async def join(self, address: str, stack: AsyncExitStack) -> None:
        settings = parse_nats_address(address).settings
        for number in range(4):
            connection = await NatsConnection.open(settings, f"simulator {number}", WAIT_TIMEOUT)
            stack.push_async_callback(connection.aclose)
            self._clients.append(connection.client)
        for number, name in enumerate(self.names):
            client = self._clients[number % 4]

            def publish(subject: str, payload: bytes, client: DirectClient = client) -> None:
                client.publish_soon(subject.encode(), payload)

            mailbox = NodeMailbox(
                name, self.start_id, f"fabric.{self.mesh}.node", publish, PeerApp(_services(name)),
                body_limit=BodyLimit(1 << 20), is_member=lambda *_: True,
            )  # fmt: skip
            stack.push_async_callback(mailbox.aclose)
            await client.subscribe_directly(mailbox.subject, mailbox.receive)

    def announce(self) -> None:
        for number, name in enumerate(self.names):
            facts = Announcement(
                member=name, node=name, start_id=self.start_id, started_at=1.0, version="0", site="default",
                revision="1", agents=2,
            )  # fmt: skip
            subject = f"fabric.{self.mesh}.announce".encode()
            self._clients[number % 4].publish_soon(subject, msgspec.msgpack.encode(facts))

    async def keep_announcing(self) -> None:
        while True:
            self.announce()
            await asyncio.sleep(1.0)


def _services(name: str) -> PeerServices:
    agents = tuple(
        ListedAgent(
            manifest=Manifest(
                agent_id=f"{name}-{number}", endpoint={"transport": "mesh"}, runtime="mesh", node_id=name,
                capabilities=(Capability(name="work"),),
            ),
            status="online",
        )
        for number in range(2)
    )  # fmt: skip
    unused: Any = None
    return PeerServices(
        find_agent=lambda _: None, load_runtime=unused, call_agent=unused, route_call=unused, call=unused,
        bind_call=unused, on_agent_changed=unused, render_metrics=unused, doors=unused, body_limit=BodyLimit(1 << 20),
        list_agents=lambda site: NodeListing(agents=agents, revision="1"),
    )  # fmt: skip


def resident_bytes(node: NodeProcess) -> int:
    pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.soak)])
async def test_many_nodes_that_join_within_a_minute_are_all_known(nats: NatsServer, tmp_path: Path, count: int) -> None:
    folder, address = tmp_path / "real", f"nats://127.0.0.1:{nats.port}"
    write_node(folder, "real", nats, agents="[]\n", more=f", name: many-{count}")
    config = (folder / "fabric.yaml").read_text().replace(", key: env:MESH_KEY", "")
    (folder / "fabric.yaml").write_text(config)
    simulated = SimulatedNodes(count, f"many-{count}")
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        real = await asyncio.to_thread(start_node, folder, processes)
        await asyncio.to_thread(until, lambda: "joined the mesh" in real.said, "the node to be in the mesh")
        before, began = resident_bytes(real), time.monotonic()
        await simulated.join(address, stack)
        announcing = asyncio.ensure_future(simulated.keep_announcing())
        stack.callback(announcing.cancel)
        wanted = {f"{name}-{number}" for name in simulated.names for number in range(2)}
        await asyncio.to_thread(until, _has(real, wanted), "all agents of all nodes")
        assert time.monotonic() - began < 60
        assert len(real.json("nodes")["nodes"]) == count + 1
        assert resident_bytes(real) - before < 40_000_000 + count * 100_000
        assert real.json("health")["checks"]["event_loop"]["status"] == "ok"


def _has(node: NodeProcess, wanted: set[str]) -> Callable[[], bool]:
    return lambda: wanted <= online(node)
