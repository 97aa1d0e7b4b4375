"""Probes a program on stdin and stdout: one protocol after another, each with a fresh process.

A reply is matched against all protocols, not only the one that was tried: a program that answers in another
protocol is recognised at once."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import msgspec

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.probing.addresses import is_mcp_server, mcp_server_info
from a2a_fabric.probing.findings import Finding, ProbeAttempt, ProbedAgentInfo, ProbeReport, first_text, one_line
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS, is_error_reply, read_result
from a2a_fabric.protocols.mcp.wire import INITIALIZE_REQUEST
from a2a_fabric.runtimes.programs import ChildProcess, LineTooLong, ProgramSpec, build_environment, read_lines
from a2a_fabric.version import __version__

_LINE_BYTES = 1024 * 1024
_MAX_LINES = 1000  # of other output before an answer
_GRACE = 1.0
_CLAUDE_NAMES = ("claude", "claude-code")

_AGENT_CLIENT_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
        "clientInfo": {"name": "a2a-fabric", "version": __version__},
    },
}
_DESCRIBE_REQUEST = {"id": "1", "name": "fabric.describe", "arguments": {}}


class StdioProtocol(msgspec.Struct, frozen=True):
    """A protocol's first request, and how its reply is recognised."""

    request: Any
    recognize: Callable[[dict[str, Any]], ProbedAgentInfo | None]
    evidence: str
    runtime: str
    endpoint_fields: Mapping[str, Any] = {}


def _recognize_mcp(message: dict[str, Any]) -> ProbedAgentInfo | None:
    result = read_result(message)
    return mcp_server_info(result) if result is not None and is_mcp_server(result) else None


def _recognize_agent_client(message: dict[str, Any]) -> ProbedAgentInfo | None:
    result = read_result(message)
    if result is None or not isinstance(result.get("protocolVersion"), int) or "agentCapabilities" not in result:
        return None
    info = result.get("agentInfo")
    info = info if isinstance(info, dict) else {}
    return {
        "name": one_line(info.get("name")),
        "description": one_line(info.get("title")),
        "version": one_line(info.get("version")),
    }


def _recognize_json_lines(message: dict[str, Any]) -> ProbedAgentInfo | None:
    if not isinstance(message.get("ok"), bool) or "jsonrpc" in message:
        return None
    result = message.get("result")
    result = result if isinstance(result, dict) else {}
    description = first_text(result.get("description"), result.get("display_name"))
    return {
        "name": one_line(result.get("agent_id")),
        "description": description,
        "version": one_line(result.get("version")),
    }


PROTOCOLS: dict[str, StdioProtocol] = {
    "mcp": StdioProtocol(INITIALIZE_REQUEST, _recognize_mcp, "MCP on stdio", "mcp", {"transport": "stdio"}),
    "agent-client": StdioProtocol(
        _AGENT_CLIENT_INITIALIZE, _recognize_agent_client, "Agent Client Protocol", "agent-client"
    ),
    "process": StdioProtocol(_DESCRIBE_REQUEST, _recognize_json_lines, "JSON lines", "process"),
}


async def probe_command(
    argv: Sequence[str], environ: Mapping[str, str], env: Mapping[str, str], folder: Path, timeout: float
) -> ProbeReport:
    """`environ` is inherited, `env` is added to it. Whatever the program does becomes part of the report."""
    prober = _CommandProber(
        argv, ProgramSpec(agent_id="probed", argv=tuple(argv), env=build_environment(environ, env), cwd=folder), timeout
    )
    attempts = [await prober.try_claude()] if PurePath(argv[0]).stem.lower() in _CLAUDE_NAMES else []
    for protocol in PROTOCOLS:
        if any(attempt.finding is not None for attempt in attempts) or prober.cannot_start:
            break
        attempts.append(await prober.try_protocol(protocol))
    return ProbeReport(target=" ".join(argv), attempts=tuple(attempts))


class _CommandProber:
    """Starts one program several times, once for each protocol."""

    def __init__(self, argv: Sequence[str], program: ProgramSpec, timeout: float) -> None:
        self._argv = list(argv)
        self._program = program
        self._timeout = timeout
        self.cannot_start = False

    async def try_protocol(self, protocol: str) -> ProbeAttempt:
        began_at = time.perf_counter()
        outcome = await self._run_program(self._program, lambda child: self._query_protocol(child, PROTOCOLS[protocol]))
        recognized = outcome.runtime if isinstance(outcome, Finding) else protocol
        return ProbeAttempt.from_outcome(recognized, outcome, began_at)

    async def try_claude(self) -> ProbeAttempt:
        """Claude Code is recognised by its name and version, because it answers no first request."""
        began_at = time.perf_counter()
        program = msgspec.structs.replace(self._program, argv=(self._argv[0], "--version"))
        outcome = await self._run_program(program, self._read_claude_version)
        return ProbeAttempt.from_outcome("claude", outcome, began_at)

    async def _run_program(
        self, program: ProgramSpec, query: Callable[[ChildProcess], Awaitable[Finding | str]]
    ) -> Finding | str:
        """Runs the program until the query has returned; its process group is always ended."""
        try:
            child = await ChildProcess.start(program)
        except AgentOffline as exc:
            self.cannot_start = True
            return exc.full_message
        try:
            async with asyncio.timeout(self._timeout):
                return await query(child)
        except TimeoutError:
            return f"no answer within {self._timeout:g} s"
        except (LineTooLong, ConnectionError):
            return await _wait_exit_reason(child)
        finally:
            await asyncio.shield(child.stop(_GRACE))

    async def _query_protocol(self, child: ChildProcess, protocol: StdioProtocol) -> Finding | str:
        child.stdin.write(msgspec.json.encode(protocol.request) + b"\n")
        await child.stdin.drain()
        line_count = 0
        async for line in read_lines(child.stdout, _LINE_BYTES):
            message = _parse_object(line)
            if message is not None:
                return self._recognize(message) or _describe_unknown(message)
            line_count += 1
            if line_count > _MAX_LINES:
                return "writes many lines, but none that are JSON"
        return await _wait_exit_reason(child)

    def _recognize(self, message: dict[str, Any]) -> Finding | None:
        for protocol in PROTOCOLS.values():
            info = protocol.recognize(message)
            if info is not None:
                endpoint = {**protocol.endpoint_fields, "command": self._argv}
                return Finding(runtime=protocol.runtime, endpoint=endpoint, evidence=protocol.evidence, **info)
        return None

    async def _read_claude_version(self, child: ChildProcess) -> Finding | str:
        async for line in read_lines(child.stdout, _LINE_BYTES):
            text = line.decode(errors="replace").strip()
            if "claude" in text.lower():
                version = re.search(r"\d+(\.\d+)+", text)
                return Finding(
                    runtime="claude",
                    endpoint={"path": ".", **({"command": self._argv} if self._argv != ["claude"] else {})},
                    evidence=one_line(text),
                    name="claude",
                    version=version[0] if version else "",
                )
        return await _wait_exit_reason(child)


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        message = msgspec.json.decode(line)
    except DECODE_ERRORS:
        return None
    return message if isinstance(message, dict) else None


def _describe_unknown(message: dict[str, Any]) -> str:
    if is_error_reply(message):
        return f"answers JSON-RPC, but with an error: {one_line(message['error'].get('message'), 100)}"
    return "answers with JSON of an unknown form"


async def _wait_exit_reason(child: ChildProcess) -> str:
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await child.ended.wait()
    return one_line(child.exit_summary)
