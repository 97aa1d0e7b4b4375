"""Prompts and resources of one agent behind the operator's guards.

A guard sees what is asked as `params`, and the answer, with each message before it, as `data`. Its `capability` is the
method: `prompts/get`, `resources/read` or `completion/complete`. Lists are not guarded: they hold descriptions, as
lists of tools do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.guards import Guards, GuardSubject, guard_error, guard_events
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceListing, PromptResourceProvider, PromptResourceQuery


class GuardedProvider:
    def __init__(self, provider: PromptResourceProvider, agent_id: str, guards: Guards) -> None:
        self._provider = provider
        self._agent_id = agent_id
        self._guards = guards

    @property
    def listing(self) -> PromptResourceListing:
        return self._provider.listing

    async def load(self) -> PromptResourceListing:
        return await self._provider.load()

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        """Raises Forbidden if a guard refuses, besides what the provider raises."""
        subject = GuardSubject(self._agent_id, query.method, query.principal.principal_id, query.trace.trace_id)
        params, _ = await self._guards.check_object(subject, "arguments", "params", query.params)
        after = self._guards.select((self._agent_id,), "result")
        if emit is not None and after:
            emit = guard_events(after, subject, emit)
        try:
            answer = await self._provider.ask(replace(query, params=params), emit)
        except FabricError as error:
            await guard_error(after, subject, error)
            raise
        return (await self._guards.check_object(subject, "result", "data", answer))[0]

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        return await self._provider.subscribe(uri, on_change, on_lost, start_timeout)
