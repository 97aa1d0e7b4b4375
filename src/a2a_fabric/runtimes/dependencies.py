"""What an agent needs before it is called: MCP servers of its configuration, and knowledge files.

Only the servers that the called capability needs count. If a required one cannot be used, the call ends before anything
is started, with AGENT_OFFLINE that names it. An optional one is left out, and a note beside the answer says so."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest, Status, normalize_name
from a2a_fabric.core.call import Call, Emit, add_notes
from a2a_fabric.core.errors import AgentOffline, OperatorText
from a2a_fabric.core.federation import McpDependency
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.context import RuntimeContext

MCP_CONFIG_FILE = ".mcp.json"
_MAX_CONFIG_BYTES = 256 * 1024
_CONNECT_TIMEOUT = 2.0
_SERVER = "the MCP server"
_PORTS = {"http": 80, "https": 443}
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")


def read_mcp_servers(path: Path) -> dict[str, dict[str, Any]] | None:
    """The servers of an MCP configuration by name; None if there is no such file, or it is not one."""
    try:
        with path.open("rb") as file:
            document: Any = msgspec.json.decode(file.read(_MAX_CONFIG_BYTES))
    except (OSError, msgspec.DecodeError):
        return None
    servers = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        return None
    return {name: server for name, server in servers.items() if isinstance(server, dict)}


def is_needed(dependency: McpDependency, capability: str) -> bool:
    return not dependency.capabilities or normalize_name(capability) in map(normalize_name, dependency.capabilities)


def list_references(server: Any) -> Iterator[tuple[str, bool]]:
    """The environment variables to which a server's configuration refers, and whether each has a default."""
    if isinstance(server, str):
        yield from ((match[1], match[2] is not None) for match in _REFERENCE.finditer(server))
    elif isinstance(server, dict):
        for inner in server.values():
            yield from list_references(inner)
    elif isinstance(server, list):
        for inner in server:
            yield from list_references(inner)


async def find_server_problem(
    server: Mapping[str, Any] | None, folder: Path, environ: Mapping[str, str], granted: frozenset[str] | None
) -> str | None:
    """Why a server cannot be used; None if it can, as far as one sees without starting it.

    `granted` are the variables that the agent may be given; None means all.
    """
    if server is None:
        return f"it is not in {MCP_CONFIG_FILE}"
    for name, has_default in list_references(server):
        if granted is not None and name not in granted:
            return f"the agent may not be given {name}"
        if name not in environ and not has_default:
            return f"the environment variable {name} is not set"
    command = server.get("command")
    if isinstance(command, str):
        program = str(folder / command) if "/" in command else command
        return None if shutil.which(program, path=environ.get("PATH")) else f"its program '{command}' cannot be found"
    url = _REFERENCE.sub(lambda match: environ.get(match[1], (match[2] or ":-")[2:]), str(server.get("url", "")))
    return await _find_address_problem(url)


async def _find_address_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return "it has neither a command nor an address"
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return "its address does not answer"
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None


class DependentRuntime:
    """A runtime whose agent is called only if what it needs is there."""

    def __init__(self, manifest: Manifest, runtime: Runtime, context: RuntimeContext) -> None:
        assert manifest.dependencies is not None  # noqa: S101
        assert manifest.origin is not None  # noqa: S101
        self.manifest = manifest
        self.health_reason: str | None = None
        self._runtime = runtime
        self._dependencies = manifest.dependencies
        self._folder = Path(manifest.origin.folder)
        self._config = self._folder / str(manifest.endpoint.get("mcp_config") or MCP_CONFIG_FILE)
        self._environ = context.environ
        granted = manifest.endpoint.get("mcp_env")
        self._granted = None if granted is None else frozenset(granted)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        missing, degraded = await self._check(call.target.capability)
        if missing:
            message = OperatorText(f"The agent needs {missing[0]}", f"The agent needs {missing[0].public}")
            needs = "mcp" if missing[0].public.startswith(_SERVER) else "knowledge"
            raise AgentOffline(message, agent_id=self.manifest.agent_id, needs=needs)
        notes = tuple(f"degraded: without {each.public}" for each in degraded)
        return add_notes(await self._runtime(call, emit), notes)

    async def health(self) -> Status:
        missing, degraded = await self._check(None)
        self.health_reason = f"it needs {missing[0]}" if missing else f"without {degraded[0]}" if degraded else None
        if missing:
            return "offline"
        status = await self._runtime.health()
        return "degraded" if degraded and status == "online" else status

    async def describe(self) -> Manifest:
        return await self._runtime.describe()

    async def aclose(self) -> None:
        await self._runtime.aclose()

    async def _check(self, capability: str | None) -> tuple[list[OperatorText], list[OperatorText]]:
        """What is missing and what is optional, for one capability or, with None, for all that name no capability.

        Callers learn what is missing; the operator also learns why.
        """
        files = (path for path in self._dependencies.knowledge if not self._has_file(path))
        missing = [OperatorText(text, text) for text in (f"the knowledge file '{path}'" for path in files)]
        degraded: list[OperatorText] = []
        if not self._dependencies.mcps:
            return missing, degraded
        servers = await asyncio.to_thread(read_mcp_servers, self._config) or {}
        for dependency in self._dependencies.mcps:
            if not is_needed(dependency, capability or ""):
                continue
            problem = await find_server_problem(
                servers.get(dependency.name), self._folder, self._environ, self._granted
            )
            if problem is not None:
                name = f"{_SERVER} '{dependency.name}'"
                (missing if dependency.required else degraded).append(OperatorText(f"{name}: {problem}", name))
        return missing, degraded

    def _has_file(self, path: str) -> bool:
        target = (self._folder / path).resolve()
        return target.is_relative_to(self._folder.resolve()) and target.is_file()


def needs_check(manifest: Manifest) -> bool:
    """Whether the manifest names something that can be missing, and a folder in which to look."""
    dependencies = manifest.dependencies
    has_folder = manifest.origin is not None and bool(manifest.origin.folder) and manifest.registered_by is None
    return has_folder and dependencies is not None and bool(dependencies.mcps or dependencies.knowledge)
