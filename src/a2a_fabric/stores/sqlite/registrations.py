"""Registrations, descriptions and health history over SQLite.

Every change takes the next revision inside its transaction, and write transactions
never overlap, so readers see revisions in order and miss none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from a2a_fabric.stores.sqlite.database import SqliteReader, SqliteTransaction, Writer

_GET = f"SELECT {AGENT_COLUMNS} FROM agents WHERE agent_id = ? AND removed = 0"  # noqa: S608
_LAST = f"SELECT {AGENT_COLUMNS} FROM agents WHERE agent_id = ?"  # noqa: S608
_LAPSED_LATER = "SELECT count(*) FROM agents WHERE removed = 1 AND owner = ? AND updated_at > ?"
_CHANGES = f"SELECT {AGENT_COLUMNS} FROM agents WHERE revision > ? ORDER BY revision LIMIT ?"  # noqa: S608
_LIST = f"SELECT {AGENT_COLUMNS} FROM agents WHERE removed = 0 AND agent_id > ?"  # noqa: S608
_REVISION = "SELECT coalesce(max(revision), 0) + 1 FROM agents"
_PUT = f"""
INSERT OR REPLACE INTO agents (removed, {", ".join(PUT_COLUMNS)}) VALUES (0, {", ".join("?" * len(PUT_COLUMNS))})
"""  # noqa: S608
_RENEW = "UPDATE agents SET seen_at = ?, lease_until = ? WHERE agent_id = ?"
_REMOVE = "UPDATE agents SET removed = 1, revision = ?, updated_at = ?, lease_until = NULL WHERE agent_id = ?"
_EXPIRED = """
SELECT agent_id FROM agents WHERE lease_until IS NOT NULL AND removed = 0 AND lease_until <= ?
ORDER BY lease_until LIMIT ?
"""
_PUT_CAPABILITY = "INSERT OR REPLACE INTO agent_capabilities VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteRegistrations:
    def __init__(self, writer: Writer, reader: SqliteReader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def register(
        self, manifest: Manifest, owner: str, lease: float | None = None, reservation: IdReservation | None = None
    ) -> Registration:
        def work(tx: SqliteTransaction) -> Registration:
            row = tx.execute(_LAST, (manifest.agent_id,)).fetchone()
            holder = None if row is None else holder_from_row(row, tx.now)
            if holder is not None and is_reserved(holder, owner, reservation, tx.now):
                lapsed_later = tx.execute(_LAPSED_LATER, (holder.owner, holder.lapsed_at)).fetchone()[0]
                if reservation is not None and lapsed_later < reservation.names:
                    raise_reserved(manifest.agent_id)
            registration = make_registration(manifest, owner, holder, lease, _read_next_revision(tx), tx.now)
            if has_new_inbox(manifest.agent_id, holder, owner, reservation):
                for table in ("inbox_entries", "subscriptions"):
                    tx.execute(f"DELETE FROM {table} WHERE inbox = ?", (inbox_name(manifest.agent_id),))  # noqa: S608
            put_registration(tx, registration)
            return registration

        return await self._writer.run(work)

    async def renew(self, agent_id: str, owner: str, lease: float | None = None) -> Registration:
        def work(tx: SqliteTransaction) -> Registration:
            registration = renew_registration(_find_registration(tx, agent_id), agent_id, owner, lease, tx.now)
            tx.execute(_RENEW, (registration.seen_at, registration.lease_until, agent_id))
            return registration

        return await self._writer.run(work)

    async def remove(self, agent_id: str, owner: str) -> bool:
        def work(tx: SqliteTransaction) -> bool:
            existing = _find_registration(tx, agent_id)
            if existing is None:
                return False
            check_owner(existing, owner)
            _remove_agent(tx, agent_id)
            return True

        return await self._writer.run(work)

    async def get(self, agent_id: str) -> Registration | None:
        row = self._reader.fetch_one(_GET, (agent_id,))
        return None if row is None else registration_from_row(row)

    async def list(self, query: RegistrationFilter, *, after: str = "", limit: int = 1000) -> Sequence[Registration]:
        conditions, values = build_conditions(query, "", lambda _: "?")
        sql = " AND ".join([_LIST, *conditions]) + " ORDER BY agent_id LIMIT ?"
        return [registration_from_row(row) for row in self._reader.fetch_all(sql, (after, *values, limit))]

    async def read_changes(self, after: int, limit: int = 1000) -> Sequence[AgentChange]:
        return [change_from_row(row) for row in self._reader.fetch_all(_CHANGES, (after, limit))]

    async def expire(self, limit: int = 1000) -> Sequence[str]:
        if not self._reader.fetch_one(_EXPIRED, (self._clock(), 1)):
            return []

        def work(tx: SqliteTransaction) -> list[str]:
            expired = [agent_id for (agent_id,) in tx.execute(_EXPIRED, (tx.now, limit)).fetchall()]
            for agent_id in expired:
                _remove_agent(tx, agent_id)
            return expired

        return await self._writer.run(work)


def restore_registration(tx: SqliteTransaction, row: Registration) -> bool:
    """Write an exported registration as the newest change; False if the agent is registered."""
    if _find_registration(tx, row.agent_id) is not None:
        return False
    put_registration(tx, msgspec.structs.replace(row, revision=_read_next_revision(tx)))
    return True


def put_registration(tx: SqliteTransaction, row: Registration) -> None:
    tx.execute(_PUT, to_agent_values(row))
    _delete_details(tx, row.agent_id)
    tx.executemany(_PUT_CAPABILITY, to_capability_rows(row.agent_id, row.manifest.capabilities))
    tags = [(tag, row.agent_id) for tag in dict.fromkeys(row.manifest.tags)]
    tx.executemany("INSERT INTO agent_tags (tag, agent_id) VALUES (?, ?)", tags)
    tx.topics.add(AGENTS_TOPIC)


def _remove_agent(tx: SqliteTransaction, agent_id: str) -> None:
    tx.execute(_REMOVE, (_read_next_revision(tx), tx.now, agent_id))
    _delete_details(tx, agent_id)
    tx.topics.add(AGENTS_TOPIC)


def _delete_details(tx: SqliteTransaction, agent_id: str) -> None:
    tx.execute("DELETE FROM agent_capabilities WHERE agent_id = ?", (agent_id,))
    tx.execute("DELETE FROM agent_tags WHERE agent_id = ?", (agent_id,))


def _find_registration(tx: SqliteTransaction, agent_id: str) -> Registration | None:
    row = tx.execute(_GET, (agent_id,)).fetchone()
    return None if row is None else registration_from_row(row)


def _read_next_revision(tx: SqliteTransaction) -> int:
    return int(tx.execute(_REVISION).fetchone()[0])


_INSERT_CHECK = "INSERT OR IGNORE INTO health_checks VALUES (?, ?, ?, ?, ?, ?)"
_HEALTH_HISTORY = f"""
SELECT {HEALTH_COLUMNS} FROM health_checks
WHERE agent_id = ? AND checked_at >= ? AND checked_at < ? ORDER BY checked_at DESC, node_id DESC LIMIT ?
"""  # noqa: S608


class SqliteHealthLog:
    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, checks: Sequence[HealthCheck]) -> None:
        await self._writer.run(lambda tx: [insert_check(tx, check) for check in checks])

    async def read(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        end = 1e300 if until is None else until
        rows = self._reader.fetch_all(_HEALTH_HISTORY, (agent_id, since, end, limit))
        return [health_check_from_row(row) for row in rows]

    async def prune(self, before: float) -> int:
        return await self._writer.run(
            lambda tx: tx.execute("DELETE FROM health_checks WHERE checked_at < ?", (before,)).rowcount
        )


def insert_check(tx: SqliteTransaction, check: HealthCheck) -> bool:
    return tx.execute(_INSERT_CHECK, to_health_values(check)).rowcount > 0


_DESCRIPTIONS = f"""
SELECT {DESCRIPTION_COLUMNS} FROM agent_descriptions WHERE (agent_id, connection) > (?, ?)
ORDER BY agent_id, connection LIMIT ?
"""  # noqa: S608


class SqliteDescriptions:
    def __init__(self, writer: Writer, reader: SqliteReader) -> None:
        self._writer = writer
        self._reader = reader

    async def read(self, *, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[StoredDescription]:
        page: list[StoredDescription] = []
        size = 0
        with self._reader.iterate_rows(_DESCRIPTIONS, (*after, limit)) as rows:
            for row in rows:
                size += len(row[2])
                if page and size > DESCRIPTIONS_BYTES:
                    break
                page.append(description_from_row(row))
        return page

    async def put(self, descriptions: Sequence[StoredDescription]) -> None:
        await self._writer.run(lambda tx: [put_description(tx, each) for each in descriptions])

    async def prune(self, before: float) -> int:
        return await self._writer.run(
            lambda tx: tx.execute("DELETE FROM agent_descriptions WHERE seen_at < ?", (before,)).rowcount
        )


def put_description(tx: SqliteTransaction, description: StoredDescription, on_conflict: str = "REPLACE") -> bool:
    sql = f"INSERT OR {on_conflict} INTO agent_descriptions ({DESCRIPTION_COLUMNS}) VALUES (?, ?, ?, ?)"  # noqa: S608
    return tx.execute(sql, to_description_values(description)).rowcount > 0
