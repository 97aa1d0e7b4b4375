"""Runtime: an agent that a peer holds. The peer runs the agent's own runtime; this one passes calls on.

A program that is started once, or a Python agent with state of its own, must exist once on a node however many workers
the node has. So one worker holds it, and the others reach it through this runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import CallTimeout, FabricError
from a2a_fabric.core.result import Result
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.mesh.client import PeerClient
from a2a_fabric.protocols.mcp.runtime_ports import EMPTY_LISTING, PromptResourceListing, PromptResourceQuery

_log = logging.getLogger(__name__)
_GRACE = 1.0  # seconds for the peer's own error to arrive


class PeerRuntime:
    """`on_listing_changed` is called when the agent has other prompts or resources than before."""

    enforces_deadline: Literal[True] = True  # the peer does

    def __init__(self, manifest: Manifest, peer: PeerClient, on_listing_changed: Callable[[], None]) -> None:
        self._manifest = manifest
        self._peer = peer
        self.prompts_and_resources = PeerPromptsAndResources(manifest.agent_id, peer, on_listing_changed)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        if call.target.agent_id != self._manifest.agent_id:  # an attempt at a fallback keeps the call's own target
            target = msgspec.structs.replace(call.target, agent_id=self._manifest.agent_id)
            call = msgspec.structs.replace(call, target=target)
        return await self._peer.call(call, emit, "agent")

    async def health(self) -> Status:
        return await self._peer.get_status(self._manifest.agent_id)

    async def describe(self) -> Manifest:
        described = await self._peer.describe(self._manifest.agent_id)
        await self.prompts_and_resources.load()
        return described

    async def aclose(self) -> None:
        await self.prompts_and_resources.aclose()


class PeerPromptsAndResources:
    def __init__(self, agent_id: str, peer: PeerClient, on_changed: Callable[[], None]) -> None:
        self._agent_id = agent_id
        self._peer = peer
        self._on_changed = on_changed
        self._subscriptions: set[asyncio.Task[None]] = set()
        self.listing: PromptResourceListing = EMPTY_LISTING

    async def load(self) -> PromptResourceListing:
        try:
            listing = await self._peer.list_prompts_resources(self._agent_id)
        except FabricError as error:  # the agent's health says why
            _log.debug("the prompts of %s were not read: %s", self._agent_id, error.full_message)
            return self.listing
        if listing != self.listing:
            self.listing = listing
            self._on_changed()
        return listing

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        return await self._peer.ask_agent(self._agent_id, query, emit)

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        """Raises FabricError, also if the peer does not answer within `start_timeout` and a little more."""
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_event(is_change: bool) -> None:
            if not started.done():
                started.set_result(None)
            if is_change:
                on_change()

        async def follow() -> None:
            try:
                await self._peer.follow_resource(self._agent_id, uri, on_event)
            except FabricError as error:
                if not started.done():
                    started.set_exception(error)
                    return
            on_lost()

        task = asyncio.ensure_future(follow())
        self._subscriptions.add(task)
        task.add_done_callback(self._subscriptions.discard)
        try:
            async with asyncio.timeout(start_timeout + _GRACE):
                await started
        except TimeoutError as exc:
            task.cancel()
            raise CallTimeout(start_timeout) from exc
        except BaseException:
            task.cancel()
            raise
        return lambda: _cancel(task)

    async def aclose(self) -> None:
        await cancel_and_wait(*self._subscriptions)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
