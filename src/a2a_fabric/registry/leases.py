"""Keeps the leases of registered agents: whose has run out is removed, and who passes its checks is kept.

An agent that named a lease renews it itself. One that named none stays as long as
it is seen alive: clients that only ever register need not know of leases at all.
"""

from __future__ import annotations

import asyncio
import logging

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


class LeaseKeeper:
    def __init__(self, store: Registrations, agents: StoredAgents, health: HealthView) -> None:
        self._store = store
        self._agents = agents
        self._health = health

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
        for row in self._agents.all():
            if self._was_seen(row):
                await self._renew(row)
        for agent_id in await self._store.expire():
            _log.info("agent %s is gone: its lease has run out", agent_id)

    def _was_seen(self, row: Registration) -> bool:
        """Alive in the second half of its lease, by a check or a call."""
        terms = terms_of(row.manifest)
        if terms is None or not terms.checks_renew:
            return False
        health = self._health.of(row.agent_id)
        return health.status in ("online", "degraded") and (health.seen_at or 0.0) > row.seen_at + terms.lease / 2

    async def _renew(self, row: Registration) -> None:
        terms = terms_of(row.manifest)
        assert terms is not None  # noqa: S101  # it was seen on these
        try:
            self._agents.keep(await self._store.renew(row.agent_id, row.owner, terms.lease))
        except (AgentNotFound, Forbidden):
            _log.debug("agent %s left or changed hands meanwhile", row.agent_id)
