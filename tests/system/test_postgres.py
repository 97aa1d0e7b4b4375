"""PostgreSQL that restarts, crashes, fails over, is far behind a pooler, or refuses: what a node makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from a2a_fabric.core.errors import (
    AgentNotFound,
    BadInput,
    LeaseLost,
    SchemaChanged,
    SchemaTooNew,
    StoreFull,
    StoreUnavailable,
    StoreUnusable,
)
from a2a_fabric.core.job import HoldRequest, JobFilter, JobOutcome
from a2a_fabric.core.result import Event, Result
from a2a_fabric.core.stores import WORK_TOPIC, Store, job_topic
from a2a_fabric.stores.migrate import load_migrations
from a2a_fabric.stores.postgres.store import PostgresSettings, PostgresStore, build
from tests.contracts.stores import (
    CANCELLED,
    begun,
    claim_request,
    completed,
    log_of,
    new_job,
    new_message,
    text_of,
    tokens,
    until,
)
from tests.fixtures.disk import enlarge, needs_root, small_disk
from tests.fixtures.node import running
from tests.fixtures.pooler import Moment, Pooler
from tests.fixtures.postgres import Server, binary
from tests.fixtures.relay import Cut, Relay
from tests.unit.made import agent

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
WAIT_TIMEOUT = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


@asynccontextmanager
async def opened(address: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(
        PostgresSettings(address=address, **{"reconnect_timeout": WAIT_TIMEOUT, **settings})
    )
    try:
        yield store
    finally:
        await store.aclose()


async def sql(address: str, *statements: str) -> None:
    connection = await asyncpg.connect(address)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


class Traffic:
    """Jobs and messages without end, and a note of all that was acknowledged."""

    def __init__(self, store: Store, lanes: int = 6) -> None:
        self._store = store
        self._tasks = [asyncio.create_task(self._jobs(lane)) for lane in range(lanes)]
        self._tasks.append(asyncio.create_task(self._messages()))
        self.logs: dict[str, list[str]] = {}
        self.messages: list[str] = []

    @property
    def count(self) -> int:
        return len(self.messages) + sum(map(len, self.logs.values()))

    async def go_on(self, more: int = 60) -> None:
        """Until so many more things are acknowledged. Raises what stopped a lane."""
        wanted = self.count + more

        async def enough() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return self.count >= wanted

        await until(enough, 2 * WAIT_TIMEOUT)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self, store: Store) -> None:
        """Everything acknowledged is there, once and in order, and nothing is doubled."""
        for job_id, acknowledged in self.logs.items():
            texts = [text for _, text in await log_of(store, job_id)]
            assert texts[: len(acknowledged)] == acknowledged
            assert texts == ["0", "1", "2", "end"][: len(texts)]
        said = [m async for m in _conversation(store, "conv_1")]
        assert [number for number, _ in said] == list(range(1, len(said) + 1))
        texts = [text for _, text in said]
        assert max(Counter(texts).values()) == 1
        assert set(self.messages) <= set(texts)

    async def _jobs(self, lane: int) -> None:
        while True:
            accepted = await self._store.jobs.accept(new_job(hold=HoldRequest(worker=f"w{lane}", lease=3600)))
            assert accepted.is_new
            job, log = accepted.job, self.logs.setdefault(accepted.job.job_id, [])
            for number in range(3):
                assert await self._store.jobs.append(job.fencing_token, tokens(str(number))) == number + 1
                log.append(str(number))
            ending = JobOutcome(state="completed", result=Result(data={}), events=tokens("end"))
            assert (await self._store.jobs.release(job.fencing_token, ending)).events == 4
            log.append("end")

    async def _messages(self) -> None:
        while True:
            text = str(len(self.messages))
            await self._store.messages.append(new_message("percy", text=text))
            self.messages.append(text)


async def _conversation(store: Store, conversation_id: str) -> AsyncIterator[tuple[int, str]]:
    after = 0
    while page := await store.messages.read_conversation(conversation_id, after=after):
        for message in page:
            yield message.number, text_of(message.parts)
        after = page[-1].number


async def test_a_restart_of_the_server_in_mid_flight_is_only_a_pause(server: Server) -> None:
    async with opened(server.database()) as store:
        traffic = Traffic(store)
        for _ in range(2):
            await traffic.go_on()
            await asyncio.to_thread(server.restart)
        await traffic.go_on()
        await traffic.stop()
        await traffic.check(store)


async def test_a_crash_of_the_server_loses_and_doubles_nothing(server: Server) -> None:
    async with opened(server.database()) as store:
        traffic = Traffic(store)
        for _ in range(3):
            await traffic.go_on()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await traffic.go_on()
        await traffic.stop()
        await traffic.check(store)


async def test_a_server_that_stays_away_is_a_typed_error_and_is_found_again(server: Server) -> None:
    async with opened(server.database(), reconnect_timeout=0.5) as store:
        job = await begun(store)
        with store.notices.watch(job_topic(job.job_id)) as bell:
            await asyncio.to_thread(server.stop)
            try:
                for asking in (lambda: store.jobs.accept(new_job()), lambda: store.jobs.get(job.job_id)) * 3:
                    began = time.monotonic()
                    with pytest.raises(StoreUnavailable, match="did not answer within"):
                        await asking()
                    assert time.monotonic() - began < WAIT_TIMEOUT
            finally:
                await asyncio.to_thread(server.start)
            assert await until(lambda: _written(store, job.fencing_token))
            assert await bell.wait(WAIT_TIMEOUT)
        assert await log_of(store, job.job_id) == [(1, "back")]


async def _written(store: Store, held: Any) -> int:
    with suppress(StoreUnavailable):
        return await store.jobs.append(held, tokens("back"))
    return 0


async def test_the_log_says_once_that_the_server_is_away_and_once_that_it_is_back(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(server.database(), reconnect_timeout=0.2) as store:
        await store.jobs.accept(new_job())
        with store.notices.watch(WORK_TOPIC), caplog.at_level("WARNING", "a2a_fabric.stores.postgres.store"):
            await asyncio.to_thread(server.stop)
            for _ in range(10):
                with pytest.raises(StoreUnavailable):
                    await store.jobs.accept(new_job())
                await asyncio.sleep(0.2)  # the node looks meanwhile, more often than that
            await asyncio.to_thread(server.start)
            await until(lambda: _accepted(store))
    said = [record.getMessage() for record in caplog.records]
    away, back = (sum(words in each for each in said) for words in (" is away (", " is back after "))
    assert 1 <= away == back <= 2  # a last line may be answered after the first one broke
    assert len(said) <= 5


async def _accepted(store: Store) -> bool:
    with suppress(StoreUnavailable):
        return (await store.jobs.accept(new_job())).is_new
    return False


async def test_a_node_that_starts_while_the_server_is_away_waits_for_it(server: Server) -> None:
    address = server.database()
    await asyncio.to_thread(server.stop)
    opening = asyncio.create_task(PostgresStore.open(PostgresSettings(address=address, reconnect_timeout=WAIT_TIMEOUT)))
    await asyncio.to_thread(server.start)
    store = await opening
    await store.jobs.accept(new_job())
    await store.aclose()


async def test_after_a_failover_the_node_goes_on_with_the_server_that_took_over(server: Server) -> None:
    first = server.database()
    standby = Server("fabric-pg-standby")
    async with _following(server, standby):
        hosts = f"{server.folder},{standby.folder}"
        address = f"{first.partition('?')[0]}?host={hosts}"
        async with opened(address) as store:
            traffic = Traffic(store, lanes=3)
            await traffic.go_on()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(standby.promote)
            await traffic.go_on()
            await traffic.stop()
            await traffic.check(store)


async def test_a_server_that_falls_silent_does_not_keep_us_from_the_one_that_took_over(server: Server) -> None:
    first = server.database()
    standby = Server("fabric-pg-standby")
    async with _following(server, standby):
        address = f"{first.partition('?')[0]}?host={server.folder},{standby.folder}"
        async with opened(address, statement_timeout=2.0) as store:
            traffic = Traffic(store, lanes=3)
            await traffic.go_on()
            with server.frozen():  # as after a power cut: it neither answers nor refuses
                await asyncio.to_thread(standby.promote)
                await traffic.go_on()
                await traffic.stop()
                await traffic.check(store)


async def test_a_node_finds_the_server_that_answers_though_the_first_of_them_is_silent(server: Server) -> None:
    address = server.database()
    silent = Server("fabric-pg-silent")
    try:
        silent.create()
        silent.start()
        with silent.frozen():
            both = f"{address.partition('?')[0]}?host={silent.folder},{server.folder}"
            async with opened(both, reconnect_timeout=4.0) as store:
                assert (await store.jobs.accept(new_job())).is_new
    finally:
        silent.remove()


@asynccontextmanager
async def _following(server: Server, standby: Server) -> AsyncIterator[None]:
    """The standby has everything before the server acknowledges it."""
    try:
        await asyncio.to_thread(standby.clone, server)
        await asyncio.to_thread(standby.start)
        await until(lambda: _streams(server))
        server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.sql("SELECT pg_reload_conf()")
        await until(lambda: _streams(server, "sync"))
        yield
    finally:
        standby.remove()
        (server.data / "postgresql.auto.conf").write_text("")
        await asyncio.to_thread(server.restart)


async def _streams(server: Server, state: str = "async") -> bool:
    return server.sql("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'") == state


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_whose_answer_never_came_is_done_once(server: Server, moment: Moment) -> None:
    async with Pooler(server.database()) as pooler, opened(pooler.address) as store:
        job = await begun(store)
        pooler.cut_at_next_commit(moment)
        assert await store.jobs.append(job.fencing_token, tokens("a")) == 1
        pooler.cut_at_next_commit(moment)
        assert (await store.jobs.accept(new_job(key="k", digest="d"))).is_new
        pooler.cut_at_next_commit(moment)
        assert (await store.jobs.release(job.fencing_token, completed("42", "end"))).events == 2
        pooler.cut_at_next_commit(moment)
        assert (await store.messages.append(new_message("percy"))).message.number == 1
        assert pooler.cuts == 4
        assert await log_of(store, job.job_id) == [(1, "a"), (2, "end")]
        assert len(await store.messages.read_conversation("conv_1")) == 1


@pytest.mark.parametrize("moment", ["before", "after", "late"])
async def test_a_statement_whose_answer_never_came_is_done_once(server: Server, moment: Cut) -> None:
    async with Relay(server.database()) as relay, opened(relay.address) as store:
        job = await begun(store)
        relay.cut_at_next_write(moment)
        accepted = await store.jobs.accept(new_job(key="k", digest="d", hold=HoldRequest(worker="w", lease=60)))
        assert accepted.is_new
        relay.cut_at_next_write(moment)
        assert await store.jobs.append(job.fencing_token, tokens("a")) == 1
        relay.cut_at_next_write(moment)
        assert (await store.jobs.release(job.fencing_token, completed("42", "end"))).events == 2
        assert (relay.cuts, relay.delivered) == (3, 3 if moment == "late" else 0)
        assert await log_of(store, job.job_id) == [(1, "a"), (2, "end")]
        assert await store.jobs.append(accepted.job.fencing_token, tokens("b")) == 1
        assert len((await store.jobs.list(JobFilter())).jobs) == 2


async def test_nodes_behind_a_transaction_pooler_share_the_work_and_hear_of_each_other(server: Server) -> None:
    async with Pooler(server.database()) as pooler, opened(pooler.address) as here, opened(pooler.address) as there:
        with there.notices.watch(WORK_TOPIC) as bell:
            assert await there.jobs.claim(claim_request()) == []
            accepted = await asyncio.gather(*(here.jobs.accept(new_job()) for _ in range(60)))
            assert await bell.wait(WAIT_TIMEOUT)
        claims = await asyncio.gather(*(node.jobs.claim(claim_request(limit=9)) for node in (here, there) * 5))
        got = [job.job_id for claim in claims for job in claim]
        assert sorted(got) == sorted(each.job.job_id for each in accepted)
        traffic = Traffic(here)
        await traffic.go_on()
        await traffic.stop()
        await traffic.check(there)


async def test_notices_need_a_line_of_their_own_past_the_pooler(server: Server) -> None:
    address = server.database()

    async def listeners() -> int:
        return int(server.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"))

    async with Pooler(address) as pooler:
        async with opened(pooler.address) as store:
            await store.jobs.accept(new_job())
            assert await listeners() == 0
        async with opened(pooler.address, listen_address=address):
            assert await until(listeners) == 1


async def test_a_broken_line_of_notices_is_made_anew(server: Server) -> None:
    address = server.database()
    async with opened(address) as here, opened(address) as there:
        job = await begun(here)
        with here.notices.watch(job_topic(job.job_id)) as bell:
            for number in range(1, 4):
                await until(lambda: _silenced(server))
                assert await there.jobs.append(job.fencing_token, tokens("x")) == number
                while (await here.jobs.events(job.job_id)).last < number:
                    assert await bell.wait(WAIT_TIMEOUT)


async def _silenced(server: Server) -> bool:
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    return int(server.sql(cut)) > 0


async def test_what_doubtful_commits_are_looked_up_by_does_not_grow(server: Server) -> None:
    address = server.database()
    async with opened(address, connections=2) as store:
        for n in range(20):
            await store.registrations.register(agent("percy", f"skill{n}"), "psk:alice")
            with pytest.raises(AgentNotFound):
                await store.registrations.renew("nobody", "psk:alice")
            assert await store.jobs.claim(claim_request()) == []
        name = address.partition("?")[0].rpartition("/")[2]
        assert int(server.sql("SELECT count(*) FROM a2a_fabric.marks", name)) <= 2


HOLDER = """
import asyncio, sys
from a2a_fabric.core.errors import FabricError
from a2a_fabric.stores.postgres.store import build
from tests.contracts.stores import tokens, claim_request

