"""A SQLite file that is broken, foreign, newer, locked, read-only or full: a clear word, and no data touched."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from a2a_fabric.core.errors import (
    BadInput,
    SchemaChanged,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from a2a_fabric.core.job import HoldRequest, JobFilter, RetentionPolicy
from a2a_fabric.core.stores import job_topic
from a2a_fabric.core.tasks import TopicSignals
from a2a_fabric.stores.sqlite.database import Row, SqliteReader, Values
from a2a_fabric.stores.sqlite.store import SqliteChangePoller, SqliteSettings, SqliteStore, build
from tests.contracts.stores import begun, claim_request, completed, new_job, tokens

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fabric.db"


async def make(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    await store.jobs.accept(new_job())
    await store.aclose()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def damage(path: Path) -> None:
    """Everything after the third page."""
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = b"\x5a" * (len(content) - 4096 * 3)
    path.write_bytes(content)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_newer_schema_is_left_alone(path: Path) -> None:
    await make(path)
    change(path, "INSERT INTO schema_migrations VALUES (99, '0099_future', 'x', 0)")
    before = digest(path)
    with pytest.raises(SchemaTooNew, match=r"has schema 99, and this program knows up to \d"):
        await build(f"sqlite:{path}")
    assert digest(path) == before


async def test_a_migration_with_another_text_is_noticed(path: Path) -> None:
    await make(path)
    change(path, "UPDATE schema_migrations SET checksum = 'other' WHERE number = 1")
    before = digest(path)
    with pytest.raises(SchemaChanged, match="0001_jobs"):
        await build(f"sqlite:{path}")
    assert digest(path) == before


@pytest.mark.parametrize("content", [b"not a database at all" * 500, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_what_is_no_database_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="left as it is"):
        asyncio.run(build(f"sqlite:{path}"))
    assert path.read_bytes() == content


async def test_a_damaged_file_is_named(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    await asyncio.gather(*(store.jobs.accept(new_job(task="x" * 3000)) for _ in range(200)))
    await store.aclose()
    damage(path)
    with pytest.raises(StoreCorrupt, match=str(path)):
        await _use(path)


async def _use(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    try:
        await store.jobs.accept(new_job())
        await store.jobs.list(JobFilter(owner="psk:alice"))
    finally:
        await store.aclose()


async def test_another_programs_database_is_left_alone(path: Path) -> None:
    change(path, "CREATE TABLE precious (x)", "INSERT INTO precious VALUES (1)")
    before = digest(path)
    with pytest.raises(StoreUnusable, match=r"another program's database.*precious"):
        await build(f"sqlite:{path}")
    assert digest(path) == before


async def test_a_new_file_is_for_its_owner_alone_and_an_old_one_stays_as_it_is(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    await store.jobs.accept(new_job())
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(("fabric.db", "fabric.db-wal", "fabric.db-shm"), 0o600)
    await store.aclose()
    os.chmod(path, 0o640)
    await make(path)
    assert os.stat(path).st_mode & 0o777 == 0o640


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="its folder must exist"):
        await build(f"sqlite:{tmp_path}/nowhere/fabric.db")
    with pytest.raises(StoreUnusable):
        await build(f"sqlite:{tmp_path}")


async def test_a_file_locked_by_another_program_is_waited_for_and_then_named(path: Path) -> None:
    await make(path)
    settings = SqliteSettings(path=path, lock_timeout=0.2)
    store = await SqliteStore.open(settings)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="locked by another program"):
            await store.jobs.accept(new_job())
        assert len((await store.jobs.list(JobFilter())).jobs) == 1  # reading goes on
        other.execute("ROLLBACK")
    await store.jobs.accept(new_job())
    assert len((await store.jobs.list(JobFilter())).jobs) == 2
    await store.aclose()


async def test_where_nothing_waits_looking_for_work_takes_no_lock(path: Path) -> None:
    store = await SqliteStore.open(SqliteSettings(path=path, lock_timeout=0.2))
    await begun(store)
    with pytest.raises(BadInput):
        await store.jobs.accept(new_job(priority=9))
    left = asyncio.ensure_future(store.jobs.accept(new_job(run_at=9e9)))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    with closing(sqlite3.connect(path, isolation_level=None, timeout=20.0)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await store.jobs.claim(claim_request()) == []
        assert await store.jobs.take_over(HoldRequest(worker="w", lease=60.0)) == []
        other.execute("ROLLBACK")
    await store.aclose()


async def test_a_new_file_that_is_locked_cannot_be_opened(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy):
            await SqliteStore.open(SqliteSettings(path=path, lock_timeout=0.2))


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
async def test_a_file_that_is_taken_away_takes_no_more_jobs_until_it_is_put_back(path: Path, is_replaced: bool) -> None:
    store = await build(f"sqlite:{path}")
    await store.jobs.accept(new_job())
    away = path.with_name("away.db")
    os.rename(path, away)
    if is_replaced:
        shutil.copy(away, path)
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=r"fabric.db was removed or replaced .* restart the node"):
            await store.jobs.accept(new_job())
    os.replace(away, path)
    await store.jobs.accept(new_job())
    assert len((await store.jobs.list(JobFilter())).jobs) == 2
    await store.aclose()


async def test_a_full_disk_refuses_writes_keeps_what_there_is_and_recovers(path: Path) -> None:
    await make(path)
    store = await SqliteStore.open(SqliteSettings(path=path, max_bytes=500_000))
    first = await begun(store)
    await store.jobs.release(first.fencing_token, completed())
    done: list[str] = []
    with pytest.raises(StoreFull, match="No space left"):
        await _work_until_full(store, done)
    assert len(done) > 5
    kept = await store.jobs.list(JobFilter(states=("completed",)), limit=1000)
    assert {job.job_id for job in kept.jobs} == {*done, first.job_id}
    await store.jobs.prune(RetentionPolicy(max_age=0.0))
    job = await begun(store)
    assert await store.jobs.append(job.fencing_token, tokens("works again")) == 1
    await store.aclose()


async def _work_until_full(store: SqliteStore, done: list[str]) -> None:
    for _ in range(1000):
        job = await begun(store, new_job(task="x" * 10_000))
        await store.jobs.release(job.fencing_token, completed())
        done.append(job.job_id)


async def test_one_write_too_large_does_not_spoil_its_neighbours(path: Path) -> None:
    store = await SqliteStore.open(SqliteSettings(path=path, max_bytes=1_000_000))
    asked = [store.jobs.accept(new_job(task="x" * 2_000_000 if n == 3 else "small")) for n in range(8)]
    got = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(each, StoreFull) for each in got] == [n == 3 for n in range(8)]
    assert len((await store.jobs.list(JobFilter())).jobs) == 7
    await store.aclose()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


OPEN = """
import asyncio, os, sys
from a2a_fabric.core.errors import StoreError
from a2a_fabric.stores.migrate import load_migrations
from a2a_fabric.stores.sqlite.store import build
asyncio.run(asyncio.to_thread(load_migrations, "sqlite"))  # read while it can be
if os.geteuid() == 0:
    os.setuid(65534)  # for root nothing is read-only
