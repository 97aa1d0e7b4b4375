"""What a program speaks on its standard streams: one protocol after another, each time with a fresh process.

Whatever comes back is looked at for what it is, not for what was asked: a program that
answers in another protocol has told which one it is, and saves the tries between.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import msgspec

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.probing.findings import About, Finding, Look, Report, first_of, words
from a2a_fabric.probing.mcp import INITIALIZE, about, is_server, result_in
from a2a_fabric.runtimes.process_child import Child, LineTooLong, Program, environment, lines_of
from a2a_fabric.version import __version__

_LINE_BYTES = 1024 * 1024
_LINES = 1000  # of chatter before an answer
_GRACE = 1.0
_CLAUDE = ("claude", "claude-code")

_GREET = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
        "clientInfo": {"name": "a2a-fabric", "version": __version__},
    },
}
_DESCRIBE = {"id": "1", "name": "fabric.describe", "arguments": {}}


class Words(msgspec.Struct, frozen=True):
    """A protocol's first question, and how its answer is told from others."""

    question: Any
    understood: Callable[[dict[str, Any]], About | None]
    told: str
    runtime: str
    more: Mapping[str, Any] = {}  # in the endpoint


def _as_mcp(message: dict[str, Any]) -> About | None:
    result = result_in(message)
    return about(result) if result is not None and is_server(result) else None


def _as_agent_client(message: dict[str, Any]) -> About | None:
    result = result_in(message)
    if result is None or not isinstance(result.get("protocolVersion"), int) or "agentCapabilities" not in result:
        return None
    info = result.get("agentInfo")
    info = info if isinstance(info, dict) else {}
    return {
        "name": words(info.get("name")),
        "description": words(info.get("title")),
        "version": words(info.get("version")),
    }


def _as_lines(message: dict[str, Any]) -> About | None:
    if not isinstance(message.get("ok"), bool) or "jsonrpc" in message:
        return None
    result = message.get("result")
    result = result if isinstance(result, dict) else {}
    described = first_of(result.get("description"), result.get("display_name"))
    return {"name": words(result.get("agent_id")), "description": described, "version": words(result.get("version"))}


PROTOCOLS: dict[str, Words] = {
    "mcp": Words(INITIALIZE, _as_mcp, "MCP on stdio", "mcp", {"transport": "stdio"}),
    "agent-client": Words(_GREET, _as_agent_client, "Agent Client Protocol", "agent-client"),
    "process": Words(_DESCRIBE, _as_lines, "JSON lines", "process"),
}


async def look_at(
    argv: Sequence[str], environ: Mapping[str, str], given: Mapping[str, str], folder: Path, timeout: float
) -> Report:
    """`environ` is the one to inherit from, `given` what the program gets besides. Never raises for what it does."""
    trial = _Trial(
        argv, Program(agent_id="probed", argv=tuple(argv), env=environment(environ, given), cwd=folder), timeout
    )
    looks = [await trial.claude()] if PurePath(argv[0]).stem.lower() in _CLAUDE else []
    for protocol in PROTOCOLS:
        if any(look.found is not None for look in looks) or trial.is_hopeless:
            break
        looks.append(await trial.of(protocol))
    return Report(target=" ".join(argv), looks=tuple(looks))


class _Trial:
    """One program, asked several times."""

    def __init__(self, argv: Sequence[str], program: Program, timeout: float) -> None:
        self._argv = list(argv)
        self._program = program
        self._timeout = timeout
        self.is_hopeless = False  # it cannot even be started

    async def of(self, protocol: str) -> Look:
        began_at = time.perf_counter()
        outcome = await self._started(lambda child: self._asked(child, PROTOCOLS[protocol]))
        found: Finding | None = None
        if isinstance(outcome, Finding):
            found, outcome = outcome, outcome.told
        spoken = protocol if found is None else found.runtime
        return Look(protocol=spoken, outcome=outcome, seconds=time.perf_counter() - began_at, found=found)

    async def claude(self) -> Look:
        """The one program that is known by its name; asked for its version, since it says nothing by itself."""
        began_at = time.perf_counter()
        program, self._program = (
            self._program,
            msgspec.structs.replace(self._program, argv=(self._argv[0], "--version")),
        )
        outcome = await self._started(self._version)
        self._program = program
        found: Finding | None = None
        if isinstance(outcome, Finding):
            found, outcome = outcome, outcome.told
        return Look(protocol="claude", outcome=outcome, seconds=time.perf_counter() - began_at, found=found)

    async def _started(self, ask: Callable[[Child], Any]) -> Finding | str:
        """The program runs for as long as it is asked, in a process group that is always ended."""
        try:
            child = await Child.start(self._program)
        except AgentOffline as exc:
            self.is_hopeless = True
            return exc.sentence
        try:
            async with asyncio.timeout(self._timeout):
                outcome: Finding | str = await ask(child)
            return outcome
        except TimeoutError:
            return f"no answer within {self._timeout:g} s"
        except (LineTooLong, ConnectionError):
            return await _fate(child)
        finally:
            await asyncio.shield(child.stop(_GRACE))

    async def _asked(self, child: Child, asked: Words) -> Finding | str:
        child.stdin.write(msgspec.json.encode(asked.question) + b"\n")
        await child.stdin.drain()
        read = 0
        async for line in lines_of(child.stdout, _LINE_BYTES):
            message = _object(line)
            if message is not None:
                return self._recognised(message) or _other(message)
            read += 1
            if read > _LINES:
                return "says much, and nothing that we know"
        return await _fate(child)

    def _recognised(self, message: dict[str, Any]) -> Finding | None:
        for known in PROTOCOLS.values():
            said = known.understood(message)
            if said is not None:
                endpoint = {**known.more, "command": self._argv}
                return Finding(runtime=known.runtime, endpoint=endpoint, told=known.told, **said)
        return None

    async def _version(self, child: Child) -> Finding | str:
        async for line in lines_of(child.stdout, _LINE_BYTES):
            text = line.decode(errors="replace").strip()
            if "claude" in text.lower():
                version = re.search(r"\d+(\.\d+)+", text)
                return Finding(
                    runtime="claude",
                    endpoint={"path": ".", **({"command": self._argv} if self._argv != ["claude"] else {})},
                    told=words(text),
                    name="claude",
                    version=version[0] if version else "",
                )
        return await _fate(child)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        message = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _other(message: dict[str, Any]) -> str:
    error = message.get("error")
    if message.get("jsonrpc") == "2.0" and isinstance(error, dict):
        return f"JSON-RPC, but not this: {words(error.get('message'), 100)}"
    return "answers with JSON that we do not know"


async def _fate(child: Child) -> str:
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await child.ended.wait()
    return words(child.obituary)
