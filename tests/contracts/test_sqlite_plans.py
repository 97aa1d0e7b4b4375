"""SQLite reads about as much as it tells, however many jobs and messages there are: on the event loop that matters."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from a2a_fabric.core.job import HoldRequest, JobFilter
from a2a_fabric.core.result import token
from a2a_fabric.stores.sqlite.connections import open_file
from a2a_fabric.stores.sqlite.store import SqliteSettings, SqliteStore
from tests.contracts.stores import claim_request, completed, new_job

MANY = 20_000
PAGE = 50
JOBS = 100
PAGE_BYTES = 4096 + 24  # with its head in the log
STEP = 100  # instructions of SQLite's machine; a row that is looked at takes several
# Ended jobs of several owners and agents.
FILL = """
WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
INSERT INTO jobs (job_id, owner, agent_id, capability, state, priority, run_at, attempt, fence, cancel_requested,
    created_at, updated_at, started_at, ended_at, events, size, version)
SELECT 'job_' || n, 'psk:' || (n % 5), 'agent-' || (n % 20), 'reason',
    CASE n % 9 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'completed' END, 2, n, 1, 1, 0, n, n, n, n, 0, 9, 5
FROM n
"""
LISTS = [
    JobFilter(),
    JobFilter(owner="psk:1"),
    JobFilter(agent_id="agent-3", states=("queued", "running")),
    JobFilter(states=("completed",)),
    JobFilter(owner="psk:1", states=("input_required", "failed")),
    JobFilter(owner="psk:1", agent_id="agent-1"),
    JobFilter(owner="psk:1", agent_id="agent-3"),  # each has thousands, and none of them together
    JobFilter(owner="psk:1", agent_id="agent-6", states=("failed", "running")),
]


class Filled:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.steps = 0

    def step(self) -> None:
        self.steps += STEP


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Filled]:
    """A store with many jobs, in which the work of its reads is counted."""
    settings = SqliteSettings(path=folder / "fabric.db")
    opened = open_file(settings)
    opened.writer.execute(FILL, (MANY,))
    made = Filled(SqliteStore(settings, opened, time.time))
    opened.reader.set_progress_handler(made.step, STEP)
    try:
        yield made
    finally:
        await made.store.aclose()


@pytest.mark.parametrize("wanted", LISTS, ids=str)
async def test_a_page_of_a_list_costs_the_same_however_many_jobs_there_are(tmp_path: Path, wanted: JobFilter) -> None:
    async with filled(tmp_path) as made:
        first = await made.store.jobs.list(wanted, limit=PAGE)
        second = await made.store.jobs.list(wanted, cursor=first.cursor or "5000", limit=PAGE)
        assert len(second.jobs) == (0 if wanted.agent_id == "agent-3" else PAGE)
    assert made.steps < MANY / 2  # a look at each job of the owner would be more than all of them


async def test_looking_for_work_costs_the_same_however_many_jobs_there_are(tmp_path: Path) -> None:
    async with filled(tmp_path) as made:
        assert await made.store.jobs.claim(claim_request()) == []
        assert await made.store.jobs.take_over(HoldRequest(worker="w", lease=60)) == []
        assert await made.store.jobs.count_waiting("psk:1", 100) == 0
    assert made.steps < MANY / 20


async def test_a_job_that_begins_at_once_writes_few_pages(tmp_path: Path) -> None:
    """Each page that a transaction touches is written whole, so indexes that a job need not touch cost the most."""
    path = tmp_path / "fabric.db"
    settings = SqliteSettings(path=path)
    store = SqliteStore(settings, open_file(settings), time.time)
    hold = HoldRequest(worker="w", lease=60)
    before = path.with_name("fabric.db-wal").stat().st_size
    try:
        for _ in range(JOBS):
            accepted = await store.jobs.accept(new_job(hold=hold, events=(token("queued"),)))
            await store.jobs.release(accepted.job.fencing_token, completed("42", "the end"))
        written = path.with_name("fabric.db-wal").stat().st_size - before
    finally:
        await store.aclose()
    assert written / PAGE_BYTES / JOBS < 16
