"""Tools that changed since they were approved, at a running node or in the memory of `a2a-fabric mcp`.

A node that `a2a-fabric mcp --agents FILE` starts for a client has no port, so its operator cannot ask it. It remembers
what its agents offered in the state folder; if no node is running, changes are shown and approved there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.cli.connection import administer
from a2a_fabric.cli.node_setup import plan_setup
from a2a_fabric.cli.output import remark
from a2a_fabric.client.local_node import StateFolder
from a2a_fabric.config import read_environment
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentNotFound, StoreError
from a2a_fabric.registry.agent_tools import AgentToolReport
from a2a_fabric.registry.memory import AgentMemory
from a2a_fabric.registry.sources.files import read_manifests
from a2a_fabric.registry.tool_choice import matches_any
from a2a_fabric.stores.description_files import DescriptionFiles


class ToolApproval:
    """At the node, or in the memory of the agents in `agents_files`. Without either, at the node that is running."""

    def __init__(self, url: str | None, token: str | None, agents_files: Sequence[Path]) -> None:
        """Raises ConfigError."""
        self._url = url
        self._token = token
        self._files = agents_files or (() if url else _find_own_files())

    def list_changes(self, agent_id: str | None) -> dict[str, Any]:
        """Raises FabricError."""
        if self._files:
            return asyncio.run(self._list_remembered(agent_id))
        return administer(self._url, self._token, "tools.changed", agent_id=agent_id)

    def approve(self, agent_id: str, patterns: Sequence[str]) -> dict[str, Any]:
        """Raises FabricError."""
        if self._files:
            approved = asyncio.run(self._approve_remembered(agent_id, patterns))
            return {"agent_id": agent_id, "approved": approved}
        return administer(self._url, self._token, "tools.approve", agent_id=agent_id, tools=list(patterns))

    async def _list_remembered(self, agent_id: str | None) -> dict[str, Any]:
        memory = await _load_memory()
        reports = {
            manifest.agent_id: AgentToolReport(changes=tuple(changes), is_held=bool(manifest.pin_tools))
            for manifest in self._find_manifests(agent_id)
            if (remembered := memory.recall(manifest)) is not None
            and (changes := memory.find_changes(manifest, remembered.capabilities))
        }
        return {"agents": [{"agent_id": each, **msgspec.to_builtins(report)} for each, report in reports.items()]}

    async def _approve_remembered(self, agent_id: str, patterns: Sequence[str]) -> list[str]:
        memory = await _load_memory()
        approved: list[str] = []
        for manifest in self._find_manifests(agent_id):
            remembered = memory.recall(manifest)
            offered = () if remembered is None else remembered.capabilities
            names = [each.name for each in offered if not patterns or matches_any(each.name, patterns)]
            approved += memory.approve(manifest, offered, names)
        await memory.aclose()
        if not memory.is_saved:
            raise StoreError("The approval could not be written, so the tools stay as they were")
        return approved

    def _find_manifests(self, agent_id: str | None) -> list[Manifest]:
        """Raises ConfigError and AgentNotFound."""
        manifests = [manifest for path in self._files for manifest in read_manifests(path)]
        found = [manifest for manifest in manifests if agent_id in (None, manifest.agent_id)]
        if agent_id is not None and not found:
            raise AgentNotFound(agent_id, [manifest.agent_id for manifest in manifests])
        return found


def _find_own_files() -> Sequence[Path]:
    """The agents files here, unless a node is running that can be asked, or has a store here. Raises ConfigError."""
    environ = read_environment()
    if environ.get("FABRIC_URL") or StateFolder(environ).read_node() is not None:
        return ()
    setup = plan_setup(None, [], None, environ)
    if setup.config_file is not None or not setup.agents_files:
        return ()
    names = ", ".join(map(str, setup.agents_files))
    remark(f"No node is running: these are the agents of {names}, as `a2a-fabric mcp` remembers them.")
    return setup.agents_files


async def _load_memory() -> AgentMemory:
    memory = AgentMemory(DescriptionFiles(StateFolder(read_environment()).offers))
    await memory.load()
    return memory
