"""Registrations, descriptions and health history over PostgreSQL.

Every change takes the next revision under one lock, which is held until the commit,
so every node sees revisions in order and misses none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.message import inbox_name
from a2a_fabric.core.registration import (
    AgentChange,
    HealthCheck,
    IdReservation,
    Registration,
    RegistrationFilter,
    StoredDescription,
    check_owner,
    has_new_inbox,
    is_reserved,
    make_registration,
    raise_reserved,
    renew_registration,
)
from a2a_fabric.core.stores import AGENTS_TOPIC
from a2a_fabric.stores.postgres import transactions
from a2a_fabric.stores.postgres.connections import PostgresConnections
from a2a_fabric.stores.postgres.transactions import PostgresTransaction, to_columns, unnest_parameters
from a2a_fabric.stores.rows import (
    AGENT_COLUMNS,
    DESCRIPTION_COLUMNS,
    DESCRIPTIONS_BYTES,
    HEALTH_COLUMNS,
    PUT_COLUMNS,
    build_conditions,
    change_from_row,
    description_from_row,
    health_check_from_row,
    holder_from_row,
    registration_from_row,
    to_agent_values,
    to_capability_rows,
    to_description_values,
    to_health_values,
)

_GET = f"SELECT {AGENT_COLUMNS} FROM a2a_fabric.agents WHERE agent_id = $1 AND NOT removed"  # noqa: S608
_LAST = f"SELECT {AGENT_COLUMNS} FROM a2a_fabric.agents WHERE agent_id = $1"  # noqa: S608
_LAPSED_LATER = "SELECT count(*) FROM a2a_fabric.agents WHERE removed AND owner = $1 AND updated_at > $2"
_CLEAR_INBOX = """
WITH topics AS (DELETE FROM a2a_fabric.subscriptions WHERE inbox = $1)
DELETE FROM a2a_fabric.inbox_entries WHERE inbox = $1
"""
_CHANGES = f"SELECT {AGENT_COLUMNS} FROM a2a_fabric.agents WHERE revision > $1 ORDER BY revision LIMIT $2"  # noqa: S608
_LIST = f"SELECT {AGENT_COLUMNS} FROM a2a_fabric.agents WHERE NOT removed AND agent_id > $1"  # noqa: S608
_REVISION = "SELECT coalesce(max(revision), 0) + 1 FROM a2a_fabric.agents"
_ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in PUT_COLUMNS[1:])
_PUT = f"""
INSERT INTO a2a_fabric.agents ({", ".join(PUT_COLUMNS)})
VALUES ({", ".join(f"${number}" for number in range(1, len(PUT_COLUMNS) + 1))})
ON CONFLICT (agent_id) DO UPDATE SET removed = false, {_ASSIGNMENTS}
"""  # noqa: S608
_RENEW = "UPDATE a2a_fabric.agents SET seen_at = $1, lease_until = $2 WHERE agent_id = $3"
_REMOVE = """
UPDATE a2a_fabric.agents SET removed = true, revision = $1, updated_at = $2, lease_until = NULL WHERE agent_id = $3
"""
_EXPIRED = """
SELECT agent_id FROM a2a_fabric.agents WHERE lease_until IS NOT NULL AND NOT removed
AND lease_until <= extract(epoch FROM clock_timestamp())::float8 ORDER BY lease_until LIMIT $1
"""
_DELETE_DETAILS = """
WITH tags AS (DELETE FROM a2a_fabric.agent_tags WHERE agent_id = $1)
DELETE FROM a2a_fabric.agent_capabilities WHERE agent_id = $1
"""
_CAPABILITY_TYPES = ("text", "text", "text", "text", "bool", "text", "bytea", "bytea", "int8")
_PUT_DETAILS = f"""
WITH tags AS (
    INSERT INTO a2a_fabric.agent_tags (agent_id, tag) SELECT $1, * FROM unnest($2::text[])
)
INSERT INTO a2a_fabric.agent_capabilities
SELECT * FROM unnest({unnest_parameters(_CAPABILITY_TYPES, 3)}) ON CONFLICT DO NOTHING
"""  # noqa: S608


class PostgresRegistrations:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: IdReservation | None = None
    ) -> Registration:
        async def work(tx: PostgresTransaction) -> Registration:
            revision = await _take_revision(tx)
            row = await tx.fetch_one(_LAST, manifest.agent_id)
            holder = None if row is None else holder_from_row(row, tx.now)
            if holder is not None and is_reserved(holder, owner, reservation, tx.now):
                lapsed_later: Any = await tx.fetch_one(_LAPSED_LATER, holder.owner, holder.lapsed_at)
                if reservation is not None and lapsed_later[0] < reservation.names:
                    raise_reserved(manifest.agent_id)
            registration = make_registration(manifest, owner, holder, lease, revision, tx.now)
            if has_new_inbox(manifest.agent_id, holder, owner, reservation):
                await tx.write(_CLEAR_INBOX, inbox_name(manifest.agent_id))
            await put_registration(tx, registration)
            return registration

        return await self._connections.write(work)

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        async def work(tx: PostgresTransaction) -> Registration:
            existing = await _find_registration(tx, agent_id, " FOR UPDATE")
            registration = renew_registration(existing, agent_id, owner, lease, tx.now)
            await tx.write(_RENEW, registration.seen_at, registration.lease_until, agent_id)
            return registration

        return await self._connections.write(work)

    async def remove(self, agent_id: str, owner: str) -> bool:
        async def work(tx: PostgresTransaction) -> bool:
            revision = await _take_revision(tx)
            existing = await _find_registration(tx, agent_id)
            if existing is None:
                return False
            check_owner(existing, owner)
            await _remove_agent(tx, agent_id, revision)
            return True

        return await self._connections.write(work)

    async def get(self, agent_id: str) -> Registration | None:
        row = await self._connections.read_one(_GET, agent_id)
        return None if row is None else registration_from_row(row)

    async def list(self, query: RegistrationFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        conditions, values = build_conditions(query, "a2a_fabric.", lambda index: f"${index + 3}")
        sql = " AND ".join([_LIST, *conditions]) + " ORDER BY agent_id LIMIT $2"
        return [registration_from_row(row) for row in await self._connections.read(sql, after, limit, *values)]

    async def read_changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        return [change_from_row(row) for row in await self._connections.read(_CHANGES, after, limit)]

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        if not await self._connections.read(_EXPIRED, 1):
            return []

        async def work(tx: PostgresTransaction) -> list[str]:
            revision = await _take_revision(tx)
            expired = [row[0] for row in await tx.fetch_all(_EXPIRED, limit)]
            for offset, agent_id in enumerate(expired):
                await _remove_agent(tx, agent_id, revision + offset)
            return expired

        return await self._connections.write(work)


async def restore_registration(tx: PostgresTransaction, row: Registration) -> bool:
    """Write an exported registration as the newest change; False if the agent is registered."""
    revision = await _take_revision(tx)
    if await _find_registration(tx, row.agent_id) is not None:
        return False
    await put_registration(tx, msgspec.structs.replace(row, revision=revision))
    return True


async def put_registration(tx: PostgresTransaction, row: Registration) -> None:
    await tx.write(_PUT, *to_agent_values(row))
    await tx.write(_DELETE_DETAILS, row.agent_id)
    tags = list(dict.fromkeys(row.manifest.tags))
    capabilities = to_columns(to_capability_rows(row.agent_id, row.manifest.capabilities), len(_CAPABILITY_TYPES))
    await tx.write(_PUT_DETAILS, row.agent_id, tags, *capabilities)
    tx.topics.add(AGENTS_TOPIC)


async def _remove_agent(tx: PostgresTransaction, agent_id: str, revision: int) -> None:
    await tx.write(_REMOVE, revision, tx.now, agent_id)
    await tx.write(_DELETE_DETAILS, agent_id)
    tx.topics.add(AGENTS_TOPIC)


async def _find_registration(tx: PostgresTransaction, agent_id: str, lock_clause: str = "") -> Registration | None:
    row = await tx.fetch_one(_GET + lock_clause, agent_id)
    return None if row is None else registration_from_row(row)


async def _take_revision(tx: PostgresTransaction) -> int:
    """The next revision. From here to the commit, no other node changes a registration."""
    await transactions.acquire_lock(tx, transactions.AGENTS_LOCK)
    row: Any = await tx.fetch_one(_REVISION)
    return int(row[0])


_HEALTH_TYPES = ("text", "float8", "text", "text", "float8", "text")
_INSERT_CHECKS = f"""
INSERT INTO a2a_fabric.health_checks ({HEALTH_COLUMNS}) SELECT * FROM unnest({unnest_parameters(_HEALTH_TYPES)})
ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608
_HEALTH_HISTORY = f"""
SELECT {HEALTH_COLUMNS} FROM a2a_fabric.health_checks
WHERE agent_id = $1 AND checked_at >= $2 AND checked_at < $3 ORDER BY checked_at DESC, node_id DESC LIMIT $4
"""  # noqa: S608
_DELETE_CHECKS = """
WITH gone AS (DELETE FROM a2a_fabric.health_checks WHERE checked_at < $1 RETURNING 1) SELECT count(*) FROM gone
"""


