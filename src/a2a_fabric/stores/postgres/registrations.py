"""Registrations over PostgreSQL.

Every change takes the next revision under one lock that is held until it is
committed, so revisions appear in their order on every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest, fold
from a2a_fabric.core.message import inbox_of
from a2a_fabric.core.registration import (
    AgentChange,
    AgentFilter,
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
from a2a_fabric.stores.postgres import locks
from a2a_fabric.stores.postgres.arrays import arrays, columns_of
from a2a_fabric.stores.postgres.connections import Connections
from a2a_fabric.stores.postgres.transaction import Transaction

_GET = f"SELECT {COLUMNS} FROM a2a_fabric.agents WHERE agent_id = $1 AND NOT removed"  # noqa: S608
_LAST = f"SELECT {COLUMNS} FROM a2a_fabric.agents WHERE agent_id = $1"  # noqa: S608
_LAPSED_LATER = "SELECT count(*) FROM a2a_fabric.agents WHERE removed AND owner = $1 AND updated_at > $2"
_FORGET_INBOX = """
WITH topics AS (DELETE FROM a2a_fabric.subscriptions WHERE inbox = $1)
DELETE FROM a2a_fabric.inbox_entries WHERE inbox = $1
"""
_CHANGES = f"SELECT {COLUMNS} FROM a2a_fabric.agents WHERE revision > $1 ORDER BY revision LIMIT $2"  # noqa: S608
_LIST = f"SELECT {COLUMNS} FROM a2a_fabric.agents WHERE NOT removed AND agent_id > $1"  # noqa: S608
_REVISION = "SELECT coalesce(max(revision), 0) + 1 FROM a2a_fabric.agents"
_NAMES = (
    "agent_id", "revision", "owner", "registered_at", "updated_at", "seen_at", "lease_until", "node_id", "runtime",
    "transport", "endpoint_uri", "display_name", "description", "version", "trust_tier", "audience", "realm", "cog_id",
    "delegate_id", "manifest",
)  # fmt: skip
_PUT = f"""
INSERT INTO a2a_fabric.agents ({", ".join(_NAMES)})
VALUES ({", ".join(f"${at}" for at in range(1, len(_NAMES) + 1))})
ON CONFLICT (agent_id) DO UPDATE SET removed = false, {", ".join(f"{name} = excluded.{name}" for name in _NAMES[1:])}
"""  # noqa: S608
_RENEW = "UPDATE a2a_fabric.agents SET seen_at = $1, lease_until = $2 WHERE agent_id = $3"
_REMOVE = """
UPDATE a2a_fabric.agents SET removed = true, revision = $1, updated_at = $2, lease_until = NULL WHERE agent_id = $3
"""
_EXPIRED = """
SELECT agent_id FROM a2a_fabric.agents WHERE lease_until IS NOT NULL AND NOT removed
AND lease_until <= extract(epoch FROM clock_timestamp())::float8 ORDER BY lease_until LIMIT $1
"""
_FORGET_DETAILS = """
WITH tags AS (DELETE FROM a2a_fabric.agent_tags WHERE agent_id = $1)
DELETE FROM a2a_fabric.agent_capabilities WHERE agent_id = $1
"""
_CAPABILITY = ("text", "text", "text", "text", "bool", "text", "bytea", "bytea", "int8")
_PUT_DETAILS = f"""
WITH tags AS (
    INSERT INTO a2a_fabric.agent_tags (agent_id, tag) SELECT $1, * FROM unnest($2::text[])
)
INSERT INTO a2a_fabric.agent_capabilities SELECT * FROM unnest({arrays(_CAPABILITY, 3)}) ON CONFLICT DO NOTHING
"""  # noqa: S608
_HAS_CAPABILITY = "agent_id IN (SELECT agent_id FROM a2a_fabric.agent_capabilities WHERE folded = ${})"
_HAS_TAG = "agent_id IN (SELECT agent_id FROM a2a_fabric.agent_tags WHERE tag = ${})"


class PostgresRegistrations:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: Reservation | None = None
    ) -> Registration:
        async def work(tx: Transaction) -> Registration:
            revision = await _next_revision(tx)
            holder = await _holder(tx, manifest.agent_id)
            if holder is not None and is_reserved(holder, owner, reservation, tx.now):
                later: Any = await tx.one(_LAPSED_LATER, holder.owner, holder.lapsed_at)
                if reservation is not None and later[0] < reservation.names:
                    refuse_reserved(manifest.agent_id)
            made = registered(manifest, owner, holder, lease, revision, tx.now)
            if holder is not None and holder.owner != owner:
                await tx.change(_FORGET_INBOX, inbox_of(manifest.agent_id))
            await put(tx, made)
            return made

        return await self._connections.write(work)

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        async def work(tx: Transaction) -> Registration:
            known = await _known(tx, agent_id, " FOR UPDATE")
            alive = renewed(known, agent_id, owner, lease, tx.now)
            await tx.change(_RENEW, alive.seen_at, alive.lease_until, agent_id)
            return alive

        return await self._connections.write(work)

    async def remove(self, agent_id: str, owner: str) -> bool:
        async def work(tx: Transaction) -> bool:
            revision = await _next_revision(tx)
            known = await _known(tx, agent_id)
            if known is None:
                return False
            refuse_stranger(known, owner)
            await _remove(tx, agent_id, revision)
            return True

        return await self._connections.write(work)

    async def get(self, agent_id: str) -> Registration | None:
        row = await self._connections.read_one(_GET, agent_id)
        return None if row is None else registration_from(row)

    async def list(self, wish: AgentFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        conditions, values = _narrowed(wish)
        sql = " AND ".join([_LIST, *conditions]) + " ORDER BY agent_id LIMIT $2"
        return [registration_from(row) for row in await self._connections.read(sql, after, limit, *values)]

    async def changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        return [change_from(row) for row in await self._connections.read(_CHANGES, after, limit)]

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        if not await self._connections.read(_EXPIRED, 1):
            return []

        async def work(tx: Transaction) -> list[str]:
            revision = await _next_revision(tx)
            gone = [row[0] for row in await tx.all(_EXPIRED, limit)]
            for later, agent_id in enumerate(gone):
                await _remove(tx, agent_id, revision + later)
            return gone

        return await self._connections.write(work)


async def restore(tx: Transaction, row: Registration) -> bool:
    """As it is, but as the newest change; False if there is one already."""
    revision = await _next_revision(tx)
    if await _known(tx, row.agent_id) is not None:
        return False
    await put(tx, msgspec.structs.replace(row, revision=revision))
    return True


async def put(tx: Transaction, row: Registration) -> None:
    manifest, endpoint = row.manifest, row.manifest.endpoint
    await tx.change(
        _PUT, row.agent_id, row.revision, row.owner, row.registered_at, row.updated_at, row.seen_at, row.lease_until,
        manifest.node_id, manifest.runtime, _text(endpoint.get("transport")), _text(endpoint.get("uri")),
        manifest.display_name, manifest.description, manifest.version, manifest.trust_tier, manifest.audience,
        manifest.realm, manifest.cog_id, manifest.delegate_id, msgspec.json.encode(manifest),
    )  # fmt: skip
    await tx.change(_FORGET_DETAILS, row.agent_id)
    capabilities = {fold(each.name): capability_row(row.agent_id, each) for each in manifest.capabilities}
    tags = list(dict.fromkeys(manifest.tags))
    await tx.change(_PUT_DETAILS, row.agent_id, tags, *columns_of(list(capabilities.values()), len(_CAPABILITY)))
    tx.topics.add(AGENTS)


async def _remove(tx: Transaction, agent_id: str, revision: int) -> None:
    await tx.change(_REMOVE, revision, tx.now, agent_id)
    await tx.change(_FORGET_DETAILS, agent_id)
    tx.topics.add(AGENTS)


async def _holder(tx: Transaction, agent_id: str) -> Holder | None:
    row = await tx.one(_LAST, agent_id)
    return None if row is None else holder_from(row, tx.now)


async def _known(tx: Transaction, agent_id: str, locking: str = "") -> Registration | None:
    row = await tx.one(_GET + locking, agent_id)
    return None if row is None else registration_from(row)


async def _next_revision(tx: Transaction) -> int:
    """From here to the commit nobody else changes a registration."""
    await locks.lock(tx, locks.AGENTS)
    row: Any = await tx.one(_REVISION)
    return int(row[0])


def _narrowed(wish: AgentFilter) -> tuple[list[str], list[Any]]:
    """Conditions whose parameters begin at $3."""
    plain = ("owner", "runtime", "node_id", "trust_tier", "realm", "cog_id", "delegate_id")
    wanted = [(f"{name} = ${{}}", getattr(wish, name)) for name in plain]
    wanted.append((_HAS_TAG, wish.tag))
    wanted.append((_HAS_CAPABILITY, None if wish.capability is None else fold(wish.capability)))
    asked = [(condition, value) for condition, value in wanted if value is not None]
    return [condition.format(at) for at, (condition, _) in enumerate(asked, 3)], [value for _, value in asked]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
