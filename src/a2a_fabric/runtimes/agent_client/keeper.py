"""Keeps one started agent: opened on first use, watched, opened again after a failure, with back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from a2a_fabric.core.errors import AgentOffline, NotReached
from a2a_fabric.runtimes.agent_client.link import Link
from a2a_fabric.runtimes.process_jsonl import Restarts

Connect = Callable[[Callable[[Link], None]], Link]


class Keeper:
    """All calls share the link; `connect` starts the agent anew."""

    def __init__(self, name: str, connect: Connect, restarts: Restarts) -> None:
        self._name = name
        self._connect = connect
        self._restarts = restarts
        self._current: Link | None = None
        self._all: set[Link] = set()
        self._failures = 0  # in a row, without an answer in between
        self._ready_at = 0.0
        self._is_closed = False

    @property
    def current(self) -> Link | None:
        """The link, if it is open."""
        return self._current if self._current is not None and self._current.is_open else None

    async def link(self, patience: float | None = None) -> Link:
        """An open link. Raises AgentOffline: at once while it must not be opened yet, else when patience is out."""
        link = self._current
        if link is None or link.is_over:
            self.check_ready()
            link = self._current = self._connect(self._over)
            self._all = {each for each in self._all if not each.is_gone} | {link}
        if not link.is_open:
            await self._wait_for(link, patience)
        return link

    def check_ready(self) -> None:
        """Raises AgentOffline if the agent has failed and is not started again yet."""
        if self._is_closed:
            raise AgentOffline("The agent is shut down with the node", agent_id=self._name)
        why = self._current.why if self._current is not None else "it failed"
        if self._restarts.is_hopeless(self._failures):
            raise AgentOffline(why + f"; after {self._failures} failures it is not started again", agent_id=self._name)
        wait = self._ready_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise AgentOffline(why + f"; it is started again in {wait:.1f} s", agent_id=self._name, retry_after=wait)

    async def aclose(self) -> None:
        self._is_closed = True
        if ending := [asyncio.ensure_future(link.aclose()) for link in self._all]:
            await asyncio.wait(ending)

    async def _wait_for(self, link: Link, patience: float | None) -> None:
        try:
            async with asyncio.timeout(patience):
                await link.settled()
        except TimeoutError as exc:
            raise NotReached(f"The agent is still starting after {patience:.1f} s", agent_id=self._name) from exc
        if not link.is_open:
            raise AgentOffline(link.why, agent_id=self._name)

    def _over(self, link: Link) -> None:
        """An agent that had answered and died is started again by the next call; another one must wait."""
        if link.has_failed and link.has_answered:
            self._failures, self._ready_at = 1, 0.0
        elif link.has_failed:
            self._failures += 1
            self._ready_at = asyncio.get_running_loop().time() + self._restarts.delay(self._failures)