class PostgresHealthLog:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def append(self, checks: Sequence[HealthCheck]) -> None:
        if checks:
            await self._connections.write(lambda tx: insert_checks(tx, checks))

    async def read(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        end = 1e300 if until is None else until
        rows = await self._connections.read(_HEALTH_HISTORY, agent_id, since, end, limit)
        return [health_check_from_row(row) for row in rows]

    async def prune(self, before: float) -> int:
        [(count,)] = await self._connections.write(lambda tx: tx.write(_DELETE_CHECKS, before))
        return int(count)


async def insert_checks(tx: PostgresTransaction, checks: Sequence[HealthCheck]) -> int:
    """How many were new."""
    columns = to_columns([to_health_values(each) for each in checks], len(_HEALTH_TYPES))
    return len(await tx.write(_INSERT_CHECKS, *columns))


_DESCRIPTION_TYPES = ("text", "text", "bytea", "float8")
# As many as fit into DESCRIPTIONS_BYTES, at least one.
_DESCRIPTIONS = f"""
SELECT {DESCRIPTION_COLUMNS} FROM (
    SELECT {DESCRIPTION_COLUMNS}, row_number() OVER ordered AS place, sum(octet_length(body)) OVER ordered AS bytes
    FROM a2a_fabric.agent_descriptions WHERE (agent_id, connection) > ($1, $2)
    WINDOW ordered AS (ORDER BY agent_id, connection) ORDER BY agent_id, connection LIMIT $3
) AS page WHERE bytes <= {DESCRIPTIONS_BYTES} OR place = 1 ORDER BY agent_id, connection
"""  # noqa: S608
_INSERT_DESCRIPTIONS = f"""
INSERT INTO a2a_fabric.agent_descriptions ({DESCRIPTION_COLUMNS})
SELECT * FROM unnest({unnest_parameters(_DESCRIPTION_TYPES)})
"""  # noqa: S608
_REPLACE = "ON CONFLICT (agent_id, connection) DO UPDATE SET body = excluded.body, seen_at = excluded.seen_at"
_DELETE_DESCRIPTIONS = """
WITH gone AS (DELETE FROM a2a_fabric.agent_descriptions WHERE seen_at < $1 RETURNING 1) SELECT count(*) FROM gone
"""


class PostgresDescriptions:
    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

    async def read(self, *, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[StoredDescription]:
        return [description_from_row(row) for row in await self._connections.read(_DESCRIPTIONS, *after, limit)]

    async def put(self, descriptions: Sequence[StoredDescription]) -> None:
        # Sorted, so that two nodes that write the same rows wait for each other in the same order.
        latest = {(each.agent_id, each.connection): each for each in descriptions}
        rows = [to_description_values(latest[key]) for key in sorted(latest)]
        if rows:
            columns = to_columns(rows, len(_DESCRIPTION_TYPES))
            await self._connections.write(lambda tx: tx.write(f"{_INSERT_DESCRIPTIONS} {_REPLACE}", *columns))

    async def prune(self, before: float) -> int:
        [(count,)] = await self._connections.write(lambda tx: tx.write(_DELETE_DESCRIPTIONS, before))
        return int(count)


async def restore_descriptions(tx: PostgresTransaction, descriptions: Sequence[StoredDescription]) -> int:
    """How many were new."""
    columns = to_columns([to_description_values(each) for each in descriptions], len(_DESCRIPTION_TYPES))
    return len(await tx.write(f"{_INSERT_DESCRIPTIONS} ON CONFLICT DO NOTHING RETURNING 1", *columns))
