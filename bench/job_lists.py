"""The time to read a page of a long list of jobs: the first page, and one near the end."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time

import asyncpg

from a2a_fabric.core.job import JobFilter
from a2a_fabric.core.stores import Store
from bench.job_rates import open_store
from bench.job_stores import ENGINES, BenchStores

OWNERS = 5
PAGE = 100
FAR = 1000
TIMES = 40
_COLUMNS = (
    "job_id, owner, agent_id, capability, state, priority, run_at, attempt, fence, cancel_requested, created_at, "
    "updated_at, started_at, ended_at, events, size, version"
)
_STATES = "CASE n % 20 WHEN 0 THEN 'queued' WHEN 1 THEN 'failed' WHEN 2 THEN 'cancelled' ELSE 'completed' END"
_ENDED = "CASE n % 20 WHEN 0 THEN NULL ELSE n END"
_SQLITE = f"""
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO jobs ({_COLUMNS})
SELECT printf('job_%032x', n), 'psk:' || (n % {OWNERS}), 'agent-' || (n % 20), 'reason', {_STATES}, 2, n, 1, 1, 0, n,
       n, n, {_ENDED}, 4, 500, 5 FROM numbers
"""
_POSTGRES = f"""
INSERT INTO a2a_fabric.jobs ({_COLUMNS})
SELECT 'job_' || lpad(to_hex(n), 32, '0'), 'psk:' || (n % {OWNERS}), 'agent-' || (n % 20), 'reason', {_STATES}, 2, n, 1,
       1, false, n, n, n, {_ENDED}, 4, 500, 5 FROM generate_series(1, $1::int8) AS n
"""


async def run(stores: BenchStores, *, jobs: int) -> None:
    print(f"\n| a page of {PAGE} among {jobs:,} jobs | page 1, ms | page {FAR:,}, ms |")
    print("|---|---|---|")
    for engine in ENGINES:
        address = stores.create_store(engine)
        async with open_store(address):
            pass  # it has its tables now
        await _fill_store(address, jobs)
        async with open_store(address) as store:
            for name, query in (("all", JobFilter()), ("one owner's", JobFilter(owner="psk:1"))):
                first, far = await _measure(store, query)
                print(f"| {engine}, {name} | {first:.2f} | {far:.2f} |")


async def _fill_store(address: str, jobs: int) -> None:
    """Insert the rows that the store would write, in one statement."""
    if address.startswith("sqlite:"):
        await asyncio.to_thread(_fill_file, address.removeprefix("sqlite:"), jobs)
        return
    connection = await asyncpg.connect(address)
    try:
        await connection.execute(_POSTGRES, jobs, timeout=1800)
        await connection.execute("ANALYZE a2a_fabric.jobs", timeout=600)
    finally:
        await connection.close()


def _fill_file(path: str, jobs: int) -> None:
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA cache_size = -400000")
        connection.execute(_SQLITE, (jobs,))
        connection.commit()
    finally:
        connection.close()


async def _measure(store: Store, query: JobFilter) -> tuple[float, float]:
    """Milliseconds for the first page, and for a page near the end, read with its cursor."""
    cursor = None
    for _ in range(FAR - 1):
        page = await store.jobs.list(query, cursor=cursor, limit=PAGE)
        if page.cursor is None:
            break
        cursor = page.cursor
    return await _page(store, query, None), await _page(store, query, cursor)


async def _page(store: Store, query: JobFilter, cursor: str | None) -> float:
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        page = await store.jobs.list(query, cursor=cursor, limit=PAGE)
        times.append(time.perf_counter() - began)
        if not page.jobs:
            raise SystemExit("an empty page")
    return statistics.median(times) * 1000
