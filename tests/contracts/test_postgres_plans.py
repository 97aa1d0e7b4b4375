"""PostgreSQL reads by the right index, whatever its planner believes of the tables: it may have seen them empty."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from a2a_fabric.core.job import HoldRequest, JobFilter
from a2a_fabric.core.stores import Store
from a2a_fabric.stores.postgres.store import PostgresSettings, PostgresStore
from tests.contracts.stores import claim_request, until
from tests.fixtures.pooler import Pooler
from tests.fixtures.postgres import shared

MANY = 20_000
PAGE = 50
# Ended jobs of several owners and agents.
FILL = """
INSERT INTO a2a_fabric.jobs (job_id, owner, agent_id, capability, state, priority, run_at, attempt, fence,
    cancel_requested, created_at, updated_at, started_at, ended_at, events, size, version)
SELECT 'job_' || n, 'psk:' || n % 5, 'agent-' || n % 20, 'reason',
    CASE n % 9 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'completed' END, 2, n, 1, 1, false, n, n, n, n, 0, 9, 5
FROM generate_series($1::int8, $2::int8) AS n
"""
LISTS = (
    JobFilter(),
    JobFilter(owner="psk:1"),
    JobFilter(owner="psk:nobody"),
    JobFilter(agent_id="agent-3"),
    JobFilter(agent_id="agent-nobody"),
    JobFilter(states=("completed",)),
    JobFilter(states=("running", "failed")),
    JobFilter(owner="psk:1", states=("input_required", "failed")),
    JobFilter(owner="psk:1", agent_id="agent-1"),
    JobFilter(owner="psk:1", agent_id="agent-3"),  # each has thousands, and none of them together
    JobFilter(owner="psk:1", agent_id="agent-6", states=("failed", "running")),
)
READ = """
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = 'a2a_fabric')
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'a2a_fabric')
"""
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@asynccontextmanager
async def opened(address: str, *, is_pooled: bool) -> AsyncIterator[Store]:
    """One connection, so that each query is planned once and that plan is kept."""
    async with Pooler(address) as pooler:
        settings = PostgresSettings(address=pooler.address if is_pooled else address, connections=1)
        store = await PostgresStore.open(settings)
        try:
            yield store
        finally:
            await store.aclose()


async def ask_everything(store: Store) -> None:
    for each in LISTS:
        first = await store.jobs.list(each, limit=PAGE)
        await store.jobs.list(each, cursor=first.cursor or "5000", limit=PAGE)
    for owner in ("psk:1", "psk:nobody"):
        assert await store.jobs.count_waiting(owner, 100) == 0
    assert await store.jobs.claim(claim_request(limit=9, default_limit=2)) == []
    assert await store.jobs.take_over(HoldRequest(worker="w", lease=60)) == []
    await store.jobs.get("job_77")


@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("statistics", ["none", "of the empty table", "of one job", "of all"])
async def test_what_is_asked_reads_about_what_it_tells_however_many_jobs_there_are(
    statistics: str, is_pooled: bool
) -> None:
    address = shared().database()
    operator: Any = await asyncpg.connect(address)
    try:
        async with opened(address, is_pooled=is_pooled) as store:
            if statistics == "of one job":
                await operator.execute(FILL, 1, 1)
            if statistics != "none":
                await operator.execute("VACUUM ANALYZE a2a_fabric.jobs")
            await ask_everything(store)  # these plans are kept
            await operator.execute(FILL, 2, MANY)
            if statistics == "of all":
                await operator.execute("ANALYZE a2a_fabric.jobs")
            await operator.execute("SELECT pg_stat_reset()")
            await ask_everything(store)
        await until(lambda: _is_alone(operator))  # a session that has ended has also reported what it read
        read = await operator.fetchval(READ)
        assert 0 < read < MANY / 8
    finally:
        await operator.close()


async def _is_alone(operator: Any) -> bool:
    alone: bool = await operator.fetchval(OTHERS) == 0
    return alone
