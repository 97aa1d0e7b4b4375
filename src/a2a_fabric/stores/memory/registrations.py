"""Registrations and health checks in dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.message import inbox_name
from a2a_fabric.core.registration import (
    AgentChange,
    HealthCheck,
    IdHolder,
    IdReservation,
    Registration,
    RegistrationFilter,
    check_owner,
    holder_from_registration,
    is_reserved,
    make_registration,
    matches_filter,
    raise_reserved,
    renew_registration,
)
from a2a_fabric.core.stores import AGENTS_TOPIC
from a2a_fabric.core.tasks import TopicSignals


class MemoryRegistrations:
    """`forget_inbox` empties an inbox and ends its subscriptions."""

    def __init__(
        self, signals: TopicSignals, clock: Callable[[], float], clear_inbox: Callable[[str], None] = lambda inbox: None
    ) -> None:
        self.by_id: dict[str, Registration] = {}
        self._lapsed: dict[str, IdHolder] = {}
        self._clear_inbox = clear_inbox
        self._changes: dict[str, AgentChange] = {}  # in order of revision, each agent once
        self._revision = 0
        self._signals = signals
        self._clock = clock

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: IdReservation | None = None
    ) -> Registration:
        agent_id, now = manifest.agent_id, self._clock()
        existing = self.by_id.get(agent_id)
        holder = self._lapsed.get(agent_id) if existing is None else holder_from_registration(existing, now)
        if holder is not None and is_reserved(holder, owner, reservation, now):
            lapsed_later = [each for each in self._lapsed.values() if _has_lapsed_later(each, holder)]
            if reservation is not None and len(lapsed_later) < reservation.names:
                raise_reserved(agent_id)
        registration = make_registration(manifest, owner, holder, lease, self._revision + 1, now)
        if holder is not None and holder.owner != owner:
            self._clear_inbox(inbox_name(agent_id))
        self._write(agent_id, registration)
        return registration

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        registration = renew_registration(self.by_id.get(agent_id), agent_id, owner, lease, self._clock())
        self.by_id[agent_id] = registration
        return registration

    async def remove(self, agent_id: str, owner: str) -> bool:
        existing = self.by_id.get(agent_id)
        if existing is None:
            return False
        check_owner(existing, owner)
        self._write(agent_id, None)
        return True

    async def get(self, agent_id: str) -> Registration | None:
        return self.by_id.get(agent_id)

    async def list(self, query: RegistrationFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        rows = (self.by_id[agent_id] for agent_id in sorted(self.by_id) if agent_id > after)
        return [row for row in rows if matches_filter(row.manifest, row.owner, query)][:limit]

    async def read_changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        recent = [change for change in self._changes.values() if change.revision > after][:limit]
        return [replace(change, registration=self.by_id.get(change.agent_id)) for change in recent]

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        now = self._clock()
        expired = [agent_id for agent_id, row in self.by_id.items() if not row.is_alive(now)][:limit]
        for agent_id in expired:
            self._write(agent_id, None)
        return expired

    def restore(self, row: Registration) -> bool:
        if row.agent_id in self.by_id:
            return False
        self._write(row.agent_id, replace(row, revision=self._revision + 1))
        return True

    def _write(self, agent_id: str, row: Registration | None) -> None:
        self._revision += 1
        self._changes.pop(agent_id, None)
        self._changes[agent_id] = AgentChange(revision=self._revision, agent_id=agent_id)
        if row is None:
            removed = self.by_id.pop(agent_id)
            self._lapsed[agent_id] = IdHolder(
                owner=removed.owner, registered_at=removed.registered_at, lapsed_at=self._clock()
            )
        else:
            self.by_id[agent_id] = row
            self._lapsed.pop(agent_id, None)
        self._signals.post(AGENTS_TOPIC)


def _has_lapsed_later(holder: IdHolder, reference: IdHolder) -> bool:
    return holder.owner == reference.owner and (holder.lapsed_at or 0.0) > (reference.lapsed_at or 0.0)


class MemoryHealthLog:
    def __init__(self) -> None:
        self.by_agent: dict[str, dict[tuple[float, str], HealthCheck]] = {}

    async def append(self, checks: Sequence[HealthCheck]) -> None:
        for check in checks:
            self.restore(check)

    async def read(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        rows = self.by_agent.get(agent_id, {})
        newest_first = sorted(rows.values(), key=lambda check: (check.checked_at, check.node_id), reverse=True)
        matching = [c for c in newest_first if since <= c.checked_at and (until is None or c.checked_at < until)]
        return matching[:limit]

    async def prune(self, before: float) -> int:
        count = 0
        for rows in self.by_agent.values():
            for key in [key for key in rows if key[0] < before]:
                del rows[key]
                count += 1
        return count

    def restore(self, check: HealthCheck) -> bool:
        rows = self.by_agent.setdefault(check.agent_id, {})
        key = (check.checked_at, check.node_id)
        is_new = key not in rows
        rows[key] = check
        return is_new
