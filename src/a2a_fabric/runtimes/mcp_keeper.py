"""Keeps one link to a server: opened on first use, watched, opened again after a failure, with back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from a2a_fabric.core.errors import AgentOffline, NotReached
from a2a_fabric.runtimes.mcp_link import Era, Link, Transport
from a2a_fabric.runtimes.process_jsonl import Restarts

_CHANGES_EVERY = 1.0  # seconds; a server that tells of changes without end is heard this often
_CHANGE_AFTER = 0.05


class Keeper:
    """All calls share the link; `connect` makes a new way to the server for each."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Transport],
        restarts: Restarts,
        *,
        era: Era | None,
        start_timeout: float,
        changed: Callable[[], None],
        opened: Callable[[], None] = lambda: None,
        updated: Callable[[str], None] = lambda uri: None,
        may_ask: bool = True,
    ) -> None:
        self._name = name
        self._connect = connect
        self._restarts = restarts
        self._era = era
        self._is_era_fixed = era is not None
        self._start_timeout = start_timeout
        self._changed = changed
        self._opened = opened
        self._updated = updated
        self._may_ask = may_ask
        self._current: Link | None = None
        self._all: set[Link] = set()
        self._last_open: Link | None = None
        self._failures = 0  # in a row, without being open in between
        self._ready_at = 0.0
        self._change_due: asyncio.TimerHandle | None = None
        self._told_at = 0.0
        self._is_closed = False

    @property
    def current(self) -> Link | None:
        """The link, if it is open."""
        return self._current if self._current is not None and self._current.is_open else None

    async def link(self, patience: float | None) -> Link:
        """An open link. Raises AgentOffline: at once while it must not be opened yet, else when patience is out."""
        link = self._current
        if link is None or link.is_over or link.transport.is_ending:
            link = self._current = self._open()
        if not link.is_open:
            await self._wait_for(link, patience)
        if link is not self._last_open:
            self._note_open(link)
        return link

    def check_ready(self) -> None:
        """Raises AgentOffline if the server has failed and is not tried again yet."""
        if self._is_closed:
            raise AgentOffline("The MCP server is shut down with the node", agent_id=self._name)
        wait = self._ready_at - asyncio.get_running_loop().time()
        if wait > 0:
            why = self._current.why if self._current is not None else "The MCP server failed"
            raise AgentOffline(why + f"; next try in {wait:.1f} s", agent_id=self._name, retry_after=wait)

    def drop(self, link: Link, *, forget_era: bool = False) -> None:
        """The server no longer knows this session; the next call opens another."""
        if forget_era and not self._is_era_fixed:
            self._era = None
        link.retire()

    async def aclose(self) -> None:
        self._is_closed = True
        if self._change_due is not None:
            self._change_due.cancel()
        if ending := [asyncio.ensure_future(link.aclose()) for link in self._all]:
            await asyncio.wait(ending)

    def _open(self) -> Link:
        self.check_ready()
        link = Link(
            self._name,
            self._connect,
            self._era,
            self._start_timeout,
            self._note_change,
            self._over,
            may_ask=self._may_ask,
            on_updated=self._updated,
        )
        self._all = {each for each in self._all if not each.is_gone} | {link}
        return link

    async def _wait_for(self, link: Link, patience: float | None) -> None:
        try:
            async with asyncio.timeout(patience):
                await link.settled()
        except TimeoutError as exc:
            why = f"The MCP server is still starting after {patience:.1f} s"
            raise NotReached(why, agent_id=self._name) from exc
        if not link.is_open:
            raise AgentOffline(link.why, agent_id=self._name)

    def _note_open(self, link: Link) -> None:
        if self._last_open is not None:
            self._note_change()  # what came back may offer other tools
        self._last_open = link
        self._failures = 0
        self._era = link.era
        self._opened()

    def _over(self, link: Link) -> None:
        """A server that was open and died is opened again by the next call; only one that does not open must wait."""
        if not link.has_failed:
            return
        if link.was_open:
            self._failures, self._ready_at = 1, 0.0
            return
        self._failures += 1
        if not self._is_era_fixed:
            self._era = None
        self._ready_at = asyncio.get_running_loop().time() + self._restarts.delay(self._failures)

    def _note_change(self) -> None:
        """Tell of changes soon, but not more often than every second."""
        if self._change_due is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            delay = max(_CHANGE_AFTER, self._told_at + _CHANGES_EVERY - loop.time())
            self._change_due = loop.call_later(delay, self._tell_change)

    def _tell_change(self) -> None:
        self._change_due = None
        self._told_at = asyncio.get_running_loop().time()
        self._changed()
