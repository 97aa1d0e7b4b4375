"""`up --workers N`: several processes on one port that every client takes for one node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from a2a_fabric.core.forwarding import IDENTITY_HEADER
from a2a_fabric.identity import SigningKey
from a2a_fabric.identity.forwarded import ForwardedIdentity, digest_content, sign_identity
from tests.fixtures.nats import free_port
from tests.system.node import Node, run, running_node, until

FAR, FAR_KEY = SigningKey.generate(), "the-key-of-another-node"
ASKS = 16  # on a new connection each: that all of them end at one worker of two happens once in 32,768 times
AGENTS = f"""
- {{agent_id: counter, endpoint: {{uri: "python:held:counter"}}}}
- {{agent_id: slow, endpoint: {{uri: "python:held:slow"}}}}
- {{agent_id: first, runtime: mcp, endpoint: {{command: [{sys.executable}, server.py]}}}}
- {{agent_id: second, runtime: mcp, endpoint: {{command: [{sys.executable}, server.py]}}}}
"""
HELD = """
import asyncio, os
from a2a_fabric import Agent

counter, slow = Agent("counter"), Agent("slow")
calls = 0

@counter.capability
async def count() -> dict:
    global calls
    calls += 1
    return {"calls": calls, "pid": os.getpid()}

@slow.capability
async def rest(seconds: float) -> dict:
    await asyncio.sleep(seconds)
    return {"rested": seconds}
"""
SERVER = """
import os
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("held")
notes = []

class Name(BaseModel):
    name: str

@server.tool()
def remember(note: str) -> str:
    notes.append(note)
    return f"{os.getpid()} {len(notes)}"