async def main(address):
    store = await build(address)
    [job] = await store.jobs.claim(claim_request("holder", lease=0.5))
    print("claimed", job.fence, flush=True)
    for line in sys.stdin:
        try:
            print(await store.jobs.append(job.fencing_token, tokens("late")), flush=True)
        except FabricError as exc:
            print(exc.code, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@asynccontextmanager
async def holder(address: str) -> AsyncIterator[Process]:
    """A worker in a process of its own, that has claimed the only job for half a second."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, address, cwd=ROOT, stdin=PIPE, stdout=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    try:
        assert await _line(process) == "claimed 1"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_TIMEOUT):
        return (await process.stdout.readline()).decode().strip()


async def test_a_worker_process_that_stalled_is_replaced_and_fenced(server: Server) -> None:
    address = server.database()
    async with opened(address) as store:
        new = new_job()
        await store.jobs.accept(new)
        async with holder(address) as process:
            process.send_signal(signal.SIGSTOP)
            [mine] = await until(lambda: store.jobs.take_over(HoldRequest(worker="heir", lease=60)))
            assert (mine.job_id, mine.fence) == (new.job_id, 2)
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write(b"write\n")
            assert await _line(process) == LeaseLost.code
        await store.jobs.release(mine.fencing_token, completed("42", "end"))
        assert await log_of(store, new.job_id) == [(1, "end")]


async def test_a_process_that_fell_asleep_inside_a_transaction_keeps_nothing_locked(server: Server) -> None:
    address = server.database()
    name = address.partition("?")[0].rpartition("/")[2]

    async def is_inside() -> bool:
        """Stopped there: what is open now is open a moment later."""
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)
        if int(server.sql(_OPEN, name)):
            return True
        process.send_signal(signal.SIGCONT)
        return False

    async with opened(address) as store, writer(address) as process:
        try:
            await until(is_inside)
            running = (await store.jobs.list(JobFilter(states=("running",)), limit=1000)).jobs
            assert running
            for job in running:
                assert (await store.jobs.cancel(job.job_id, CANCELLED)).cancel_requested
        finally:
            process.send_signal(signal.SIGCONT)


_OPEN = """
SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%FOR UPDATE%'
AND datname = current_database()
"""


@asynccontextmanager
async def writer(address: str) -> AsyncIterator[Process]:
    """Another node, busy with jobs of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fixtures.store_child", "write", address, "r", cwd=ROOT, stdout=DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_an_unread_reply_does_not_keep_its_locks(server: Server) -> None:
    address = server.database()
    async with opened(address, statement_timeout=1.0) as store:
        job = await begun(store)
        with _unread(address, "BEGIN; SELECT 1 FROM a2a_fabric.jobs FOR UPDATE"):
            assert await until(lambda: _written(store, job.fencing_token)) == 1


@contextmanager
def _unread(address: str, begin: str) -> Iterator[None]:
    """A client that has asked for more than it reads."""
    flood = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 100000)) TO STDOUT"
    words = [binary("psql"), "-X", "-q", "-d", address, "-c", f"{begin}; {flood}; COMMIT"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield
        finally:
            process.kill()


async def test_the_job_of_a_killed_worker_process_is_taken_over_once(server: Server) -> None:
    address = server.database()
    async with opened(address) as here, opened(address) as there:
        await here.jobs.accept(new_job())
        async with holder(address) as process:
            process.kill()
        taken: list[Any] = []

        async def anybody() -> bool:
            both = (node.jobs.take_over(HoldRequest(worker="heir", lease=60)) for node in (here, there))
            taken.extend(job for jobs in await asyncio.gather(*both) for job in jobs)
            return bool(taken)

        await until(anybody)
        assert [job.fence for job in taken] == [2]


async def test_of_several_nodes_that_start_together_each_migration_is_applied_by_one(server: Server) -> None:
    address = server.database()
    stores = await asyncio.gather(*(build(address) for _ in range(6)))
    for store in stores:
        await store.aclose()
    name = address.partition("?")[0].rpartition("/")[2]
    applied = server.sql("SELECT string_agg(name, ',' ORDER BY applied_at) FROM a2a_fabric.schema_migrations", name)
    assert applied.split(",") == [each.name for each in load_migrations("postgres")]


async def test_a_newer_or_another_schema_is_left_alone(server: Server) -> None:
    address = server.database()
    await (await build(address)).aclose()
    await sql(address, "INSERT INTO a2a_fabric.schema_migrations VALUES (99, '0099_future', 'x', 0)")
    with pytest.raises(SchemaTooNew, match=r"has schema 99, and this program knows up to \d"):
        await build(address)
    await sql(address, "DELETE FROM a2a_fabric.schema_migrations WHERE number = 99",
              "UPDATE a2a_fabric.schema_migrations SET checksum = 'other' WHERE number = 1")  # fmt: skip
    with pytest.raises(SchemaChanged, match="0001_jobs"):
        await build(address)


async def test_a_database_may_be_shared_with_other_programs(server: Server) -> None:
    address = server.database()
    await sql(address, "CREATE TABLE IF NOT EXISTS jobs (mine text)", "INSERT INTO jobs VALUES ('precious')")
    async with opened(address) as store:
        await store.jobs.accept(new_job())
        assert len((await store.jobs.list(JobFilter())).jobs) == 1
    await sql(address, "DELETE FROM jobs WHERE mine = 'precious'", "DROP TABLE jobs")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("/t1?", "/nowhere?"), "does not exist"),
        (("fabric@", "stranger:s3cret@"), "stranger"),
        (("fabric@", "guest:s3cret@"), "needs CREATE on the database"),
        (("postgresql://fabric@", "postgresql://fabric:s3cret@["), "not a usable address"),
    ],
)
async def test_a_database_that_cannot_be_used_is_named_without_its_secret(
    server: Server, change: tuple[str, str], why: str
) -> None:
    await asyncio.to_thread(server.database)
    server.sql("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    server.sql("DROP SCHEMA IF EXISTS a2a_fabric CASCADE", "t1")
    with pytest.raises(StoreUnusable, match=why) as caught:
        await build(server.line("t1").replace(*change))
    assert "s3cret" not in caught.value.message


async def test_text_that_cannot_be_kept_is_refused_alone_and_found_nowhere(server: Server) -> None:
    async with opened(server.database()) as store:
        bad = {2: "a\0b", 5: "\ud800", 7: random.randbytes(5000).hex()}
        asked = [store.jobs.accept(new_job(key=bad.get(n), digest="d")) for n in range(10)]
        got = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, BadInput) for each in got] == [n in bad for n in range(10)]
        assert len((await store.jobs.list(JobFilter())).jobs) == 7
        assert await store.jobs.get("job_\0") is None
        assert await store.jobs.find("psk:alice", "\ud800") is None
        assert (await store.jobs.list(JobFilter(owner="\0"))).jobs == ()
        assert (await store.jobs.events((await begun(store)).job_id, after=2**70)).events == ()


