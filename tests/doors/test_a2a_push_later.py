"""Push notifications of tasks that outlive nodes: told by the next node, each once, whatever lies in between."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from a2a_fabric.core.job import JobFilter, NewJob
from tests.doors.a2a_agents import percy
from tests.doors.a2a_clients import message, rpc
from tests.doors.a2a_receiver import Receiver, receiving
from tests.fixtures.node import Node, running
from tests.fixtures.postgres import shared

DOORS = [{"kind": "a2a"}]
A_PAGE = 1000
_TOLD = "(SELECT seq FROM jobs WHERE job_id LIKE 'push%')"
A_DAY_LATER = [
    *(f"DELETE FROM {table} WHERE job IN {_TOLD}" for table in ("job_calls", "job_bodies", "job_events")),  # noqa: S608
    "DELETE FROM jobs WHERE job_id LIKE 'push%'",
    "UPDATE job_events SET at = at - 90000",
]
ASKED = ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"]


class Place(Protocol):
    """A database, between two nodes."""

    address: str

    def run(self, *statements: str) -> None: ...


class SqlitePlace:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "fabric.db"
        self.address = f"sqlite:{self._file}"

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            for each in statements:
                connection.execute(each)


class PostgresPlace:
    def __init__(self, folder: Path) -> None:
        self.address = shared().database()

    def run(self, *statements: str) -> None:
        database = self.address.partition("@/")[2].partition("?")[0]
        shared().sql("; ".join(["SET search_path TO a2a_fabric", *statements]), database)


@pytest.fixture(params=[SqlitePlace, PostgresPlace], ids=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Callable[[Path], Place] = request.param
    return made(tmp_path)


def kept_at(place: Place) -> dict[str, Any]:
    return {"doors": DOORS, "jobs": {"webhook_allow": ["127.0.0.1"]}, "store": place.address}


async def asking(node: Node, receiver: Receiver) -> str:
    """A task that has asked, and its webhook knows."""
    pushed = {"taskPushNotificationConfig": {"url": receiver.url}}
    params = {"message": message("a sign", skill="paint"), "configuration": pushed}
    task = (await rpc(node, "SendMessage", params))["result"]["task"]
    assert [await receiver.state() for _ in range(2)] == ASKED
    return str(task["id"])


async def crowd(node: Node, task_id: str) -> None:
    """More configs than the store shows at a time, all newer than others: copies of those of one task."""
    jobs = node.fabric.store.jobs
    page = await jobs.list(JobFilter(owner=f"fabric:a2a-push:{task_id}", states=("queued",)), limit=1)
    found = await jobs.get(page.jobs[0].job_id)
    assert found is not None
    one = NewJob(job_id="", owner="", call=found.call, run_at=found.run_at, retention=0.0, meta=found.meta)
    for first in range(0, A_PAGE, 100):
        numbers = range(first, first + 100)
        await asyncio.gather(*(jobs.accept(replace(one, job_id=f"c{n}", owner=f"crowd:{n}")) for n in numbers))


async def test_a_node_that_comes_back_finds_every_config_however_many_there_are(place: Place) -> None:
    async with receiving() as receiver:
        async with running(percy(), config=kept_at(place)) as before:
            oldest = await asking(before, receiver)
            await crowd(before, await asking(before, receiver))
        async with running(percy(), config=kept_at(place)) as after:
            await rpc(after, "CancelTask", {"id": oldest})
            _, told = await receiver.next()
    assert told["task"]["id"] == oldest
    assert told["task"]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_of_a_task_that_takes_days_nothing_is_told_twice(place: Place) -> None:
    """A day after its delivery a notification is forgotten; a node that comes back later does not repeat it."""
    async with receiving() as receiver:
        async with running(percy(), config=kept_at(place)) as before:
            task_id = await asking(before, receiver)
        place.run(*A_DAY_LATER)
        async with running(percy(), config=kept_at(place)) as after:
            await rpc(after, "CancelTask", {"id": task_id})
            assert await receiver.state() == "TASK_STATE_CANCELED"


async def test_a_config_that_is_set_later_is_told_of_what_comes_later(place: Place) -> None:
    """Also by a node that has not followed the task before."""
    async with receiving() as first, receiving() as second:
        async with running(percy(), config=kept_at(place)) as before:
            task_id = await asking(before, first)
        async with running(percy(), config=kept_at(place)) as after:
            config = {"taskId": task_id, "id": "late", "url": second.url}
            await rpc(after, "CreateTaskPushNotificationConfig", config)
            await rpc(after, "CancelTask", {"id": task_id})
            assert [await each.state() for each in (first, second)] == ["TASK_STATE_CANCELED"] * 2
