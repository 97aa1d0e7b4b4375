"""Source: agents that registered at run time with this store, for as long as their leases last.

It mirrors the store's registrations by revision: a notification says that something
changed, and only what came after the last revision is read. While the store is
unavailable the mirror stays as it is and its agents keep serving.

An agent that named a lease renews it itself. An agent without one stays as long as
health checks or calls reach it, so clients that only register need not know of leases.
If a lease ran out while no node was running, the agent gets some time to show itself."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentNotFound, Forbidden, StoreError
from a2a_fabric.core.ports import HealthView
from a2a_fabric.core.registration import AgentChange, Registration
from a2a_fabric.core.stores import AGENTS_TOPIC, ChangeNotices, RegistrationStore, call_store_within
from a2a_fabric.core.tasks import iterate_in_slices, repeat_forever
from a2a_fabric.registry.registration_policy import add_owner, read_terms

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
        self._manifests: dict[str, Manifest] = {}  # the same object for as long as the registration stays the same
        self._order: list[tuple[float, str]] = []  # of registration
        self._count_by_owner: Counter[str] = Counter()
        self._revision = 0
        self._lock = asyncio.Lock()
        self.is_store_unavailable = False

    async def load(self) -> Sequence[Manifest]:
        """In order of registration. Raises StoreError."""
        async with self._lock:
            while page := await self._read_changes(_PAGE):
                for change in page:
                    self._apply_change(change)
            return [*map(self._manifests.__getitem__, map(itemgetter(1), self._order))]

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
        return self._count_by_owner[owner]

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
        return await call_store_within(_STORE_TIMEOUT, self._store.read_changes, self._revision, limit)

    def _apply_change(self, change: AgentChange) -> None:
        self._revision = change.revision
        row = change.registration
        previous = self._rows.pop(change.agent_id, None)
        if previous is not None:
            del self._manifests[change.agent_id]
            del self._order[bisect_left(self._order, (previous.registered_at, change.agent_id))]
            self._count_by_owner[previous.owner] -= 1
        if row is not None and self._accepts(row.manifest):
            self._rows[change.agent_id] = row
            self._manifests[change.agent_id] = add_owner(row.manifest, row.owner)
            insort(self._order, (row.registered_at, change.agent_id))
            self._count_by_owner[row.owner] += 1
            return
        if row is not None:
            _log.warning(
                "agent %s, registered by %s, is of a kind that this node does not serve", row.agent_id, row.owner
            )


_INTERVAL = 0.5
_MAX_PAUSE = 10.0
_START_GRACE = 600.0  # seconds after the start, because agents may start later than the node


class LeaseExpirer:
    def __init__(
        self,
        store: RegistrationStore,
        agents: StoredAgents,
        health: HealthView,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._agents = agents
        self._health = health
        self._clock = clock
        self._started_at = clock()

    async def run(self) -> None:
        """Until cancelled. While the store is unavailable no lease runs out."""

        async def renew_in_time() -> None:
            async with asyncio.timeout(_STORE_TIMEOUT):
                await self.renew_and_expire()

        await repeat_forever(renew_in_time, _INTERVAL, _MAX_PAUSE, _log, "renewing leases of registered agents")

    async def renew_and_expire(self) -> None:
        """Renew first, so that no agent is removed that was just seen."""
        has_grace = False
        async for rows in iterate_in_slices(self._agents.list_registrations()):
            for row in rows:
                if self._is_alive(row):
                    await self._renew(row)
                has_grace = has_grace or self._has_start_grace(row)
        if has_grace:
            return
        for agent_id in await self._store.expire():
            _log.info("agent %s is gone: its lease has run out", agent_id)

    def _is_alive(self, row: Registration) -> bool:
        """Alive in the second half of its lease, by a check or a call."""
        health = self._health.get(row.agent_id)
        if health.status not in ("online", "degraded") or (health.seen_at or 0.0) <= row.seen_at:
            return False
        terms = read_terms(row.manifest)
        return terms is not None and terms.checks_renew and (health.seen_at or 0.0) > row.seen_at + terms.lease / 2

    def _has_start_grace(self, row: Registration) -> bool:
        """Whether its lease ran out while no node was running. A row that was renewed since is another object."""
        if row.lease_until is None or row.lease_until > self._started_at:
            return False
        if self._clock() > self._started_at + _START_GRACE or self._agents.get(row.agent_id) is not row:
            return False
        terms = read_terms(row.manifest)
        return terms is not None and terms.checks_renew

    async def _renew(self, row: Registration) -> None:
        terms = read_terms(row.manifest)
        assert terms is not None  # noqa: S101  # only rows with terms are renewed
        try:
            self._agents.update_renewed(await self._store.renew(row.agent_id, row.owner, terms.lease))
        except (AgentNotFound, Forbidden):
            _log.debug("agent %s was removed or has another owner now", row.agent_id)