@needs_root
async def test_a_full_disk_refuses_writes_and_the_node_goes_on_when_there_is_room(server: Server) -> None:
    disk = server.folder / "disk"
    with small_disk(disk, 24), _kept_on(server, disk) as address:
        async with opened(address) as store:
            job = await begun(store)
            with pytest.raises(StoreFull, match="No space left"):
                await _write_until_full(store, job.fencing_token)
            texts = [text for _, text in await log_of(store, job.job_id, limit=1)]
            assert texts == [str(number) for number in range(len(texts))]
            await asyncio.to_thread(enlarge, disk)
            assert await until(lambda: _written(store, job.fencing_token)) == len(texts) + 1


@contextmanager
def _kept_on(server: Server, disk: Path) -> Iterator[str]:
    """A database on a disk of its own."""
    owner = server.folder.stat()
    os.chown(disk, owner.st_uid, owner.st_gid)
    server.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
    server.sql("CREATE DATABASE crowded TEMPLATE template0 TABLESPACE small")
    try:
        yield server.line("crowded")
    finally:
        server.sql("DROP DATABASE crowded WITH (FORCE)")
        server.sql("DROP TABLESPACE small")


async def _write_until_full(store: Store, held: Any) -> None:
    for number in range(1000):
        word = Event("token", {"text": str(number), "weight": random.randbytes(100_000).hex()})
        assert await store.jobs.append(held, [word]) == number + 1


