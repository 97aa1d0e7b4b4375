"""Checks an MCP server as its client will use it: the same command and variables, the same first requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.protocols.mcp.wire import INITIALIZE_REQUEST
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, build_environment, read_lines

_LINE_BYTES = 64 * 1024 * 1024
_GRACE = 5.0
_MAX_PAGES = 1000
_AGENT_KEY = "a2a-fabric/agent"
_HIDDEN_TOOLS = re.compile(r"\d+ of \d+ tools are not listed.*", re.DOTALL)


class ServerContents(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lists."""

    tools: int
    agents: int
    hidden: str | None = None  # the server's sentence about tools that it does not list

    @property
    def sentence(self) -> str:
        return f"{self.tools} tools of {self.agents} agents." + (f" {self.hidden}" if self.hidden else "")


class CheckFailed(FabricError):
    """The server does not work as its client would start it."""

    code = "CHECK_FAILED"


async def check_server(
    command: Sequence[str], environ: Mapping[str, str], env: Mapping[str, str], folder: Path, timeout: float
) -> ServerContents:
    """Start the command with `env`, and with the few variables that every client passes on. Raises CheckFailed."""
    program = ProgramSpec(agent_id="checked", argv=tuple(command), env=build_environment(environ, env), cwd=folder)
    try:
        child = await ChildProcess.start(program)
    except AgentOffline as exc:
        raise CheckFailed(exc.full_message) from exc
    try:
        async with asyncio.timeout(timeout):
            return await _list_tools(child)
    except TimeoutError as exc:
        raise CheckFailed(f"The server did not list its tools within {timeout:g} s") from exc
    except (LineTooLong, ConnectionError, EOFError, msgspec.DecodeError) as exc:
        async with asyncio.timeout(_GRACE):
            await child.ended.wait()
        _, _, message = child.exit_summary.partition(": ")
        raise CheckFailed(message.removeprefix("Error: ") or str(child.exit_summary)) from exc
    finally:
        await asyncio.shield(child.stop(_GRACE))


async def _list_tools(child: ChildProcess) -> ServerContents:
    lines = aiter(read_lines(child.stdout, _LINE_BYTES))
    introduction = await _request(child, lines, INITIALIZE_REQUEST)
    child.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    for number in range(_MAX_PAGES):
        params = {} if cursor is None else {"cursor": cursor}
        request = {"jsonrpc": "2.0", "id": number + 2, "method": "tools/list", "params": params}
        page = await _request(child, lines, request)
        tools += page.get("tools", [])
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    agents = {agent for tool in tools if (agent := (tool.get("_meta") or {}).get(_AGENT_KEY))}
    hidden = _HIDDEN_TOOLS.search(str(introduction.get("instructions", "")))
    return ServerContents(tools=len(tools), agents=len(agents), hidden=hidden[0] if hidden else None)


async def _request(child: ChildProcess, lines: AsyncIterator[bytes], request: dict[str, Any]) -> dict[str, Any]:
    """The result of a request. Raises CheckFailed for an error, EOFError if the server has ended."""
    child.stdin.write(msgspec.json.encode(request) + b"\n")
    await child.stdin.drain()
    async for line in lines:
        message = msgspec.json.decode(line)
        if isinstance(message, dict) and message.get("id") == request["id"] and "method" not in message:
            if "error" in message:
                raise CheckFailed(f"The server answered with an error: {message['error']}"[:300])
            return dict(message["result"])
    raise EOFError