try:
    asyncio.run(build("sqlite:" + sys.argv[1]))
except StoreError as error:
    print(type(error).__name__, error.message)
"""


def test_a_read_only_file_is_named(open_folder: Path) -> None:
    path = open_folder / "fabric.db"
    path.touch()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    open_folder.chmod(0o755)
    assert result.stdout.startswith(StoreReadOnly.__name__), result.stderr
    assert "write permission" in result.stdout
    assert path.stat().st_size == 0


async def test_after_closing_a_store_says_so_and_closes_only_once(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    await store.aclose()
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.jobs.accept(new_job())


async def test_closing_finishes_what_was_begun(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    begun_writes = [asyncio.create_task(store.jobs.accept(new_job())) for _ in range(50)]
    await asyncio.sleep(0)
    await store.aclose()
    await asyncio.gather(*begun_writes)
    store = await build(f"sqlite:{path}")
    assert len((await store.jobs.list(JobFilter())).jobs) == 50
    await store.aclose()


async def test_a_cancelled_write_is_whole_or_not_at_all(path: Path) -> None:
    store = await build(f"sqlite:{path}")
    for _ in range(20):
        writes = [asyncio.create_task(store.jobs.accept(new_job(events=tokens("a", "b")))) for _ in range(5)]
        await asyncio.sleep(0)
        for write in writes[::2]:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
    page = await store.jobs.list(JobFilter(), limit=1000)
    assert len(page.jobs) >= 40
    for job in page.jobs:
        assert (await store.jobs.events(job.job_id)).last == len((await store.jobs.events(job.job_id)).events) == 2
    await store.aclose()


class Faltering(SqliteReader):
    """Cannot read jobs for a moment."""

    is_away = False

    def fetch_all(self, sql: str, values: Values = ()) -> list[Row]:
        if self.is_away and "jobs" in sql:
            raise StoreBusy("not now")
        return super().fetch_all(sql, values)


async def test_a_change_that_could_not_be_looked_at_is_told_of_later(path: Path) -> None:
    store, board = await build(f"sqlite:{path}"), TopicSignals()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        reader = Faltering(connection, "here")
        poller = SqliteChangePoller(reader, board, lambda: False)
        job = await begun(store)
        with board.watch(job_topic(job.job_id)) as wake_handle:
            poller.poll()
            assert await wake_handle.wait(0.0)
            await store.jobs.release(job.fencing_token, completed())
            reader.is_away = True
            with pytest.raises(StoreBusy):
                poller.poll()
            reader.is_away = False
            poller.poll()
            assert await wake_handle.wait(0.0)
            poller.poll()
            assert not await wake_handle.wait(0.0)
    await store.aclose()
