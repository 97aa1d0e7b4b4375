"""What an agent needs is checked before it is called: MCP servers that the capability needs, and knowledge files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.federation.sample import install_claude
from tests.fixtures.mcp_servers.serving import serving
from tests.fixtures.node import Node, eventually, running
from tests.marks import requirement

CARD: dict[str, Any] = {
    "name": "basil",
    "version": "1.0.0",
    "description": "Cooks.",
    "skills": [{"id": "cook", "description": "Cooks."}, {"id": "plan", "description": "Plans."}],
    "invocation": {"type": "claude-subprocess"},
}
SERVERS = {
    "stove": {"command": sys.executable, "args": ["stove.py"], "env": {"KEY": "${STOVE_KEY}"}},
    "diary": {"command": "no-such-program"},
}

PYTHON_AGENT = """
from a2a_fabric import Agent

agent = Agent("basil")


@agent.capability(name="cook")
async def cook(task: str) -> dict:
    return {"answer": task}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(dependencies: dict[str, Any], servers: dict[str, Any] = SERVERS, **card: Any) -> Path:
        folder = tmp_path / "agents" / "basil"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agent.json").write_text(json.dumps({**CARD, "dependencies": dependencies, **card}))
        (folder / "CLAUDE.md").write_text("Cook.")
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        return tmp_path

    return write


def start(base: Path, keys: Any = (), **environ: str) -> Any:
    environ = {**install_claude(base / "bin"), **environ}
    config = {"agents": ["agents"], "store": "memory:", "auth": {"keys": keys}}
    return running(config=config, base=base, from_files=True, environ=environ)


async def see(node: Node, capability: str) -> dict[str, Any]:
    """What the program was started with."""
    answer = await node.ask("basil", capability, "echo")
    assert answer["ok"], answer
    seen: dict[str, Any] = json.loads(answer["result"]["answer"])
    return seen


@requirement("003-22", "003-23")
async def test_only_the_servers_that_a_capability_needs_are_connected_with_tokens_of_the_environment(
    write: Callable[..., Path],
) -> None:
    base = write({"mcps": [{"name": "stove", "required": True, "capabilities": ["cook"]}]})
    async with start(base, STOVE_KEY="hot", OTHER="secret") as node:
        cooking = await see(node, "cook")
        (config,) = cooking["options"]["mcp_config"]
        assert json.loads(config) == {"mcpServers": {"stove": SERVERS["stove"]}}
        assert cooking["options"]["strict_mcp_config"]
        assert cooking["environ"]["STOVE_KEY"] == "hot"
        assert "OTHER" not in cooking["environ"]
        planning = await see(node, "plan")
        assert planning["options"]["mcp_config"] == []
        assert "STOVE_KEY" not in planning["environ"]


@pytest.mark.parametrize(
    ("dependency", "servers", "reason"),
    [
        ("stove", SERVERS, "'stove': the environment variable STOVE_KEY is not set"),
        ("diary", SERVERS, "'diary': its program 'no-such-program' cannot be found"),
        ("attic", SERVERS, "'attic': it is not in .mcp.json"),
        ("web", {"web": {"type": "http", "url": "http://127.0.0.1:1/mcp"}}, "'web': its address does not answer"),
        ("odd", {"odd": {"url": "nonsense"}}, "'odd': it has neither a command nor an address"),
    ],
)
async def test_a_required_server_that_is_missing_is_named_before_anything_is_started(
    write: Callable[..., Path], dependency: str, servers: Any, reason: str
) -> None:
    base = write({"mcps": [{"name": dependency, "required": True, "capabilities": ["cook"]}]}, servers)
    async with start(base) as node:
        answer = await node.ask("basil", "cook", "echo")
        assert answer["error_code"] == "AGENT_OFFLINE"
        assert reason in answer["error"]
        await see(node, "plan")


async def send_task(node: Node, number: int) -> dict[str, Any]:
    """The response to a standard task request for the capability `cook`."""
    task = {"id": f"t-{number}", "type": "cook", "payload": {"task": "echo"}}
    call = {"agent_id": "basil", "capability": "task", "task": "", "context": task}
    return dict((await node.operation("fabric.call", call))["result"])


