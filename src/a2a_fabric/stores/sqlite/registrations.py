"""Registrations and the history of health over SQLite.

Every change takes the next revision inside its transaction, and transactions
follow one another, so revisions appear in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, fold
from a2a_fabric.core.message import inbox_of
from a2a_fabric.core.registration import (
    AgentChange,
    AgentFilter,
    HealthCheck,
    Holder,
    Registration,
    Reservation,
    is_reserved,
    refuse_reserved,
    refuse_stranger,
    registered,
    renewed,
)
from a2a_fabric.core.stores import AGENTS
from a2a_fabric.stores.agent_rows import COLUMNS, capability_row, change_from, holder_from, registration_from
from a2a_fabric.stores.sqlite.reader import Reader, Row
from a2a_fabric.stores.sqlite.writer import Transaction, Writer

_GET = f"SELECT {COLUMNS} FROM agents WHERE agent_id = ? AND removed = 0"  # noqa: S608
_LAST = f"SELECT {COLUMNS} FROM agents WHERE agent_id = ?"  # noqa: S608
_LAPSED_LATER = "SELECT count(*) FROM agents WHERE removed = 1 AND owner = ? AND updated_at > ?"
_CHANGES = f"SELECT {COLUMNS} FROM agents WHERE revision > ? ORDER BY revision LIMIT ?"  # noqa: S608
_LIST = f"SELECT {COLUMNS} FROM agents WHERE removed = 0 AND agent_id > ?"  # noqa: S608
_REVISION = "SELECT coalesce(max(revision), 0) + 1 FROM agents"
_PUT = """
INSERT OR REPLACE INTO agents (
    agent_id, revision, removed, owner, registered_at, updated_at, seen_at, lease_until, node_id, runtime, transport,
    endpoint_uri, display_name, description, version, trust_tier, audience, realm, cog_id, delegate_id, manifest
) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_RENEW = "UPDATE agents SET seen_at = ?, lease_until = ? WHERE agent_id = ?"
_REMOVE = "UPDATE agents SET removed = 1, revision = ?, updated_at = ?, lease_until = NULL WHERE agent_id = ?"
_EXPIRED = """
SELECT agent_id FROM agents WHERE lease_until IS NOT NULL AND removed = 0 AND lease_until <= ?
ORDER BY lease_until LIMIT ?
"""
_PUT_CAPABILITY = "INSERT OR REPLACE INTO agent_capabilities VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HAS_CAPABILITY = "agent_id IN (SELECT agent_id FROM agent_capabilities WHERE folded = ?)"
_HAS_TAG = "agent_id IN (SELECT agent_id FROM agent_tags WHERE tag = ?)"


