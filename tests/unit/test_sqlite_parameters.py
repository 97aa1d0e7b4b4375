"""Writes of the job path give SQLite no value that Python's sqlite3 would have to look for an adapter of."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeVar

import pytest

from a2a_fabric.core.job import FencingToken
from a2a_fabric.core.result import status, token
from a2a_fabric.stores.nats.batches import RecordingTransaction
from a2a_fabric.stores.sqlite.connections import open_memory
from a2a_fabric.stores.sqlite.database import SqliteReader, SqliteTransaction
from a2a_fabric.stores.sqlite.jobs import AcceptJob, SqliteJobs
from a2a_fabric.stores.sqlite.statements import RowStatement
from a2a_fabric.testing.values import make_claim_request, make_completed_outcome, make_new_job

T = TypeVar("T")
BOUND_AS_THEY_ARE = {int, float, str, bytearray}


class RecordingWriter:
    """A writer for tests: each unit of work is run at once, and the values of its writes are kept."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.values: list[Any] = []

    async def run(self, work: Callable[[SqliteTransaction], T]) -> T:
        transaction = RecordingTransaction(self._connection, 1000.0)
        result = work(transaction)
        self.values += [value for each in transaction.statements for row in each.rows for value in row]
        return result

    async def run_announced(self, topic: str, work: Callable[[SqliteTransaction], T]) -> T:
        return await self.run(work)

    def expects(self, topic: str) -> bool:
        return True

    async def aclose(self) -> None:
        self._connection.close()


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(open_memory().writer) as opened:
        yield opened


async def test_a_job_from_beginning_to_end_is_written_without_adapters(connection: sqlite3.Connection) -> None:
    writer = RecordingWriter(connection)
    jobs = SqliteJobs(writer, SqliteReader(connection, "memory:"), lambda: 1000.0)
    await jobs.accept(make_new_job(events=(status("queued"),)))
    [job] = await jobs.claim(make_claim_request(limit=1))
    fencing = FencingToken(job.job_id, job.fence)
    await jobs.append(fencing, (token("forty-"), token("two")))
    await jobs.release(fencing, make_completed_outcome())
    stored = await jobs.get(job.job_id)
    assert stored is not None
    assert stored.state == "completed"
    assert writer.values
    assert {type(value) for value in writer.values} <= BOUND_AS_THEY_ARE


async def test_jobs_accepted_together_are_written_without_adapters(connection: sqlite3.Connection) -> None:
    writer = RecordingWriter(connection)
    batch = [AcceptJob(make_new_job(events=(status("queued"),))) for _ in range(3)] + [
        AcceptJob(make_new_job(key="once"))
    ]
    await writer.run(lambda tx: AcceptJob.run_batch(tx, batch))
    keys = [key for (key,) in connection.execute("SELECT key FROM jobs ORDER BY seq")]
    assert keys == [None, None, None, "once"]
    assert {type(value) for value in writer.values} <= BOUND_AS_THEY_ARE


def test_a_row_has_parameters_only_for_its_values() -> None:
    statement = RowStatement("INSERT INTO t VALUES ({}, {}, {}, {})")
    assert statement.bind((1, None, b"x", True)) == ("INSERT INTO t VALUES (?, NULL, ?, ?)", (1, bytearray(b"x"), 1))
    assert statement.bind((1, None, None, False)) == ("INSERT INTO t VALUES (?, NULL, NULL, ?)", (1, 0))


def test_rows_with_the_same_columns_are_written_together() -> None:
    statement = RowStatement("INSERT INTO t VALUES ({}, {})")
    assert statement.bind_all([(1, None), (2, "a"), (3, None)]) == {
        "INSERT INTO t VALUES (?, NULL)": [(1,), (3,)],
        "INSERT INTO t VALUES (?, ?)": [(2, "a")],
    }


def test_the_remembered_texts_are_bounded() -> None:
    statement = RowStatement(", ".join(["{}"] * 10))
    for number in range(1024):
        row = [None if number >> bit & 1 else bit for bit in range(10)]
        assert statement.bind(row)[1] == tuple(value for value in row if value is not None)
    assert len(statement.shapes) <= 256