@requirement("003-22", "003-39")
async def test_what_an_mcp_server_says_is_told_apart_before_the_agent_is_started(write: Callable[..., Path]) -> None:
    async with serving(era="handshake") as server:
        entry: dict[str, Any] = {"type": "http", "url": server.url, "headers": {"Authorization": "Bearer ${STOVE_KEY}"}}
        base = write({"mcps": [{"name": "stove", "required": True, "capabilities": ["cook"]}]}, {"stove": entry})
        async with start(base, STOVE_KEY="hot") as node:
            for status, code, is_recoverable in (
                (401, "MCP_AUTH_FAILED", True),
                (403, "MCP_AUTH_FAILED", True),
                (429, "MCP_RATE_LIMITED", True),
                (500, "MCP_ERROR", True),
                (404, "MCP_ERROR", False),
            ):
                server.gate.broken = status
                response = await send_task(node, status)
                assert (response["status"], response["error"]["code"]) == ("failed", code), response
                assert response["error"]["recoverable"] is is_recoverable
                assert "the MCP server 'stove'" in response["error"]["message"]
                envelope = await node.ask("basil", "cook", "echo")
                assert (envelope["error_code"], f"HTTP {status}" in envelope["error"]) == ("AGENT_OFFLINE", True)
                if status == 429:  # it is left alone for as long as it says
                    server.gate.broken = None
                    count = len(server.gate.methods)
                    assert (await send_task(node, 430))["error"]["code"] == "MCP_RATE_LIMITED"
                    assert len(server.gate.methods) == count
                    edited = {**entry, "headers": {**entry["headers"], "X-Kitchen": "2"}}
                    write({"mcps": [{"name": "stove", "required": True, "capabilities": ["cook"]}]}, {"stove": edited})
                await see(node, "plan")  # which does not need it
            server.gate.broken = None
            assert (await send_task(node, 200))["status"] == "completed"
            count = len(server.gate.methods)
            assert (await send_task(node, 201))["status"] == "completed"
            assert len(server.gate.methods) == count  # what was fine a moment ago is not asked again


async def test_a_server_of_the_stateless_era_can_be_used(write: Callable[..., Path]) -> None:
    async with serving(era="stateless") as server:
        base = write({"mcps": [{"name": "stove", "required": True}]}, {"stove": {"type": "http", "url": server.url}})
        async with start(base) as node:
            await see(node, "cook")
            assert server.gate.methods == ["initialize", "server/discover"]


async def test_a_server_without_credentials_is_left_to_a_program_that_signs_in_itself(
    write: Callable[..., Path],
) -> None:
    async with serving(era="handshake") as server:
        server.gate.broken = 401
        base = write({"mcps": [{"name": "stove", "required": True}]}, {"stove": {"type": "http", "url": server.url}})
        async with start(base) as node:
            await see(node, "cook")
            (base / "agents/basil/agent.py").write_text(PYTHON_AGENT)
            invocation = {"type": "python", "url": "python:agent:agent"}
            entry = {"stove": {"type": "http", "url": server.url}}
            write({"mcps": [{"name": "stove", "required": True}]}, entry, invocation=invocation)

            async def is_refused() -> bool:
                answer = await node.ask("basil", "cook", "echo")
                return "it wants credentials (HTTP 401)" in str(answer.get("error"))

            await eventually(is_refused)


async def test_callers_learn_which_server_is_missing_and_only_the_operator_why(write: Callable[..., Path]) -> None:
    base = write({"mcps": [{"name": "stove", "required": True}]})
    async with start(base, keys=[{"id": "guest", "key": "the-key-of-a-guest"}]) as node:
        call = {"agent_id": "basil", "capability": "cook", "task": "x"}
        answer = await node.operation("fabric.call", call, token="the-key-of-a-guest")
        assert "the MCP server 'stove'" in answer["error"]
        assert "STOVE_KEY" not in str(answer)


async def test_a_server_that_fails_when_the_program_starts_ends_the_call(write: Callable[..., Path]) -> None:
    servers = {"broken": {"command": sys.executable}}
    base = write({"mcps": [{"name": "broken", "required": True}]}, servers)
    async with start(base) as node:
        answer = await node.ask("basil", "cook", "broken")
        assert answer["error_code"] == "AGENT_OFFLINE"
        assert "the MCP server 'broken': failed" in answer["error"]
        task = {"id": "t-1", "type": "cook", "payload": {"task": "unsigned"}}
        call = {"agent_id": "basil", "capability": "task", "task": "", "context": task}
        response = (await node.operation("fabric.call", call))["result"]
        assert response["error"]["code"] == "MCP_AUTH_FAILED", response


async def test_an_optional_server_that_is_missing_is_a_note_and_the_agent_is_degraded(
    write: Callable[..., Path],
) -> None:
    base = write({"mcps": [{"name": "diary", "required": False}]})
    async with start(base) as node:
        answer = await node.ask("basil", "cook", "echo")
        assert answer["ok"], answer
        assert "degraded: without the MCP server 'diary'" in answer["notes"]

        async def is_degraded() -> bool:
            page = await node.operation("fabric.agent.list")
            return bool(page["result"]["agents"][0]["status"] == "degraded")

        node.fabric.runtimes.refresh_agent("basil")
        await eventually(is_degraded)


async def test_a_knowledge_file_that_is_missing_is_named(write: Callable[..., Path]) -> None:
    base = write({"knowledge": ["knowledge/taste.md"]})
    async with start(base) as node:
        answer = await node.ask("basil", "cook", "echo")
        assert answer["error_code"] == "AGENT_OFFLINE"
        assert "the knowledge file 'knowledge/taste.md'" in answer["error"]
        (base / "agents/basil/knowledge").mkdir()
        (base / "agents/basil/knowledge/taste.md").write_text("No coriander.")
        await see(node, "cook")