class SqliteRegistrations:
    def __init__(self, writer: Writer, reader: Reader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: Reservation | None = None
    ) -> Registration:
        def work(tx: Transaction) -> Registration:
            holder = _holder(tx, manifest.agent_id)
            if holder is not None and is_reserved(holder, owner, reservation, tx.now):
                later = tx.execute(_LAPSED_LATER, (holder.owner, holder.lapsed_at)).fetchone()[0]
                if reservation is not None and later < reservation.names:
                    refuse_reserved(manifest.agent_id)
            made = registered(manifest, owner, holder, lease, _next_revision(tx), tx.now)
            if holder is not None and holder.owner != owner:
                _forget_inbox(tx, manifest.agent_id)
            put(tx, made)
            return made

        return await self._writer.run(work)

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        def work(tx: Transaction) -> Registration:
            alive = renewed(_known(tx, agent_id), agent_id, owner, lease, tx.now)
            tx.execute(_RENEW, (alive.seen_at, alive.lease_until, agent_id))
            return alive

        return await self._writer.run(work)

    async def remove(self, agent_id: str, owner: str) -> bool:
        def work(tx: Transaction) -> bool:
            known = _known(tx, agent_id)
            if known is None:
                return False
            refuse_stranger(known, owner)
            _remove(tx, agent_id)
            return True

        return await self._writer.run(work)

    async def get(self, agent_id: str) -> Registration | None:
        row = self._reader.one(_GET, (agent_id,))
        return None if row is None else registration_from(row)

    async def list(self, wish: AgentFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        conditions, values = _narrowed(wish)
        sql = " AND ".join([_LIST, *conditions]) + " ORDER BY agent_id LIMIT ?"
        return [registration_from(row) for row in self._reader.all(sql, (after, *values, limit))]

    async def changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        return [change_from(row) for row in self._reader.all(_CHANGES, (after, limit))]

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        if not self._reader.one(_EXPIRED, (self._clock(), 1)):
            return []

        def work(tx: Transaction) -> list[str]:
            gone = [agent_id for (agent_id,) in tx.execute(_EXPIRED, (tx.now, limit)).fetchall()]
            for agent_id in gone:
                _remove(tx, agent_id)
            return gone

        return await self._writer.run(work)


def restore(tx: Transaction, row: Registration) -> bool:
    """As it is, but as the newest change; False if there is one already."""
    if _known(tx, row.agent_id) is not None:
        return False
    put(tx, msgspec.structs.replace(row, revision=_next_revision(tx)))
    return True


def put(tx: Transaction, row: Registration) -> None:
    manifest, endpoint = row.manifest, row.manifest.endpoint
    tx.execute(
        _PUT,
        (
            row.agent_id, row.revision, row.owner, row.registered_at, row.updated_at, row.seen_at, row.lease_until,
            manifest.node_id, manifest.runtime, _text(endpoint.get("transport")), _text(endpoint.get("uri")),
            manifest.display_name, manifest.description, manifest.version, manifest.trust_tier, manifest.audience,
            manifest.realm, manifest.cog_id, manifest.delegate_id, msgspec.json.encode(manifest),
        ),
    )  # fmt: skip
    _forget_details(tx, row.agent_id)
    tx.executemany(_PUT_CAPABILITY, [capability_row(row.agent_id, each) for each in manifest.capabilities])
    tags = [(tag, row.agent_id) for tag in dict.fromkeys(manifest.tags)]
    tx.executemany("INSERT INTO agent_tags (tag, agent_id) VALUES (?, ?)", tags)
    tx.topics.add(AGENTS)


def _remove(tx: Transaction, agent_id: str) -> None:
    tx.execute(_REMOVE, (_next_revision(tx), tx.now, agent_id))
    _forget_details(tx, agent_id)
    tx.topics.add(AGENTS)


def _forget_details(tx: Transaction, agent_id: str) -> None:
    tx.execute("DELETE FROM agent_capabilities WHERE agent_id = ?", (agent_id,))
    tx.execute("DELETE FROM agent_tags WHERE agent_id = ?", (agent_id,))


def _forget_inbox(tx: Transaction, agent_id: str) -> None:
    for table in ("inbox_entries", "subscriptions"):
        tx.execute(f"DELETE FROM {table} WHERE inbox = ?", (inbox_of(agent_id),))  # noqa: S608


def _holder(tx: Transaction, agent_id: str) -> Holder | None:
    row = tx.execute(_LAST, (agent_id,)).fetchone()
    return None if row is None else holder_from(row, tx.now)


def _known(tx: Transaction, agent_id: str) -> Registration | None:
    row = tx.execute(_GET, (agent_id,)).fetchone()
    return None if row is None else registration_from(row)


def _next_revision(tx: Transaction) -> int:
    return int(tx.execute(_REVISION).fetchone()[0])


def _narrowed(wish: AgentFilter) -> tuple[list[str], list[Any]]:
    plain = ("owner", "runtime", "node_id", "trust_tier", "realm", "cog_id", "delegate_id")
    wanted = [(f"{name} = ?", getattr(wish, name)) for name in plain]
    wanted.append((_HAS_TAG, wish.tag))
    wanted.append((_HAS_CAPABILITY, None if wish.capability is None else fold(wish.capability)))
    asked = [(condition, value) for condition, value in wanted if value is not None]
    return [condition for condition, _ in asked], [value for _, value in asked]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_NOTE = "INSERT OR IGNORE INTO health_checks VALUES (?, ?, ?, ?, ?, ?)"
_HISTORY = """
SELECT agent_id, checked_at, node_id, status, latency, error FROM health_checks
WHERE agent_id = ? AND checked_at >= ? AND checked_at < ? ORDER BY checked_at DESC, node_id DESC LIMIT ?
"""


class SqliteHealthLog:
    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def note(self, checks: Sequence[HealthCheck]) -> None:
        await self._writer.run(lambda tx: [note(tx, check) for check in checks])

    async def history(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        end = 1e300 if until is None else until
        return [check_from(row) for row in self._reader.all(_HISTORY, (agent_id, since, end, limit))]

    async def forget(self, before: float) -> int:
        return await self._writer.run(
            lambda tx: tx.execute("DELETE FROM health_checks WHERE checked_at < ?", (before,)).rowcount
        )


def note(tx: Transaction, check: HealthCheck) -> bool:
    values = (check.agent_id, check.checked_at, check.node_id, check.status, check.latency, check.error)
    return tx.execute(_NOTE, values).rowcount > 0


def check_from(row: Row) -> HealthCheck:
    agent_id, checked_at, node_id, status, latency, error = row
    return HealthCheck(
        agent_id=agent_id, checked_at=checked_at, node_id=node_id, status=status, latency=latency, error=error
    )
