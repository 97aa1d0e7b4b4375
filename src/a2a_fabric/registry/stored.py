"""Source: agents that registered at run time, on this node or on any other with the same store.

A mirror of the store's registrations, kept up by revision: the store's bell says
that something changed, and only what came after the last known revision is read. While
the store is away the mirror stays as it is, and its agents go on serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.registration import AgentChange, Registration
from a2a_fabric.core.store_errors import StoreError, StoreUnavailable
from a2a_fabric.core.stores import AGENTS, Notices, Registrations
from a2a_fabric.registry.terms import with_owner

_log = logging.getLogger(__name__)
_PAGE = 1000
_LOOK_EVERY = 5.0  # should a bell ever be missed
_LOOK_AGAIN = 1.0  # while the store is away
_PATIENCE = 15.0


class StoredAgents:
    name = "registered agents"

    def __init__(self, store: Registrations, notices: Notices, accepts: Callable[[Manifest], bool]) -> None:
        self._store = store
        self._notices = notices
        self._accepts = accepts
        self._rows: dict[str, Registration] = {}
        self._revision = 0
        self._turn = asyncio.Lock()
        self.is_away = False

    async def load(self) -> Sequence[Manifest]:
        """In order of registration. Raises StoreError."""
        async with self._turn:
            while page := await self._changes(_PAGE):
                for change in page:
                    self._follow(change)
            rows = sorted(self._rows.values(), key=lambda row: (row.registered_at, row.agent_id))
            return [with_owner(row.manifest, row.owner) for row in rows]

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        with self._notices.watch(AGENTS) as bell:
            while True:
                if await self._is_due():
                    await changed()
                await bell.wait(_LOOK_AGAIN if self.is_away else _LOOK_EVERY)

    def get(self, agent_id: str) -> Registration | None:
        """As this node knows it; its lease may have been renewed since."""
        return self._rows.get(agent_id)

    def all(self) -> list[Registration]:
        return list(self._rows.values())

    def count_of(self, owner: str) -> int:
        return Counter(row.owner for row in self._rows.values())[owner]

    def keep(self, renewed: Registration) -> None:
        """A renewal is no change that anybody is told of; who made it writes it down here."""
        known = self._rows.get(renewed.agent_id)
        if known is not None and known.revision == renewed.revision:
            self._rows[renewed.agent_id] = renewed

    async def _is_due(self) -> bool:
        """Whether there is something to load, or the store went or came back, which is to be shown."""
        was_away, self.is_away = self.is_away, False
        try:
            return bool(await self._changes(1)) or was_away
        except StoreError:
            self.is_away = True
            return not was_away

    async def _changes(self, limit: int) -> Sequence[AgentChange]:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._store.changes(self._revision, limit)
        except TimeoutError as exc:
            raise StoreUnavailable(f"The store did not answer within {_PATIENCE:g} s") from exc

    def _follow(self, change: AgentChange) -> None:
        self._revision = change.revision
        row = change.registration
        if row is not None and self._accepts(row.manifest):
            self._rows[change.agent_id] = row
            return
        self._rows.pop(change.agent_id, None)
        if row is not None:
            _log.warning(
                "agent %s, registered by %s, is of a kind that this node does not serve", row.agent_id, row.owner
            )
