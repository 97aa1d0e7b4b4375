"""What an agent needs before it is called: MCP servers of its configuration, and knowledge files.

Only the servers that the called capability needs count. If a required one cannot be used, the call ends before anything
is started, with AGENT_OFFLINE that names it and says of which kind the problem is. An optional one is left out, and a
note beside the answer says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, Status, normalize_name
from a2a_fabric.core.call import Call, Emit, add_notes
from a2a_fabric.core.errors import AgentOffline, OperatorText
from a2a_fabric.core.federation import McpDependency
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.mcp_servers import (
    MCP_CONFIG_FILE,
    AgentEnvironment,
    ServerChecks,
    ServerProblem,
    describe_server_problem,
    read_mcp_servers,
)

FindServerProblem = Callable[[Mapping[str, Any] | None], Awaitable[ServerProblem | None]]


def is_needed(dependency: McpDependency, capability: str) -> bool:
    return not dependency.capabilities or normalize_name(capability) in map(normalize_name, dependency.capabilities)


class Missing(msgspec.Struct, frozen=True):
    """Something that an agent needs and that cannot be used. Callers learn what; the operator also learns why."""

    text: OperatorText
    details: dict[str, Any]


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
        granted = manifest.endpoint.get("mcp_env")
        environment = AgentEnvironment(
            folder=self._folder,
            environ=context.environ,
            granted=None if granted is None else frozenset(granted),
            signs_in=manifest.runtime == "claude",
        )
        self._checks = ServerChecks(environment, context.http)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        missing, degraded = await self._check(call.target.capability, self._checks.find_problem)
        if missing:
            text = missing[0].text
            message = OperatorText(f"The agent needs {text}", f"The agent needs {text.public}")
            error = AgentOffline(message, agent_id=self.manifest.agent_id, **missing[0].details)
            error.is_inconclusive = True  # capabilities that do not need it work, so the breaker stays closed
            raise error
        notes = tuple(f"degraded: without {each.text.public}" for each in degraded)
        return add_notes(await self._runtime(call, emit), notes)

    async def health(self) -> Status:
        missing, degraded = await self._check("", self._checks.find_health_problem)
        self.health_reason = (
            f"it needs {missing[0].text}" if missing else f"without {degraded[0].text}" if degraded else None
        )
        if missing:
            return "offline"
        status = await self._runtime.health()
        return "degraded" if degraded and status == "online" else status

    async def describe(self) -> Manifest:
        return await self._runtime.describe()

    async def aclose(self) -> None:
        await self._runtime.aclose()

    async def _check(self, capability: str, find_problem: FindServerProblem) -> tuple[list[Missing], list[Missing]]:
        """What is missing and what is optional, for one capability or, if it is empty, for all of them alike."""
        files = (path for path in self._dependencies.knowledge if not self._has_file(path))
        missing = [_missing_file(path) for path in files]
        degraded: list[Missing] = []
        if not self._dependencies.mcps:
            return missing, degraded
        servers = await asyncio.to_thread(read_mcp_servers, self._config) or {}
        for dependency in self._dependencies.mcps:
            if not is_needed(dependency, capability):
                continue
            problem = await find_problem(servers.get(dependency.name))
            if problem is not None:
                (missing if dependency.required else degraded).append(_missing_server(dependency.name, problem))
        return missing, degraded

    def _has_file(self, path: str) -> bool:
        target = (self._folder / path).resolve()
        return target.is_relative_to(self._folder.resolve()) and target.is_file()


def _missing_file(path: str) -> Missing:
    text = f"the knowledge file '{path}'"
    return Missing(OperatorText(text, text), {"needs": "knowledge"})


def _missing_server(name: str, problem: ServerProblem) -> Missing:
    server = f"the MCP server '{name}'"
    return Missing(OperatorText(f"{server}: {problem.text}", server), describe_server_problem(problem))


def needs_check(manifest: Manifest) -> bool:
    """Whether the manifest names something that can be missing, and a folder in which to look."""
    dependencies = manifest.dependencies
    has_folder = manifest.origin is not None and bool(manifest.origin.folder) and manifest.registered_by is None
    return has_folder and dependencies is not None and bool(dependencies.mcps or dependencies.knowledge)