@server.tool()
async def greet(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", schema=Name)
    return f"Hello {answer.data.name}"

@server.resource("note://last")
def last() -> str:
    return notes[-1] if notes else "none"

server.run()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("workers")
    write_agents(folder)
    (folder / "far.json").write_text(json.dumps({"keys": [FAR.public_jwk]}))
    auth = {"keys": [{"id": "far", "key": FAR_KEY}], "nodes": [{"name": "far", "jwks_file": "far.json"}]}
    limits = {"failed_attempts_per_minute": 100_000}  # refusals are waited for
    config = {"node_id": "near", "receipts": {"enabled": True}, "auth": auth, "limits": limits}
    (folder / "fabric.yaml").write_text(json.dumps(config))
    with running_node(folder, "--agents", "agents.yaml", "--workers", "2", PYTHONPATH=str(folder)) as running:
        yield running
        running.signal(signal.SIGTERM)
        assert running.wait() == 0, running.said


def write_agents(folder: Path) -> None:
    (folder / "agents.yaml").write_text(AGENTS)
    (folder / "held.py").write_text(HELD)
    (folder / "server.py").write_text(SERVER)


def one_connection(node: Node, **headers: str) -> aiohttp.ClientSession:
    """A new connection for each request, so that requests end at both workers."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {node.token}", **headers},
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=30),
    )


async def call(session: aiohttp.ClientSession, node: Node, agent: str, capability: str, **arguments: Any) -> Any:
    body = {"agent_id": agent, "capability": capability, "task": "", "context": arguments}
    async with session.post(f"{node.url}/mcp/call", json={"name": "fabric.call", "arguments": body}) as reply:
        envelope = await reply.json()
    assert envelope["ok"], envelope
    return envelope["result"]


def worker_pids(node: Node) -> set[int]:
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(node.process.pid)], capture_output=True, text=True, check=True
    ).stdout
    return {int(line.split()[0]) for line in listed.splitlines() if "--worker " in line}


async def test_an_agent_in_a_process_of_ours_exists_once(node: Node) -> None:
    async with one_connection(node) as session:
        replies = [await call(session, node, "counter", "count") for _ in range(ASKS)]
    assert len({reply["pid"] for reply in replies}) == 1
    numbers = [reply["calls"] for reply in replies]
    assert numbers == list(range(numbers[0], numbers[0] + ASKS))


async def test_a_program_is_started_once_and_keeps_one_state(node: Node) -> None:
    async with one_connection(node) as session:
        replies = [(await call(session, node, "first", "remember", note="x"))["result"] for _ in range(ASKS)]
    assert len({reply.split()[0] for reply in replies}) == 1
    assert [int(reply.split()[1]) for reply in replies] == sorted({int(reply.split()[1]) for reply in replies})


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
MCP_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


async def open_session(session: aiohttp.ClientSession, url: str) -> dict[str, str]:
    async with session.post(url, json=INITIALIZE) as reply:
        assert reply.status == 200, await reply.text()
        headers = {"Mcp-Session-Id": reply.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-06-18"}
    body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with session.post(url, json=body, headers=headers) as reply:
        assert reply.status == 202
    return headers


def last_message(text: str) -> Any:
    data = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    return json.loads(data[-1] if data else text)


@pytest.mark.parametrize("path", ["/mcp", "/agents/first/mcp", "/agents/second/mcp"])
async def test_a_session_of_mcp_is_one_whichever_worker_its_requests_reach(node: Node, path: str) -> None:
    url = node.url + path
    tool = "first_remember" if path == "/mcp" else "remember"
    async with one_connection(node, **MCP_HEADERS) as session:
        headers = await open_session(session, url)
        pids = set()
        for number in range(ASKS):
            body = {"jsonrpc": "2.0", "id": number + 2, "method": "tools/call",
                    "params": {"name": tool, "arguments": {"note": "y"}}}  # fmt: skip
            async with session.post(url, json=body, headers=headers) as reply:
                text = await reply.text()
                assert reply.status == 200, text
            pids.add(last_message(text)["result"]["content"][0]["text"].split()[0])
        assert len(pids) == 1
        async with session.delete(url, headers=headers) as reply:
            assert reply.status in (200, 202, 204)


async def test_a_question_is_answered_through_any_worker(node: Node) -> None:
    async with one_connection(node) as session:
        for _ in range(4):
            asked = (await call(session, node, "second", "greet"))["input_required"]
            (key,) = asked["questions"]
            answers = {"continuation": asked["continuation"], "answers": {key: {"content": {"name": "Ada"}}}}
            body = {"agent_id": "second", "capability": "greet", "task": "", **answers}
            async with session.post(f"{node.url}/mcp/call", json={"name": "fabric.call", "arguments": body}) as reply:
                envelope = await reply.json()
            assert envelope["ok"], envelope
            assert envelope["result"]["result"] == "Hello Ada"


async def test_resources_of_a_program_are_read_through_any_worker(node: Node) -> None:
    async with one_connection(node, **MCP_HEADERS) as session:
        await call(session, node, "first", "remember", note="kept")
        for _ in range(4):
            url = f"{node.url}/mcp"
            headers = await open_session(session, url)
            listing = {"jsonrpc": "2.0", "id": 2, "method": "resources/list"}
            async with session.post(url, json=listing, headers=headers) as reply:
                resources = last_message(await reply.text())["result"]["resources"]
            uri = next(each["uri"] for each in resources if "first" in each["uri"] and "note" in each["uri"])
            read = {"jsonrpc": "2.0", "id": 3, "method": "resources/read", "params": {"uri": uri}}
            async with session.post(url, json=read, headers=headers) as reply:
                message = last_message(await reply.text())
            assert message["result"]["contents"][0]["text"] == "kept", message


async def test_credentials_and_receipts_are_those_of_all_workers(node: Node, tmp_path: Path) -> None:
    """A key that is revoked, and an identity that was used, are refused by each of them; one chain has all receipts."""
    body, now = json.dumps({"name": "fabric.agent.list", "arguments": {}}).encode(), int(time.time())
    identity = ForwardedIdentity(
        iss="far", aud="near", sub="alice", jti="once", iat=now, nbf=now, exp=now + 60, dig=digest_content(body)
    )

    async def send(**headers: str) -> list[int]:
        async with one_connection(node, **{"Content-Type": "application/json", **headers}) as session:
            replies = [await session.post(f"{node.url}/mcp/call", data=body) for _ in range(ASKS)]
        return [reply.status for reply in replies]

    async def until_all(status: int) -> None:
        async with asyncio.timeout(30):
            while await send(Authorization=f"Bearer {key}") != [status] * ASKS:
                pass

    key = node.json("keys", "create", "reader", "--scope", "*")["key"]
    await until_all(200)
    node.json("keys", "revoke", "reader")
    await until_all(401)
    signed = {"Authorization": f"Bearer {FAR_KEY}", IDENTITY_HEADER: sign_identity(identity, FAR)}
    assert await send(**signed) == [200] + [401] * (ASKS - 1)

    async with one_connection(node) as session:
        for _ in range(ASKS):
            await call(session, node, "counter", "count")

    def count_receipts() -> int:
        node.run("receipts", "export", str(tmp_path / "receipts.jsonl"))
        checked = node.json("receipts", "verify", str(tmp_path / "receipts.jsonl"))
        assert (checked["broken"], len(checked["chains"])) == (None, 1), checked
        return int(checked["receipts"])

    until(lambda: count_receipts() >= ASKS, "the receipts of all workers in one chain")


async def test_metrics_are_those_of_all_workers(node: Node) -> None:
    async def read() -> float:
        async with session.get(f"{node.url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        wanted = 'target_id="counter"'
        return sum(
            float(each.split()[-1]) for each in lines if each.startswith("fabric_calls_total") and wanted in each
        )

    async with one_connection(node) as session:
        before = await read()
        for _ in range(ASKS):
            await call(session, node, "counter", "count")
        assert await read() == before + ASKS


async def administer(session: aiohttp.ClientSession, node: Node, name: str, **arguments: Any) -> Any:
    async with session.post(f"{node.url}/admin/v1/{name}", json=arguments) as reply:
        envelope = await reply.json()
    assert envelope["ok"], envelope
    return envelope["result"]


async def test_figures_for_operators_are_those_of_all_workers(node: Node) -> None:
    async with one_connection(node) as session:
        before = (await administer(session, node, "overview"))["activity"]["calls_total"]
        for _ in range(ASKS):
            await call(session, node, "counter", "count")
        async with asyncio.timeout(30):
            while (overview := await administer(session, node, "overview"))["activity"]["calls_total"] < before + ASKS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # samples are taken every five seconds, in other processes
        answered_by, totals, live = {overview["worker"]}, set(), set()
        for _ in range(ASKS):
            overview = await administer(session, node, "overview")
            assert overview["missing_processes"] == []
            assert [each["name"] for each in overview["processes"]] == ["w0", "w1"]
            answered_by.add(overview["worker"])
            totals.add(overview["activity"]["calls_total"])
            agents = (await administer(session, node, "agents.live", agent_ids=["counter"]))["agents"]
            live.add(agents["counter"]["calls_total"])
    assert answered_by == {"w0", "w1"}
    assert len(totals) == len(live) == 1  # whichever worker is asked


async def answer_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    )
    await writer.drain()
    writer.close()


async def test_the_status_of_agents_and_their_switches_are_those_of_all_workers(tmp_path: Path) -> None:
    """A switch counts in every worker when the reply comes, and each of them tells the same of an agent."""
    port = free_port()
    write_agents(tmp_path)
    (tmp_path / "agents.yaml").write_text(AGENTS + f"""
- agent_id: far
  runtime: http
  endpoint: {{uri: "http://127.0.0.1:{port}/"}}
  capabilities: [{{name: say}}, {{name: sing}}]
""")  # fmt: skip
    (tmp_path / "fabric.yaml").write_text(json.dumps({"health": {"interval": 0}}))
    with running_node(tmp_path, "--agents", "agents.yaml", "--workers", "2", PYTHONPATH=str(tmp_path)) as node:
        async with one_connection(node) as session:

            async def read_far() -> set[tuple[str, bool]]:
                """Status, and whether there is a reason, of all lists and from both workers."""
                seen: set[tuple[str, bool]] = set()
                for _ in range(ASKS):
                    rows = (await administer(session, node, "agents"))["agents"]
                    rows += [(await administer(session, node, "agents.live", agent_ids=["far"]))["agents"]["far"]]
                    body = {"name": "fabric.agent.list", "arguments": {}}
                    async with session.post(f"{node.url}/mcp/call", json=body) as reply:
                        rows += (await reply.json())["result"]["agents"]
                    seen |= {
                        (row["status"], bool(row.get("error"))) for row in rows if row.get("agent_id", "far") == "far"
                    }
                return seen

            async with asyncio.timeout(60):  # both have probed it
                while await read_far() != {("offline", True)}:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            async with await asyncio.start_server(answer_ok, "127.0.0.1", port), asyncio.timeout(60):
                await administer(session, node, "agent.probe", agent_id="far")
                while await read_far() != {("online", False)}:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            for on in (False, True, False):
                await administer(session, node, "agent.switch", agent_id="far", tool="sing", on=on)
                shown: set[tuple[str, ...]] = set()
                for _ in range(ASKS):
                    details = (await administer(session, node, "agent", agent_id="far"))["agent"]
                    shown.add(tuple(each["name"] for each in details["capabilities"]))
                assert shown == {("say", "sing") if on else ("say",)}


async def test_the_log_is_that_of_all_workers_and_each_line_comes_once(node: Node) -> None:
    async with one_connection(node) as session:
        page = await administer(session, node, "log", last=0)
        traces: list[str] = []
        for _ in range(ASKS):
            body = {"name": "fabric.call", "arguments": {"agent_id": "counter", "capability": "count", "task": ""}}
            waiting = asyncio.ensure_future(
                administer(session, node, "log", after=page["next"], calls=True, wait_ms=20_000)
            )
            async with session.post(f"{node.url}/mcp/call", json=body) as reply:
                traces.append((await reply.json())["trace"]["trace_id"])
            seen: list[Any] = []
            async with asyncio.timeout(30):
                while not any(line["trace_id"] == traces[-1] for line in seen):
                    page = await waiting
                    assert page["missing"] == []
                    seen += page["lines"]
                    waiting = asyncio.ensure_future(
                        administer(session, node, "log", after=page["next"], calls=True, wait_ms=20_000)
                    )
            waiting.cancel()
            assert [line["trace_id"] for line in seen].count(traces[-1]) == 1
        whole = await administer(session, node, "log", last=2000, calls=True)
    lines = [line for line in whole["lines"] if line["trace_id"] in traces]
    assert [line["trace_id"] for line in lines] == traces  # in the order of time
    assert {line["process"] for line in lines} == {"w0", "w1"}
    assert node.run("log", "-n", "5").stdout.count("counter.count") == 5


async def test_the_health_of_the_node_is_that_of_all_workers(node: Node) -> None:
    async def read(session: aiohttp.ClientSession) -> Any:
        """From a worker that answers: some connections reach the one that hangs."""
        async with asyncio.timeout(60):
            while True:
                with suppress(TimeoutError):
                    async with session.get(f"{node.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as reply:
                        return await reply.json()

    hung = min(worker_pids(node))
    async with one_connection(node) as session:
        assert (await read(session))["checks"]["workers"] == "ok"
        os.kill(hung, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                while (page := await read(session))["checks"]["workers"] == "ok":  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        finally:
            os.kill(hung, signal.SIGCONT)
        assert (page["status"], page["checks"]["workers"]) == ("degraded", "degraded")


async def test_a_killed_worker_is_started_again_and_the_node_goes_on(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with running_node(tmp_path, "--agents", "agents.yaml", "--workers", "2", PYTHONPATH=str(tmp_path)) as node:
        async with one_connection(node) as session:
            held_by = (await call(session, node, "counter", "count"))["pid"]
            assert held_by in worker_pids(node)
            os.kill(held_by, signal.SIGKILL)
            until(lambda: held_by not in worker_pids(node) and len(worker_pids(node)) == 2, "a new worker")
            for number in (signal.SIGHUP, signal.SIGUSR1):  # they would end a worker that is still starting
                node.signal(number)
            reply = await call(session, node, "counter", "count")
            assert reply["calls"] == 1
            assert reply["pid"] in worker_pids(node)
        assert "killed by signal 9" in node.said
        until(lambda: node.said.count("no configuration file to read again") == 2, "the signal to reach both workers")
        assert node.said.count("killed by signal") == 1
        node.signal(signal.SIGTERM)
        assert node.wait() == 0


async def test_a_signal_lets_running_calls_finish_in_every_worker(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with running_node(tmp_path, "--agents", "agents.yaml", "--workers", "2", PYTHONPATH=str(tmp_path)) as node:
        async with one_connection(node) as session:
            calls = [asyncio.ensure_future(call(session, node, "slow", "rest", seconds=1.5)) for _ in range(8)]
            await asyncio.sleep(0.5)
            node.signal(signal.SIGTERM)
            assert await asyncio.gather(*calls) == [{"rested": 1.5}] * 8
        assert node.wait() == 0


def find_owner(client_port: int, pids: set[int]) -> int | None:
    """The worker that has accepted this connection."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{fields[9]}]" for fields in lines if fields[2].endswith(f":{client_port:04X}")}
    for pid in pids:
        with suppress(OSError):
            if any(str(each.readlink()) in inodes for each in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc: Linux")
async def test_a_worker_that_stops_answers_for_its_agents_until_the_others_have_no_clients(tmp_path: Path) -> None:
    """A request is still on its way when the node gets the signal, and the other worker holds its agent."""
    write_agents(tmp_path)
    with running_node(tmp_path, "--agents", "agents.yaml", "--workers", "2", PYTHONPATH=str(tmp_path)) as node:
        async with one_connection(node) as session:
            holder = (await call(session, node, "counter", "count"))["pid"]
        arguments = {"agent_id": "counter", "capability": "count", "task": ""}
        body = json.dumps({"name": "fabric.call", "arguments": arguments})
        address = node.url.removeprefix("http://")
        head = (
            f"POST /mcp/call HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {node.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        for _ in range(ASKS):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
            writer.write(f"{head}{body[:10]}".encode())
            port, pids = writer.get_extra_info("sockname")[1], worker_pids(node)
            if until(lambda: find_owner(port, pids), "a worker to accept it") != holder:  # noqa: B023
                kept = reader, writer
                break
            writer.close()
        assert kept is not None
        reader, writer = kept
        node.signal(signal.SIGTERM)
        await asyncio.sleep(1.5)  # the holder of the agent has nothing more to do
        writer.write(body[10:].encode())
        reply = await asyncio.wait_for(reader.read(), 30)
        assert f'"pid":{holder}'.encode() in reply, reply
        writer.close()
        assert node.wait() == 0


def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    write_agents(tmp_path)
    with running_node(tmp_path, "--agents", "agents.yaml", "--workers", "2", PYTHONPATH=str(tmp_path)) as node:
        pids = worker_pids(node)
        assert len(pids) == 2
        node.process.kill()
        node.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers to end")


def test_workers_need_a_store_that_they_share(tmp_path: Path) -> None:
    done = run("up", "--workers", "2", "--store", "memory:", home=tmp_path, folder=tmp_path)
    assert done.returncode == 2 or done.returncode == 1
    assert "cannot be in memory" in done.stderr
    assert "--store sqlite:" in done.stderr


def test_two_nodes_never_share_a_port(tmp_path: Path, node: Node) -> None:
    port = node.url.rpartition(":")[2]
    words = ("up", "--workers", "2", "--store", "sqlite:other.db", "--listen", f"127.0.0.1:{port}")
    done = run(*words, home=tmp_path, folder=tmp_path)
    assert done.returncode != 0
    assert "cannot listen" in done.stderr
