"""Runtime: an agent in a git repository, cloned when it is first used and called as its own card says.

The runtime that the card names does the work. A new commit gets a runtime of its own; the one of the commit before
finishes its calls first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, Emit, add_notes
from a2a_fabric.core.errors import AgentOffline, ConfigError, FabricError
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.result import Result
from a2a_fabric.federation.folders import find_secret_references, manifest_from_folder
from a2a_fabric.federation.git import GitCheckout, describe_card_error, find_checkout

_log = logging.getLogger(__name__)


class _Version:
    """The runtime of one commit, and how many calls it has."""

    def __init__(self, commit: str, runtime: Runtime) -> None:
        self.commit = commit
        self.runtime = runtime
        self.calls = 0
        self.is_replaced = False


class GitAgentRuntime:
    """`build` makes the runtime of a manifest whose agent is a folder of this machine."""

    def __init__(self, manifest: Manifest, build: Callable[[Manifest], Awaitable[Runtime]]) -> None:
        self.manifest = manifest
        self._build = build
        self._checkout: GitCheckout = find_checkout(manifest)
        self._version: _Version | None = None
        self._update_lock = asyncio.Lock()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        version = await self._open()
        version.calls += 1
        try:
            result = await version.runtime(call, emit)
        finally:
            version.calls -= 1
            if version.is_replaced and not version.calls:
                await version.runtime.aclose()
        if not version.commit:
            return result
        return add_notes(replace(result, commit=version.commit), (f"answered by commit {version.commit}",))

    async def health(self) -> Status:
        """Unknown before the first use: a check does not clone."""
        if self._version is None and await asyncio.to_thread(self._checkout.needs_update):
            return "unknown"
        return await (self._version or await self._open()).runtime.health()

    async def describe(self) -> Manifest:
        return self.manifest if self._version is None else await self._version.runtime.describe()

    async def aclose(self) -> None:
        version, self._version = self._version, None
        if version is not None:
            await version.runtime.aclose()

    async def _open(self) -> _Version:
        """The runtime of the commit that is to be used now. Raises AgentOffline."""
        async with self._update_lock:
            if await asyncio.to_thread(self._checkout.needs_update):
                await self._update()
            found = await asyncio.to_thread(self._checkout.find_version)
            commit = "" if found is None else found[1]
            if self._version is None or self._version.commit != commit:
                await self._replace_version(commit)
            assert self._version is not None  # noqa: S101
            return self._version

    async def _update(self) -> None:
        """If it fails and there is a clone already, that one goes on; a pinned commit is never replaced by another."""
        try:
            await self._checkout.update()
        except FabricError as error:
            if self._checkout.endpoint.commit is not None or self._checkout.find_version() is None:
                raise
            _log.warning(
                "agent %s: not updated, so its last clone goes on: %s", self.manifest.agent_id, error.full_message
            )

    async def _replace_version(self, commit: str) -> None:
        manifest = await asyncio.to_thread(self._read_manifest)
        old, self._version = self._version, _Version(commit, await self._build(manifest))
        _log.info("agent %s: uses commit %s", self.manifest.agent_id, commit)
        if old is not None:
            old.is_replaced = True
            if not old.calls:
                await old.runtime.aclose()

    def _read_manifest(self) -> Manifest:
        """The clone's own manifest; what the registry says of the agent wins. Raises AgentOffline."""
        own, agent_id = self.manifest, self.manifest.agent_id
        try:
            agent = self._checkout.read_agent()
            if agent is None:
                raise AgentOffline("The agent's clone is gone", agent_id=agent_id)
            assert own.origin is not None  # noqa: S101
            manifest = manifest_from_folder(agent[0], replace(own.origin, commit=agent[1]))
        except ConfigError as error:
            raise describe_card_error(error, agent_id) from error
        granted = {f"env:{name}" for name in self._checkout.endpoint.env}
        foreign = sorted({*find_secret_references(msgspec.to_builtins(manifest.endpoint))} - granted)
        if foreign:
            names = ", ".join(each.removeprefix("env:") for each in foreign)
            reason = f"refers to the environment ({names}), which its location does not allow: see `env`"
            raise describe_card_error(ConfigError(f"The agent's card {reason}"), agent_id)
        endpoint = manifest.endpoint
        if manifest.runtime == "claude":  # tokens of its MCP servers come from the environment, as far as allowed
            endpoint = {**endpoint, "mcp_env": list(self._checkout.endpoint.env)}
        return replace(
            manifest,
            endpoint=endpoint,
            personality=own.personality or manifest.personality,
            dependencies=own.dependencies or manifest.dependencies,
            capabilities=own.capabilities or manifest.capabilities,
        )
