"""The history of every agent's health over PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_fabric.core.registration import HealthCheck
from a2a_fabric.stores.postgres.arrays import arrays, columns_of
from a2a_fabric.stores.postgres.connections import Connections
from a2a_fabric.stores.postgres.transaction import Row, Transaction

COLUMNS = "agent_id, checked_at, node_id, status, latency, error"
_TYPES = ("text", "float8", "text", "text", "float8", "text")
_NOTE = f"""
INSERT INTO a2a_fabric.health_checks ({COLUMNS}) SELECT * FROM unnest({arrays(_TYPES)})
ON CONFLICT DO NOTHING RETURNING 1
"""  # noqa: S608
_HISTORY = f"""
SELECT {COLUMNS} FROM a2a_fabric.health_checks
WHERE agent_id = $1 AND checked_at >= $2 AND checked_at < $3 ORDER BY checked_at DESC, node_id DESC LIMIT $4
"""  # noqa: S608
_FORGET = """
WITH gone AS (DELETE FROM a2a_fabric.health_checks WHERE checked_at < $1 RETURNING 1) SELECT count(*) FROM gone
"""


class PostgresHealthLog:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def note(self, checks: Sequence[HealthCheck]) -> None:
        if checks:
            await self._connections.write(lambda tx: note(tx, checks))

    async def history(
        self, agent_id: str, *, since: float = 0.0, until: float | None = None, limit: int = 100
    ) -> Sequence[HealthCheck]:
        end = 1e300 if until is None else until
        return [check_from(row) for row in await self._connections.read(_HISTORY, agent_id, since, end, limit)]

    async def forget(self, before: float) -> int:
        [(count,)] = await self._connections.write(lambda tx: tx.change(_FORGET, before))
        return int(count)


async def note(tx: Transaction, checks: Sequence[HealthCheck]) -> int:
    """How many were new."""
    rows = [(each.agent_id, each.checked_at, each.node_id, each.status, each.latency, each.error) for each in checks]
    return len(await tx.change(_NOTE, *columns_of(rows, len(_TYPES))))


def check_from(row: Row) -> HealthCheck:
    agent_id, checked_at, node_id, status, latency, error = row
    return HealthCheck(
        agent_id=agent_id, checked_at=checked_at, node_id=node_id, status=status, latency=latency, error=error
    )
