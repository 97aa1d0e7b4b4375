"""Leases of registered agents: expired ones are removed, agents that pass their health checks are renewed.

An agent that named a lease renews it itself. An agent without one stays as long as
health checks or calls reach it, so clients that only register need not know of leases.
If a lease ran out while no node was running, the agent gets some time to show itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from a2a_fabric.core.errors import AgentNotFound, Forbidden, StoreError
from a2a_fabric.core.ports import HealthView
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.stores import RegistrationStore
from a2a_fabric.registry.registration_policy import read_terms
from a2a_fabric.registry.sources.store import StoredAgents

_log = logging.getLogger(__name__)
_INTERVAL = 0.5
_STORE_TIMEOUT = 15.0
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
        pause = _INTERVAL
        while True:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(_STORE_TIMEOUT):
                    await self.renew_and_expire()
                pause = _INTERVAL
            except (StoreError, TimeoutError) as error:
                if pause == _INTERVAL:
                    _log.warning("leases of registered agents cannot be renewed now: %s", error or "no answer in time")
                pause = min(pause * 2, _MAX_PAUSE)
            except Exception:
                _log.exception("renewing leases failed; it is tried again")

    async def renew_and_expire(self) -> None:
        """Renew first, so that no agent is removed that was just seen."""
        rows = self._agents.list_registrations()
        for row in rows:
            if self._is_alive(row):
                await self._renew(row)
        if any(map(self._has_start_grace, rows)):
            return
        for agent_id in await self._store.expire():
            _log.info("agent %s is gone: its lease has run out", agent_id)

    def _is_alive(self, row: Registration) -> bool:
        """Alive in the second half of its lease, by a check or a call."""
        terms = read_terms(row.manifest)
        if terms is None or not terms.checks_renew:
            return False
        health = self._health.get(row.agent_id)
        return health.status in ("online", "degraded") and (health.seen_at or 0.0) > row.seen_at + terms.lease / 2

    def _has_start_grace(self, row: Registration) -> bool:
        """Whether its lease ran out while no node was running. A row that was renewed since is another object."""
        if self._clock() > self._started_at + _START_GRACE or self._agents.get(row.agent_id) is not row:
            return False
        terms = read_terms(row.manifest)
        is_renewed_by_checks = terms is not None and terms.checks_renew
        return is_renewed_by_checks and row.lease_until is not None and row.lease_until <= self._started_at

    async def _renew(self, row: Registration) -> None:
        terms = read_terms(row.manifest)
        assert terms is not None  # noqa: S101  # only rows with terms are renewed
        try:
            self._agents.update_renewed(await self._store.renew(row.agent_id, row.owner, terms.lease))
        except (AgentNotFound, Forbidden):
            _log.debug("agent %s was removed or has another owner now", row.agent_id)
