"""The engines that every store contract runs against, and short ways to make what goes in.

A new engine is one class with `open` and one row in ENGINES.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from a2a_fabric.core.events import Event, token
from a2a_fabric.core.job import ClaimRequest, HoldRequest, Job, JobOutcome, NewJob, new_job_id
from a2a_fabric.core.message import NewMessage, Party, new_message_id
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result
from a2a_fabric.core.stores import ArchiveRecord, Store
from a2a_fabric.stores.postgres.store import PostgresSettings, PostgresStore
from a2a_fabric.stores.sqlite import MemoryStore, SqliteSettings, SqliteStore
from tests.fixtures.postgres import shared
from tests.unit.made import call

PATIENCE = 30.0


class Engine(Protocol):
    """One place. Each `open` is another node's view of it; `address` is how another process finds it."""

    name: str
    address: str

    async def open(self) -> Store: ...


class MemoryEngine:
    name = "memory"
    address = "memory"

    def __init__(self, folder: Path) -> None:
        self._store = MemoryStore()

    async def open(self) -> Store:
        return self._store


class SqliteEngine:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.settings = SqliteSettings(path=folder / "fabric.db")
        self.address = self.settings.address

    async def open(self) -> Store:
        return await SqliteStore.open(self.settings)


class PostgresEngine:
    name = "postgres"

    def __init__(self, folder: Path) -> None:
        self.address = shared().database()

    async def open(self) -> Store:
        return await PostgresStore.open(PostgresSettings(address=self.address))


# NATS gets its row here.
ENGINES: dict[str, Callable[[Path], Engine]] = {
    "memory": MemoryEngine,
    "sqlite": SqliteEngine,
    "postgres": PostgresEngine,
}
SHARED = [name for name in ENGINES if name != "memory"]  # those that several processes can open


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Store]:
    store = await engine.open()
    try:
        yield store
    finally:
        await store.aclose()


def new_job(agent_id: str = "percy", owner: str = "psk:alice", task: str = "think", **about: Any) -> NewJob:
    return NewJob(**{"job_id": new_job_id(), "owner": owner, "call": call(agent_id, task=task), **about})


def wish(worker: str = "w1", limit: int = 1, lease: float = 60.0, **more: Any) -> ClaimRequest:
    return ClaimRequest(hold=HoldRequest(worker=worker, lease=lease), limit=limit, **more)


async def begun(store: Store, new: NewJob | None = None, lease: float = 60.0) -> Job:
    """One job, accepted and claimed."""
    accepted = await store.jobs.accept(new or new_job())
    claimed = await store.jobs.claim(wish(limit=1000, lease=lease))
    return next(job for job in claimed if job.job_id == accepted.job.job_id)


def tokens(*words: str) -> tuple[Event, ...]:
    return tuple(token(word) for word in words)


def completed(answer: str = "42", *last: str) -> JobOutcome:
    return JobOutcome(state="completed", result=Result(data={"answer": answer}), events=tokens(*last))


CANCELLED = JobOutcome(state="cancelled", events=tokens("cancelled"))


async def log_of(store: Store, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, str]]:
    """The whole log, page by page, as (number, text)."""
    found: list[tuple[int, str]] = []
    while True:
        page = await store.jobs.events(job_id, after=after, limit=limit)
        found += [(line.number, line.event.data["text"]) for line in page.events]
        if page.upto >= page.last:
            return found
        after = page.upto


def new_message(*to: str, text: str = "hello", conversation: str = "conv_1", **about: Any) -> NewMessage:
    return NewMessage(
        message_id=new_message_id(),
        conversation_id=conversation,
        owner="psk:alice",
        sender=Party(id="alice", kind="client"),
        recipients=tuple(Party(id=each) for each in to),
        parts=(Part(kind="text", text=text),),
        **about,
    )


def text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text or "" for part in parts)


async def records_of(store: Store) -> list[ArchiveRecord]:
    return [record async for record in store.archive.dump()]


async def until(check: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What `check` returns as soon as it is true; a failure when that takes too long."""
    async with asyncio.timeout(patience):
        while not (found := await check()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found