async def test_a_read_only_database_is_named_and_the_node_goes_on_when_it_may_write(server: Server) -> None:
    address = server.database()
    name = address.partition("?")[0].rpartition("/")[2]
    async with opened(address, reconnect_timeout=0.5) as store:
        job = await begun(store)
        server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            await until(lambda: _cut_off(server, name))
            with pytest.raises(StoreUnavailable, match="read-only transaction; the node keeps trying"):
                await store.jobs.append(job.fencing_token, tokens("a"))
        finally:
            server.sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await until(lambda: _cut_off(server, name))
        assert await until(lambda: _written(store, job.fencing_token)) == 1


async def _cut_off(server: Server, name: str) -> bool:
    """Settings of a database hold for connections to come."""
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'a2a-fabric'"
    return int(server.sql(f"{cut} AND datname = '{name}'")) > 0


async def test_a_caller_that_gives_up_on_a_silent_server_is_free_at_once(server: Server) -> None:
    async with opened(server.database()) as store:
        job = await begun(store)
        with server.frozen():
            for asking in (lambda: store.jobs.get(job.job_id), lambda: store.jobs.claim(claim_request())):
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asking(), 0.5)
                assert time.monotonic() - began < 5  # it would be as long as a connection is waited for
        assert (await store.jobs.get(job.job_id)) == job


