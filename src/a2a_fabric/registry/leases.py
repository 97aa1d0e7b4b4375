"""Keeps the leases of registered agents: whose has run out is removed, and who passes its checks is kept.

An agent that named a lease renews it itself. One that named none stays as long as
it is seen alive: clients that only ever register need not know of leases at all.
If its time ran out while no node was there to see it, it gets a while to show itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from a2a_fabric.core.errors import AgentNotFound, Forbidden
from a2a_fabric.core.ports import HealthView
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.store_errors import StoreError
from a2a_fabric.core.stores import Registrations
from a2a_fabric.registry.stored import StoredAgents
from a2a_fabric.registry.terms import terms_of

_log = logging.getLogger(__name__)
_EVERY = 0.5
_PATIENCE = 15.0
_LONGEST_PAUSE = 10.0
_SECOND_CHANCE = 600.0  # after the start: agents may well be started later than the node


class LeaseKeeper:
    def __init__(
        self,
        store: Registrations,
        agents: StoredAgents,
        health: HealthView,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._agents = agents
        self._health = health
        self._clock = clock
        self._began_at = clock()

    async def run(self) -> None:
        """Until cancelled. While the store is away nothing runs out."""
        pause = _EVERY
        while True:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self.look()
                pause = _EVERY
            except (StoreError, TimeoutError) as error:
                if pause == _EVERY:
                    _log.warning("leases of registered agents are not looked after: %s", error or "no answer in time")
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception:
                _log.exception("looking after leases failed; it is tried again")

    async def look(self) -> None:
        """Signs of life first, so that nobody is removed who was just seen."""
        rows = self._agents.all()
        for row in rows:
            if self._was_seen(row):
                await self._renew(row)
        if any(map(self._may_still_come, rows)):
            return
        for agent_id in await self._store.expire():
            _log.info("agent %s is gone: its lease has run out", agent_id)

    def _was_seen(self, row: Registration) -> bool:
        """Alive in the second half of its lease, by a check or a call."""
        terms = terms_of(row.manifest)
        if terms is None or not terms.checks_renew:
            return False
        health = self._health.of(row.agent_id)
        return health.status in ("online", "degraded") and (health.seen_at or 0.0) > row.seen_at + terms.lease / 2

    def _may_still_come(self, row: Registration) -> bool:
        """Nobody was here to see it when its time ran out. What was renewed meanwhile is another row."""
        if self._clock() > self._began_at + _SECOND_CHANCE or self._agents.get(row.agent_id) is not row:
            return False
        terms = terms_of(row.manifest)
        is_kept_by_checks = terms is not None and terms.checks_renew
        return is_kept_by_checks and row.lease_until is not None and row.lease_until <= self._began_at

    async def _renew(self, row: Registration) -> None:
        terms = terms_of(row.manifest)
        assert terms is not None  # noqa: S101  # it was seen on these
        try:
            self._agents.keep(await self._store.renew(row.agent_id, row.owner, terms.lease))
        except (AgentNotFound, Forbidden):
            _log.debug("agent %s left or changed hands meanwhile", row.agent_id)
