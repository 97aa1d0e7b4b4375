"""Source: agents that registered at run time, on this node or on another node with the same store.

It mirrors the store's registrations by revision: a notification says that something
changed, and only what came after the last revision is read. While the store is
unavailable the mirror stays as it is and its agents keep serving."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.registration import AgentChange, Registration
from a2a_fabric.core.store_calls import call_store
from a2a_fabric.core.stores import AGENTS_TOPIC, ChangeNotices, RegistrationStore
from a2a_fabric.registry.registration_policy import add_owner

_log = logging.getLogger(__name__)
_PAGE = 1000
_POLL_INTERVAL = 5.0  # in case a notice is missed
_RETRY_INTERVAL = 1.0  # while the store is away
_STORE_TIMEOUT = 15.0


class StoredAgents:
    name = "registered agents"

    def __init__(self, store: RegistrationStore, notices: ChangeNotices, accepts: Callable[[Manifest], bool]) -> None:
        self._store = store
        self._notices = notices
        self._accepts = accepts
        self._rows: dict[str, Registration] = {}
        self._revision = 0
        self._lock = asyncio.Lock()
        self.is_store_unavailable = False

    async def load(self) -> Sequence[Manifest]:
        """In order of registration. Raises StoreError."""
        async with self._lock:
            while page := await self._read_changes(_PAGE):
                for change in page:
                    self._apply_change(change)
            rows = sorted(self._rows.values(), key=lambda row: (row.registered_at, row.agent_id))
            return [add_owner(row.manifest, row.owner) for row in rows]

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        with self._notices.watch(AGENTS_TOPIC) as wake_handle:
            while True:
                if await self._has_changes():
                    await on_change()
                await wake_handle.wait(_RETRY_INTERVAL if self.is_store_unavailable else _POLL_INTERVAL)

    def get(self, agent_id: str) -> Registration | None:
        """The registration as last read; its lease may have been renewed since."""
        return self._rows.get(agent_id)

    def list_registrations(self) -> list[Registration]:
        return list(self._rows.values())

    def count_owned_by(self, owner: str) -> int:
        return Counter(row.owner for row in self._rows.values())[owner]

    def update_renewed(self, renewed: Registration) -> None:
        """Take over a renewal that this node made; renewals are not among the changes of the store."""
        current = self._rows.get(renewed.agent_id)
        if current is not None and current.revision == renewed.revision:
            self._rows[renewed.agent_id] = renewed

    async def _has_changes(self) -> bool:
        """Whether there are changes to load, or the availability of the store has changed."""
        was_unavailable, self.is_store_unavailable = self.is_store_unavailable, False
        try:
            return bool(await self._read_changes(1)) or was_unavailable
        except StoreError:
            self.is_store_unavailable = True
            return not was_unavailable

    async def _read_changes(self, limit: int) -> Sequence[AgentChange]:
        return await call_store(lambda: self._store.read_changes(self._revision, limit), _STORE_TIMEOUT)

    def _apply_change(self, change: AgentChange) -> None:
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
