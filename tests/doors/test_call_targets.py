"""A call goes where it was meant: attacks and accidents at real doors, each of which once reached another agent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.agent import Agent
from a2a_fabric.client import FabricClient
from a2a_fabric.core.errors import FabricError
from tests.doors.a2a_clients import message, rpc
from tests.fixtures.mcp_client import client
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement
from tests.matrix.agents.listening import listening

MALLORY = "the-key-of-mallory-who-may-register"
ALICE = "the-key-of-alice-who-may-call-all"
KEYS = [
    {"id": "mallory", "key": MALLORY, "trust": "local", "scopes": ["*"]},
    {"id": "alice", "key": ALICE, "trust": "local", "scopes": ["agent:*"]},
]


def folder_server(agent_id: str, folder: Path, *more: str) -> dict[str, Any]:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.fixtures.mcp_servers.folder", str(folder), *more]
    return {"agent_id": agent_id, "runtime": "mcp", "endpoint": {"transport": "stdio", "command": command}}


@asynccontextmanager
async def two_folders(
    tmp_path: Path, first: str, second: str, *flags: str, **config: Any
) -> AsyncIterator[tuple[Node, Path, Path]]:
    """Two MCP servers of one program, both described; the second has everything that the first may lack."""
    manifests = [folder_server(first, tmp_path / first, *flags), folder_server(second, tmp_path / second)]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    async with running(manifests=manifests, environ=environ, base=Path.cwd(), config=config) as node:

        async def described() -> bool:
            return all(node.fabric.registry.get_agent(name).capabilities for name in (first, second))

        await eventually(described)
        yield node, tmp_path / first, tmp_path / second


PEERS = pytest.mark.parametrize("peers", ["declared", "capability"])


@PEERS
@requirement("001-38")
async def test_a_destructive_tool_of_a_killed_server_never_runs_at_its_namesake(tmp_path: Path, peers: str) -> None:
    async with two_folders(tmp_path, "prod_files", "test_files", routing={"peers": peers}) as (node, prod, test):
        for folder in (prod, test):
            (folder / "orders").write_text("precious")
        async with client(node) as mcp:
            pid = int((await mcp.call_tool("prod_files_pid")).content[0].text)  # type: ignore[union-attr]
            os.kill(pid, signal.SIGKILL)
            reply = await mcp.call_tool("prod_files_delete_entities", {"names": ["orders"]})
        assert (test / "orders").exists(), "the namesake was asked"
        assert "test_files" not in str(reply.content)


@PEERS
async def test_what_one_server_refuses_no_other_is_asked_for(tmp_path: Path, peers: str) -> None:
    async with two_folders(tmp_path, "docs", "secrets", routing={"peers": peers}) as (node, _, secrets):
        (secrets / "passwords").write_text("hunter2")
        async with client(node) as mcp:
            reply = await mcp.call_tool("docs_read_text_file", {"path": "passwords"})
        envelope = await node.ask("docs", "read_text_file", "", context={"path": "passwords"})
    assert reply.is_error
    assert "Access denied: passwords is outside of docs" in str(reply.content)
    assert "hunter2" not in str(reply)
    assert envelope["error_code"] == "UPSTREAM_ERROR"
    assert "Access denied" in envelope["error"]


@PEERS
async def test_a_refused_write_is_not_done_elsewhere(tmp_path: Path, peers: str) -> None:
    async with (
        two_folders(tmp_path, "github", "linear", "refuse", routing={"peers": peers}) as (node, _, linear),
        client(node) as mcp,
    ):
        reply = await mcp.call_tool("github_create_issue", {"title": "for github"})
    assert reply.is_error
    assert "github does not take issues from you" in str(reply.content)
    assert not (linear / "issues").exists()


@requirement("001-38")
async def test_a_server_that_never_started_is_not_answered_for_by_a_namesake() -> None:
    """Nobody knows what its tools would have meant."""
    heard: list[str] = []
    broken = {
        "agent_id": "notes",
        "runtime": "mcp",
        "endpoint": {"transport": "stdio", "command": [sys.executable, "-c", "0"]},
    }
    config = {"routing": {"peers": "capability"}}
    async with running(thinker("thinker", heard), manifests=[broken], config=config) as node:
        envelope = await node.ask("notes", "think", "private")
        preview = await node.operation("fabric.route.preview", {"agent_id": "notes", "capability": "think"})
    assert not envelope["ok"]
    assert heard == []
    assert "thinker" not in str(preview)


def thinker(agent_id: str, heard: list[str], **about: Any) -> Agent:
    agent = Agent(agent_id, **about)

    @agent.capability(side_effects="reads")
    async def think(task: str) -> str:
        heard.append(task)
        return f"{agent_id} thought"

    @agent.capability
    async def hold(task: str) -> str:
        await asyncio.sleep(30)
        return "late"

    return agent


@PEERS
@requirement("001-47")
async def test_impatient_callers_cannot_send_the_calls_of_others_to_an_agent_of_theirs(peers: str) -> None:
    """Hijack by time-out: an attacker registers a namesake, then lets many calls run out of time."""
    to_percy: list[str] = []
    to_mallory: list[str] = []
    percy = thinker("percy", to_percy)
    config = {"auth": {"keys": KEYS}, "routing": {"peers": peers}, "health": {"interval": 0}}
    async with (
        listening(thinker("namesake", to_mallory).app) as address,
        running(percy, config=config) as node,
        FabricClient(node.url, MALLORY) as mallory,
        FabricClient(node.url, ALICE) as alice,
    ):
        manifest = {
            "agent_id": "helpful",
            "runtime": "http",
            "endpoint": {"uri": address},
            "capabilities": [{"name": "think", "side_effects": "reads"}, {"name": "hold", "side_effects": "reads"}],
        }
        registered = await node.operation("fabric.agent.register", manifest, token=MALLORY)
        assert registered["ok"], registered
        for _ in range(10):
            with pytest.raises(FabricError):
                await mallory.call("percy", "hold", "x", timeout=0.001)
        result = await alice.call("percy", "think", "a private request")
    assert result.data == {"answer": "percy thought"}
    assert to_percy == ["a private request"]
    assert to_mallory == []


async def test_a_call_that_names_only_a_capability_never_reaches_a_strangers_agent() -> None:
    """Hijack by registration: the attacker's agent offers what the operator's does, and is quicker."""
    to_percy: list[str] = []
    to_mallory: list[str] = []
    async with (
        listening(thinker("namesake", to_mallory).app) as address,
        running(thinker("percy", to_percy), config={"auth": {"keys": KEYS}}) as node,
    ):
        manifest = {
            "agent_id": "a-first",
            "runtime": "http",
            "endpoint": {"uri": address},
            "capabilities": [{"name": "think"}],
        }
        assert (await node.operation("fabric.agent.register", manifest, token=MALLORY))["ok"]
        node.fabric.registry.update_health("percy", "offline")
        body = {"taskId": "t1", "action": "think", "sender": "alice", "input": {"task": "by action"}}
        task = await node.send("POST", "/a2a/task", json=body, token=ALICE)
        asked = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": {"message": message("by skill", skill="think")},
        }
        by_skill = await node.send("POST", "/gateway", json=asked, headers={"A2A-Version": "1.0"}, token=ALICE)
    assert task.status == 200, task.body
    assert "percy thought" in task.body.decode()
    assert "percy thought" in by_skill.body.decode()
    assert to_percy == ["by action", "by skill"]
    assert to_mallory == []


class TestWhenAnotherAgentAnswered:
    """Everyone sees it, wherever they look."""

    @pytest.fixture
    async def node(self) -> AsyncIterator[Node]:
        gone = {
            "agent_id": "percy",
            "runtime": "http",
            "endpoint": {"uri": "http://127.0.0.1:9/"},
            "capabilities": [{"name": "think"}],
            "fallbacks": ["backup"],
        }
        async with running(thinker("backup", []), manifests=[gone], config={"health": {"interval": 0}}) as node:
            yield node

    @requirement("001-39", "001-41")
    @pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
    async def test_the_model_reads_it_on_mcp(self, node: Node, mode: str) -> None:
        async with client(node, mode) as mcp:
            reply = await mcp.call_tool("percy_think", {"task": "x"})
        texts = [block.text for block in reply.content]  # type: ignore[union-attr]
        assert texts[0] == "backup thought", "the answer itself comes first"
        assert texts[-1].startswith("Note: answered by agent 'backup' instead of 'percy' (")

    async def test_the_model_reads_it_on_a2a(self, node: Node) -> None:
        reply = await rpc(node, "SendMessage", {"message": message("x")})
        assert "answered by agent 'backup' instead of 'percy' (" in str(reply)

    async def test_the_operator_reads_it_in_the_log_and_the_metrics(self, node: Node) -> None:
        envelope = await node.ask("percy", "think", "x")
        metrics = (await node.send("GET", "/metrics")).body.decode()
        node.fabric.telemetry.log.close()
        lines = [line for line in node.log.getvalue().splitlines() if envelope["trace"]["trace_id"] in line]
        lines = [line for line in lines if '"event":"call"' in line]
        assert '"used":"backup"' in lines[0]
        assert '"fallback_reason":"' in lines[0]
        assert 'fabric_fallbacks_total{reason="offline",target_id="percy",used_id="backup"} 1.0' in metrics


@requirement("001-41")
async def test_replicas_share_the_calls_to_each_of_them() -> None:
    """While one works, the other is asked; both when neither does anything."""
    may_end, began = asyncio.Event(), asyncio.Semaphore(0)

    def replica(agent_id: str) -> Agent:
        agent = Agent(agent_id, pool="thinkers")

        @agent.capability
        async def think(task: str) -> str:
            began.release()
            await may_end.wait()
            return agent_id

        return agent

    async with running(replica("one"), replica("two")) as node, asyncio.timeout(30):
        asked = [asyncio.ensure_future(node.ask("one", "think", str(number))) for number in range(4)]
        for _ in asked:
            await began.acquire()
        may_end.set()
        answers = [(await each)["result"]["answer"] for each in asked]
        preview = await node.operation("fabric.route.preview", {"agent_id": "one", "capability": "think"})
    assert sorted(answers) == ["one", "one", "two", "two"]
    assert preview["result"]["fallbacks"][0]["tier"] == "pool"
