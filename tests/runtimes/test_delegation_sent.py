"""Every runtime sends the delegation chain in the place that its protocol has for one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from a2a_fabric.core.call import Call, ignore_event
from a2a_fabric.core.propagation import (
    DELEGATION_HEADER,
    DELEGATION_META_KEY,
    DELEGATION_VARIABLE,
    encode_chain_header,
    make_chain_entry,
)
from a2a_fabric.runtimes.agent_client import runtime as agent_client
from a2a_fabric.runtimes.claude import runtime as claude
from tests.fixtures.agents.calling import call_of, context_at, manifest_of
from tests.fixtures.mcp_servers.serving import EVERYDAY, serving
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, running
from tests.fixtures.percy import Percy
from tests.runtimes.fabric_nodes import QUIET

HOME = {"node_id": "home", **QUIET}
CHAIN = ("afar/0123456789ab", make_chain_entry("home", "far"))
FIXTURES = Path(__file__).parents[1] / "fixtures" / "agents"


class Recorder:
    """A server that takes down what it is asked, and answers every request alike."""

    def __init__(self) -> None:
        self.heard = bytearray()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"answer": "ok", "openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": PATHS})
        try:
            while data := await reader.read(65536):
                self.heard += data
                if b"\r\n\r\n" in data:
                    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                    writer.write(head.encode() + body.encode())
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


PATHS: dict[str, Any] = {"/echo": {"post": {"operationId": "echo", "responses": {"200": {"description": "ok"}}}}}


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[str, Recorder]]:
    recorder = Recorder()
    server = await asyncio.start_server(recorder, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", recorder
    finally:
        server.close()


@pytest.mark.parametrize(
    ("runtime", "endpoint"),
    [
        ("http", {}),
        ("http", {"request": {"q": "${task}"}}),
        ("http", {"openapi": True}),
        ("acp", {}),
        ("agentzero", {"protocol": "a2a", "token": "t"}),
        ("agentzero", {"protocol": "api", "token": "t"}),
        ("rest", {"mode": "tasks"}),
        ("rpc", {}),
    ],
)
async def test_a_header_says_what_the_call_has_passed(runtime: str, endpoint: dict[str, Any]) -> None:
    async with recording() as (url, recorder):
        manifest = {
            "agent_id": "far",
            "runtime": runtime,
            "endpoint": {"uri": url, **endpoint},
            "capabilities": [{"name": "echo"}],
        }
        async with running(manifests=[manifest], config=HOME) as node:
            await node.ask("far", "echo", "?", delegation_chain=[CHAIN[0]], timeout_ms=2000)
        assert f"{DELEGATION_HEADER}: {encode_chain_header(CHAIN)}".encode() in bytes(recorder.heard), (
            recorder.heard.decode()
        )


def sent_to(chain: tuple[str, ...] = CHAIN, capability: str = "ask", task: str = "echo") -> Call:
    return msgspec.structs.replace(call_of(capability, task), delegation_chain=chain)


@pytest.mark.parametrize("kind", ["stdio", "stateless", "handshake"])
async def test_an_mcp_server_finds_it_in_meta(kind: Literal["stdio", "stateless", "handshake"]) -> None:
    async with AsyncExitStack() as stack:
        served = None if kind == "stdio" else await stack.enter_async_context(serving(kind))
        endpoint = {"command": EVERYDAY} if served is None else {"uri": served.url}
        manifest = {"agent_id": "far", "runtime": "mcp", "endpoint": endpoint, "capabilities": [{"name": "headers"}]}
        node = await stack.enter_async_context(running(manifests=[manifest], config=HOME))
        told = await node.ask("far", "headers", "", delegation_chain=[CHAIN[0]])
        assert told["result"]["chain"] == list(CHAIN), told


async def test_a_program_finds_it_in_its_environment() -> None:
    endpoint = {"command": ["env"], "protocol": "oneshot"}
    manifest = {"agent_id": "far", "runtime": "process", "endpoint": endpoint, "capabilities": [{"name": "show"}]}
    async with running(manifests=[manifest], config=HOME, environ=dict(os.environ)) as node:
        told = await node.ask("far", "show", delegation_chain=[CHAIN[0]])
        assert f"{DELEGATION_VARIABLE}={encode_chain_header(CHAIN)}" in told["result"]["answer"].splitlines()


async def test_claude_and_the_node_that_it_is_offered_get_it(tmp_path: Path) -> None:
    (tmp_path / "basil").mkdir()
    endpoint = {
        "path": "basil",
        "command": [sys.executable, str(FIXTURES / "claude_program.py")],
        "env": {"CLAUDE_CONFIG_DIR": str(tmp_path / "config")},
        "offer_node": True,
    }
    runtime = claude.build(manifest_of(**endpoint), context_at(tmp_path))
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            answer = (await runtime(sent_to(), ignore_event)).data["answer"]
    finally:
        await runtime.aclose()
    told = json.loads(answer)
    assert told["environ"][DELEGATION_VARIABLE] == encode_chain_header(CHAIN)
    offered = json.loads(told["options"]["mcp_config"][-1])["mcpServers"]["fabric"]
    assert offered["env"][DELEGATION_VARIABLE] == encode_chain_header(CHAIN)


async def test_a_prompt_of_the_agent_client_protocol_says_it(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    endpoint = {"command": [sys.executable, str(program)], "path": str(tmp_path)}
    runtime = agent_client.build(manifest_of(**endpoint), context_at(tmp_path))
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            answer = (await runtime(sent_to(), ignore_event)).data["answer"]
    finally:
        await runtime.aclose()
    assert json.loads(answer)[DELEGATION_META_KEY] == list(CHAIN)


AGENT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params") or {}
    if "id" not in asked:
        continue
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
    elif method == "session/new":
        result = {"sessionId": "s1"}
    elif method == "session/prompt":
        said = {"type": "text", "text": json.dumps(params.get("_meta"))}
        update = {"sessionUpdate": "agent_message_chunk", "content": said}
        note = {"sessionId": params["sessionId"], "update": update}
        print(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": note}), flush=True)
        result = {"stopReason": "end_turn"}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


async def ran(node: Node, chain: tuple[str, ...], *arguments: str, stdin: bytes | None = None) -> str:
    """What the command line says, started as an agent of a node would start it."""
    environ = {
        **os.environ,
        "FABRIC_URL": node.url,
        "FABRIC_TOKEN": PSK,
        DELEGATION_VARIABLE: encode_chain_header(chain),
    }
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "a2a_fabric",
        *arguments,
        env=environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    if stdin is None:
        out, _ = await asyncio.wait_for(program.communicate(b""), WAIT_TIMEOUT)
        return out.decode()
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            program.stdin.write(stdin)
            await program.stdin.drain()
            lines = [await program.stdout.readline() for _ in range(2)]
    finally:
        program.stdin.close()
        await program.wait()
    return lines[-1].decode()


async def test_programs_that_call_back_pass_on_what_stands_in_their_environment() -> None:
    percy, me, other = Percy(), make_chain_entry("home", "percy"), make_chain_entry("home", "caller")
    async with running(percy.agent, config=HOME) as node:
        await ran(node, (other,), "call", "percy", "reason", "?")
        assert percy.calls[-1].delegation_chain == (other, me)
        assert "already" in await ran(node, (me,), "call", "percy", "reason", "?")
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        tool = {"name": "percy_reason", "arguments": {"task": "?"}}
        said = [
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool},
        ]
        lines = b"".join(json.dumps(each).encode() + b"\n" for each in said)
        await ran(node, (other,), "mcp", stdin=lines)
        assert len(percy.calls) == 2
        assert percy.calls[-1].delegation_chain == (other, me)
        assert "already" in await ran(node, (me,), "mcp", stdin=lines)
        assert len(percy.calls) == 2
