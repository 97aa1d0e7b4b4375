"""Checks an MCP server as its client will use it: the same command and variables, the same first requests."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.cli.output import remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.core.errors import AgentOffline, FabricError
from a2a_fabric.protocols.mcp.wire import INITIALIZE_REQUEST
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, build_environment, read_lines

_LINE_BYTES = 64 * 1024 * 1024
_GRACE = 5.0
_CHECK_SECONDS = 45.0
_MAX_PAGES = 1000
_AGENT_KEY = "a2a-fabric/agent"
_SETTLE_SECONDS = 15.0  # for agents that are still starting
_POLL_SECONDS = 0.2
_HIDDEN_TOOLS = re.compile(r"\d+ of \d+ tools are not listed.*", re.DOTALL)


class ServerContents(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lists."""

    tools: int  # of agents
    agents: int
    own_tools: int = 0  # of the gateway
    hidden: str | None = None  # the server's sentence about tools that it does not list
    troubled: dict[str, str] = {}  # agents that cannot be used now, and why

    @property
    def sentence(self) -> str:
        own = f", and {self.own_tools} of the gateway" if self.own_tools else ""
        tools, agents = ("tool" if self.tools == 1 else "tools"), ("agent" if self.agents == 1 else "agents")
        return f"{self.tools} {tools} of {self.agents} {agents}{own}." + (f" {self.hidden}" if self.hidden else "")


class CheckFailed(FabricError):
    """The server does not work as its client would start it."""

    code = "CHECK_FAILED"


def find_program() -> list[str]:
    """The command that starts this program from any folder."""
    path = Path(sys.argv[0])
    return [str(path.absolute())] if path.name == NAME else [sys.executable, "-m", "a2a_fabric"]


def print_contents(start: str, contents: ServerContents) -> None:
    remark(f"{start} {contents.sentence}")
    for agent_id, reason in contents.troubled.items():
        remark(f"  cannot be used now: {agent_id}{f': {reason}' if reason else ''}")


async def check_server(
    command: Sequence[str], environ: Mapping[str, str], env: Mapping[str, str], folder: Path
) -> ServerContents:
    """Start the command with `env`, and with the few variables that every client passes on. Raises CheckFailed."""
    program = ProgramSpec(agent_id="checked", argv=tuple(command), env=build_environment(environ, env), cwd=folder)
    try:
        child = await ChildProcess.start(program)
    except AgentOffline as exc:
        raise CheckFailed(exc.full_message) from exc
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            return await _Session(child).look()
    except TimeoutError as exc:
        raise CheckFailed(f"The server did not list its tools within {_CHECK_SECONDS:g} s") from exc
    except (LineTooLong, ConnectionError, EOFError, msgspec.DecodeError) as exc:
        async with asyncio.timeout(_GRACE):
            await child.ended.wait()
        _, _, message = child.exit_summary.partition(": ")
        raise CheckFailed(message.removeprefix("Error: ") or str(child.exit_summary)) from exc
    finally:
        await asyncio.shield(child.stop(_GRACE))


class _Session:
    """Requests to the server, one after the other."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._lines = aiter(read_lines(child.stdout, _LINE_BYTES))
        self._ids = count(2)

    async def look(self) -> ServerContents:
        """What is listed when each agent has answered, or has had the time to."""
        introduction = await self._send(INITIALIZE_REQUEST)
        self._child.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        await self._list_tools()  # waits for agents that were never asked
        troubled = await self._find_troubled()
        tools = await self._list_tools()
        agents = [agent for tool in tools if (agent := (tool.get("_meta") or {}).get(_AGENT_KEY))]
        hidden = _HIDDEN_TOOLS.search(str(introduction.get("instructions", "")))
        return ServerContents(
            tools=len(agents),
            agents=len(set(agents)),
            own_tools=len(tools) - len(agents),
            hidden=hidden[0] if hidden else None,
            troubled=troubled,
        )

    async def _list_tools(self) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._request("tools/list", {} if cursor is None else {"cursor": cursor})
            tools += page.get("tools", [])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return tools

    async def _find_troubled(self) -> dict[str, str]:
        """The agents that are offline, and those that have not answered yet."""
        ends_at = time.monotonic() + _SETTLE_SECONDS
        while True:
            agents = await self._list_agents()
            if time.monotonic() > ends_at or all(each["status"] != "unknown" for each in agents):
                break
            await asyncio.sleep(_POLL_SECONDS)
        silent = {each["agent_id"]: "it has not answered yet" for each in agents if each["status"] == "unknown"}
        return silent | {each["agent_id"]: each.get("error") or "" for each in agents if each["status"] == "offline"}

    async def _list_agents(self) -> list[dict[str, Any]]:
        agents: list[dict[str, Any]] = []
        arguments: dict[str, Any] = {}
        while True:
            reply = await self._request("tools/call", {"name": "fabric_agent_list", "arguments": arguments})
            page = reply.get("structuredContent") or {}
            agents += page.get("agents", [])
            if not page.get("next_cursor"):
                return agents
            arguments = {"cursor": page["next_cursor"]}

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._send({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    async def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        """The result of a request. Raises CheckFailed for an error, EOFError if the server has ended."""
        self._child.stdin.write(msgspec.json.encode(request) + b"\n")
        await self._child.stdin.drain()
        async for line in self._lines:
            message = msgspec.json.decode(line)
            if isinstance(message, dict) and message.get("id") == request["id"] and "method" not in message:
                if "error" in message:
                    raise CheckFailed(f"The server answered with an error: {message['error']}"[:300])
                return dict(message["result"])
        raise EOFError