async def test_a_caller_that_gives_up_leaves_the_line_usable(server: Server) -> None:
    async with opened(server.database(), connections=1) as store:
        await asyncio.gather(*(store.jobs.accept(new_job()) for _ in range(50)))
        for delay in range(20):
            claiming = asyncio.create_task(store.jobs.claim(claim_request(limit=1)))
            for _ in range(delay):
                await asyncio.sleep(0)
            claiming.cancel()
            with suppress(asyncio.CancelledError):
                await claiming
        assert await store.jobs.claim(claim_request())


async def test_an_outage_is_one_line_in_the_log_of_a_node_and_one_at_its_end(server: Server) -> None:
    config = {"store": server.database(), "health": {"interval": 0}, "jobs": {"lease_seconds": 2}}
    async with running(config=config) as node:
        await asyncio.to_thread(server.stop)
        for _ in range(3):
            assert (await node.send("GET", "/readyz")).status == 503
            await asyncio.sleep(1.1)  # the store is asked once a second
        await asyncio.to_thread(server.start)

        async def is_ready() -> bool:
            return (await node.send("GET", "/readyz")).status == 200

        await until(is_ready)
        node.fabric.telemetry.log.flush()
        lines = [json.loads(line) for line in node.log.getvalue().splitlines()]
    away = [line for line in lines if line["event"] == "log" and line["level"] in ("warning", "error", "info")]
    assert len(away) <= 3, [line["message"] for line in away]
