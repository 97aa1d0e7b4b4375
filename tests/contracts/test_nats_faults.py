"""NATS that loses answers, is slow, full, frozen, gone or not what it should be: what a node makes of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.errors import (
    BadInput,
    ConfigError,
    SchemaTooNew,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    StoreUnusable,
)
from a2a_fabric.core.job import HoldRequest, JobFilter
from a2a_fabric.core.result import Event
from a2a_fabric.nats.address import parse_nats_address
from a2a_fabric.nats.connection import NatsConnection
from a2a_fabric.stores.nats.batches import Batch, Statement, create_batch_id, encode_batch, split_batch
from a2a_fabric.stores.nats.errors import STREAM_NOT_FOUND, ApiError, JetStreamRefused
from a2a_fabric.stores.nats.log import JetStream, SequenceConflict, ServerClock, StreamInfo
from a2a_fabric.stores.nats.store import NatsStore, build, settings_from_address
from tests.contracts.stores import begun, claim_request, completed, log_of, new_job, new_message, tokens, until
from tests.fixtures.nats import NatsCluster, NatsServer, free_port, new_name, shared
from tests.fixtures.nats_relay import Moment, NatsRelay

WAIT_TIMEOUT = 30.0


@asynccontextmanager
async def opened(address: str, **settings: Any) -> AsyncIterator[NatsStore]:
    store = await NatsStore.open(msgspec.structs.replace(settings_from_address(address), **settings))
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def relayed(name: str) -> AsyncIterator[tuple[NatsRelay, str]]:
    async with NatsRelay(shared().port) as relay:
        yield relay, f"nats://127.0.0.1:{relay.port}/{name}"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """One that a test may kill."""
    server = NatsServer().start()
    try:
        yield server
    finally:
        server.remove()


async def ask(address: str, subject: str, body: Any = None) -> Any:
    """The JetStream API, as an operator's tool uses it."""
    connection = await NatsConnection.open(parse_nats_address(address).settings, "operator", 5.0)
    try:
        return json.loads(await JetStream(connection).ask(subject, body))
    finally:
        await connection.aclose()


async def publish(address: str, subject: str, data: bytes) -> None:
    connection = await NatsConnection.open(parse_nats_address(address).settings, "operator", 5.0)
    try:
        await JetStream(connection).publish(subject, data)
    finally:
        await connection.aclose()


async def jobs_of(store: NatsStore) -> list[str]:
    return sorted(job.job_id for job in (await store.jobs.list(JobFilter(), limit=1000)).jobs)


async def same(first: NatsStore, second: NatsStore) -> bool:
    """Both nodes hold the same rows, to the last byte."""
    tables = [
        name for (name,) in first.reader.fetch_all("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    assert len(tables) > 10
    return all(
        sorted(map(repr, first.reader.fetch_all(f"SELECT * FROM {name}")))  # noqa: S608
        == sorted(map(repr, second.reader.fetch_all(f"SELECT * FROM {name}")))  # noqa: S608
        for name in tables
    )


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_write_whose_answer_is_lost_is_done_once(moment: Moment) -> None:
    async with relayed(new_name()) as (relay, address), opened(address) as store:
        for _ in range(3):
            job = await begun(store)
            relay.cut_at_next_write(moment)
            assert await store.jobs.append(job.fencing_token, tokens("a")) == 1
            assert await store.jobs.append(job.fencing_token, tokens("b")) == 2
            assert await log_of(store, job.job_id) == [(1, "a"), (2, "b")]
        assert relay.cuts == 3


async def test_two_nodes_that_write_at_the_same_time_make_one_history() -> None:
    address = shared().address()
    async with opened(address) as here, opened(address) as there:

        async def write(store: NatsStore, name: str) -> None:
            for number in range(15):
                key = f"k{number}"
                await asyncio.gather(
                    store.jobs.accept(new_job(key=key, digest=key)),
                    store.messages.append(new_message("percy", text=f"{name}{number}")),
                )

        await asyncio.gather(
            *(write(store, f"{name}{n}-") for n in range(4) for store, name in ((here, "h"), (there, "t")))
        )
        claims = await asyncio.gather(
            *(store.jobs.claim(claim_request(f"w{n}", limit=2)) for n in range(8) for store in (here, there))
        )
        claimed = [job.job_id for jobs in claims for job in jobs]
        assert len(claimed) == len(set(claimed)) == 15
        texts = await there.messages.read_conversation("conv_1", limit=500)
        assert [message.number for message in texts] == list(range(1, 121))
        await until(lambda: same(here, there))


async def test_an_id_from_one_node_is_known_to_the_other_at_once() -> None:
    address = shared().address()
    async with opened(address) as here, opened(address) as there:
        for _ in range(20):
            job = await begun(here, lease=3600)
            assert await there.jobs.get(job.job_id) is not None
            job = await begun(there, lease=3600)
            assert (await here.jobs.events(job.job_id)).last == 0
            message = (await there.messages.append(new_message("percy"))).message
            assert await here.messages.get(message.message_id) is not None


async def test_when_the_connection_is_cut_writes_wait_and_reads_go_on() -> None:
    async with relayed(new_name()) as (relay, address), opened(address) as store:
        job = await begun(store)
        relay.hold()
        waiting = asyncio.create_task(store.jobs.append(job.fencing_token, tokens("a")))
        assert (await store.jobs.get(job.job_id)) is not None
        relay.drop()
        relay.go_on()
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert await waiting == 1


async def test_what_happened_while_a_node_was_cut_off_reaches_it_when_it_is_back() -> None:
    name = new_name()
    async with relayed(name) as (relay, address), opened(address) as cut, opened(shared().address(name)) as other:
        relay.hold()
        jobs = [await begun(other) for _ in range(5)]
        assert await jobs_of(cut) == []
        relay.drop()
        relay.go_on()
        await until(lambda: same(cut, other), WAIT_TIMEOUT)
        assert await jobs_of(cut) == sorted(job.job_id for job in jobs)


async def test_a_node_without_nats_says_so_and_recovers() -> None:
    async with relayed(new_name()) as (relay, address), opened(address, timeout=0.5) as store:
        job = await begun(store)
        relay.hold()
        with pytest.raises(StoreUnavailable, match="not known whether"):
            await store.jobs.append(job.fencing_token, tokens("a"))
        with pytest.raises(StoreUnavailable):
            await store.status()
        with pytest.raises(StoreUnavailable):
            await store.jobs.get("none")  # as /readyz asks
        assert await store.jobs.get(job.job_id) is not None
        relay.drop()
        relay.go_on()

        async def is_back() -> bool:
            try:
                return (await store.status()).kind == "nats"
            except StoreUnavailable:
                return False

        await until(is_back, WAIT_TIMEOUT)
        last = await store.jobs.append(job.fencing_token, tokens("b"))
        assert [text for _, text in await log_of(store, job.job_id)] in (["b"], ["a", "b"])
        assert last == len(await log_of(store, job.job_id))


async def test_a_slow_nats_slows_writes_and_loses_none() -> None:
    async with relayed(new_name()) as (relay, address), opened(address) as store:
        relay.delay = 0.05
        accepted = await asyncio.gather(*(store.jobs.accept(new_job()) for _ in range(50)))
        assert await jobs_of(store) == sorted(each.job.job_id for each in accepted)


async def test_a_server_that_was_killed_has_everything_when_it_is_back(server: NatsServer) -> None:
    async with opened(server.address()) as store:
        jobs = [await begun(store) for _ in range(5)]
        server.kill()
        waiting = [asyncio.create_task(store.jobs.append(job.fencing_token, tokens("a"))) for job in jobs]
        await until(lambda: _is(not store._parts.jetstream.connection.is_connected))
        server.start()
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert await asyncio.gather(*waiting) == [1] * 5
        assert await jobs_of(store) == sorted(job.job_id for job in jobs)


async def _is(value: bool) -> bool:
    return value


async def test_a_frozen_server_makes_writes_fail_in_time(server: NatsServer) -> None:
    async with opened(server.address(), timeout=0.5) as store:
        job = await begun(store)
        with server.frozen():
            with pytest.raises(StoreUnavailable):
                await store.jobs.append(job.fencing_token, tokens("a"))
            assert await store.jobs.get(job.job_id) is not None

        async def is_back() -> bool:
            try:
                await store.jobs.heartbeat([job.fencing_token], 60)
            except StoreUnavailable:
                return False
            return True

        await until(is_back, WAIT_TIMEOUT)


async def test_a_server_that_lost_confirmed_writes_is_noticed(server: NatsServer) -> None:
    name = new_name()
    async with opened(server.address(name), timeout=2.0) as store:
        await begun(store)
        server.kill()
        shutil.rmtree(server.folder / "data")
        server.start()
        async with opened(server.address(name)) as other:  # a new node begins with what the server has

            async def is_noticed() -> bool:
                try:
                    await store.jobs.accept(new_job())
                except StoreCorrupt as exc:
                    return "lost confirmed writes" in exc.message
                except StoreUnavailable:
                    pass
                return False

            await until(is_noticed, WAIT_TIMEOUT)
            assert await jobs_of(other) == []


async def test_the_log_stays_short_and_a_new_node_begins_with_a_snapshot() -> None:
    address = shared().address()
    name = parse_nats_address(address).name
    async with opened(address, snapshot_messages=20) as store:
        job = await begun(store)

        async def is_shortened() -> bool:
            await store.jobs.append(job.fencing_token, tokens("a"))
            return bool((await ask(address, f"STREAM.INFO.{name}_log"))["state"]["first_seq"] > 1)

        await until(is_shortened, WAIT_TIMEOUT)
        async with opened(address) as other:
            assert await same(store, other)
            await other.jobs.append(job.fencing_token, tokens("b"))
            assert (await log_of(other, job.job_id))[-1][1] == "b"
            await until(lambda: same(store, other))


async def test_a_node_that_was_away_for_long_goes_on_from_a_snapshot() -> None:
    name = new_name()
    direct = shared().address(name)
    async with relayed(name) as (relay, address), opened(address) as away, opened(direct, snapshot_messages=20) as busy:
        relay.hold()
        job = await begun(busy)

        async def is_shortened() -> bool:
            await busy.jobs.append(job.fencing_token, tokens("a"))
            return bool((await ask(direct, f"STREAM.INFO.{name}_log"))["state"]["first_seq"] > 10)

        await until(is_shortened, WAIT_TIMEOUT)
        relay.drop()
        relay.go_on()
        await until(lambda: same(away, busy), WAIT_TIMEOUT)
        assert (await away.jobs.get(job.job_id)) is not None


async def test_a_damaged_snapshot_is_refused() -> None:
    address = shared().address()
    name = parse_nats_address(address).name
    async with opened(address, snapshot_messages=20) as store:
        job = await begun(store)

        async def has_snapshot() -> bool:
            await store.jobs.append(job.fencing_token, tokens("a"))
            return bool((await ask(address, f"STREAM.INFO.{name}_snapshots"))["state"]["messages"] >= 2)

        await until(has_snapshot, WAIT_TIMEOUT)
    subjects = (await ask(address, f"STREAM.INFO.{name}_snapshots", {"subjects_filter": ">"}))["state"]["subjects"]
    [chunk, *_] = [subject for subject in subjects if subject.endswith(".0")]
    await publish(address, chunk, b"\x78\x01\x03\x00\x00\x00\x00\x01")
    with pytest.raises(StoreCorrupt, match="snapshot"):
        await NatsStore.open(settings_from_address(address))


async def test_a_value_of_ten_megabytes_goes_to_all_nodes() -> None:
    address = shared().address()
    text = "x" * (10 << 20)
    async with opened(address) as here, opened(address) as there:
        job = await begun(here)
        await here.jobs.append(job.fencing_token, [Event("token", {"text": text})])
        await until(lambda: same(here, there), WAIT_TIMEOUT)
        page = await there.jobs.events(job.job_id)
        assert page.events[0].event.data["text"] == text
        await asyncio.gather(  # parts of two batches never mix
            here.jobs.append(job.fencing_token, [Event("token", {"text": text[: 3 << 20]})]),
            there.messages.append(new_message("percy", text=text[: 3 << 20])),
        )
        await until(lambda: same(here, there), WAIT_TIMEOUT)


def split_subscription(store: NatsStore, topic: str) -> list[bytes]:
    """The messages of a batch of another node that is too large for one."""
    batch = Batch(
        previous=store._parts.replica.batch_id, node="other", at=0.0, changes=1, topics=[],
        statements=[Statement("INSERT INTO subscriptions VALUES (?, ?)", [(topic, "agent:percy")])],
    )  # fmt: skip
    return split_batch(create_batch_id(), encode_batch(batch), 64)


async def test_a_node_lets_another_one_finish_a_batch_of_several_messages() -> None:
    address = shared().address()
    subject = f"{parse_nats_address(address).name}.log"
    async with opened(address) as store:
        *first, last = split_subscription(store, "news")
        for part in first:
            await publish(address, subject, part)
        await until(lambda: _is(store._parts.replica.is_inside_batch))
        accepting = asyncio.create_task(store.jobs.accept(new_job()))
        await publish(address, subject, last)
        await accepting
        assert await store.messages.list_topics() == [("news", 1)]

        for part in split_subscription(store, "sports")[:-1]:
            await publish(address, subject, part)  # and the other node dies
        await until(lambda: _is(store._parts.replica.is_inside_batch))
        await store.jobs.accept(new_job())
        assert await store.messages.list_topics() == [("news", 1)]
        async with opened(address) as other:
            assert await same(store, other)


async def test_a_value_that_is_too_large_is_refused_and_changes_nothing() -> None:
    async with opened(shared().address()) as store:
        job = await begun(store)
        before = await store.status()
        large, small = await asyncio.gather(
            store.jobs.append(job.fencing_token, [Event("token", {"text": "x" * (65 << 20)})]),
            store.messages.append(new_message("percy")),
            return_exceptions=True,
        )
        assert isinstance(large, BadInput)
        assert "64 MiB" in large.message
        assert not isinstance(small, BaseException)
        assert await log_of(store, job.job_id) == []
        assert (await store.status()).jobs == before.jobs


async def test_a_full_log_refuses_writes_and_frees_itself() -> None:
    async with opened(shared().address(options="max_bytes=300000")) as store:
        job = await begun(store)
        refused = 0

        async def is_through() -> bool:
            nonlocal refused
            try:
                await store.jobs.append(job.fencing_token, [Event("token", {"text": "y" * 20_000})])
            except StoreFull:
                refused += 1
            return refused > 0 and (await store.jobs.events(job.job_id)).last > 30

        await until(is_through, WAIT_TIMEOUT)
        numbers = [number for number, _ in await log_of(store, job.job_id)]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_newer_schema_is_refused() -> None:
    address = shared().address()
    async with opened(address) as store:
        await store.writer.run(
            lambda tx: tx.execute("INSERT INTO schema_migrations VALUES (999, '0999_later', 'x', 0.0)")
        )
    with pytest.raises(SchemaTooNew):
        await NatsStore.open(settings_from_address(address))


async def test_messages_of_another_program_in_the_log_are_refused() -> None:
    address = shared().address()
    name = parse_nats_address(address).name
    async with opened(address) as store:
        await begun(store)
        await publish(address, f"{name}.log", b"hello")

        async def is_refused() -> bool:
            try:
                await store.jobs.accept(new_job())
            except StoreUnusable as exc:
                return "cannot be read" in exc.message
            return False

        await until(is_refused, WAIT_TIMEOUT)
    with pytest.raises(StoreUnusable, match="cannot be read"):
        await NatsStore.open(settings_from_address(address))


async def test_statements_in_the_log_reach_nothing_outside_of_the_copy(tmp_path: Path) -> None:
    address = shared().address()
    name = parse_nats_address(address).name
    file = tmp_path / "written.db"
    async with opened(address) as store:
        batch = Batch(
            previous=store._parts.replica.batch_id, node="attacker", at=0.0, changes=0, topics=[],
            statements=[Statement("ATTACH DATABASE ? AS other", [(str(file),)])],
        )  # fmt: skip
        [message] = split_batch(create_batch_id(), encode_batch(batch), 1 << 20)
        await publish(address, f"{name}.log", message)
        with pytest.raises(StoreUnusable, match="not authorized"):
            await store.status()
    assert not file.exists()


async def test_a_node_whose_copy_differs_stops_writing_until_it_is_restarted() -> None:
    address = shared().address()
    async with opened(address) as here, opened(address) as there:
        jobs = [await begun(here) for _ in range(3)]
        await until(lambda: same(here, there))
        there._parts.replica._writer.execute("DELETE FROM jobs")  # as a fault of the disk would
        await here.jobs.append(jobs[0].fencing_token, tokens("a"))
        with pytest.raises(StoreUnusable, match="Restart the node"):
            await there.status()
        with pytest.raises(StoreUnusable, match="Restart the node"):
            await there.jobs.accept(new_job())
        async with opened(address) as restarted:
            assert await same(here, restarted)


async def test_a_stream_of_another_program_is_left_alone() -> None:
    address = shared().address()
    name = parse_nats_address(address).name
    config = {"name": f"{name}_log", "subjects": [f"{name}.other"], "storage": "memory"}
    await ask(address, f"STREAM.CREATE.{name}_log", config)
    with pytest.raises(StoreUnusable, match="was not made by this program"):
        await NatsStore.open(settings_from_address(address))


def users(permissions: str) -> str:
    return f"authorization {{ users: [{{ user: a, password: b, permissions: {{ {permissions} }} }}] }}"


@pytest.mark.parametrize(
    ("settings", "jetstream", "login", "options", "sentence"),
    [
        ("authorization { user: alice, password: right }", "sync_interval: always", "alice:guessed", "", "credentials"),
        ("authorization { user: alice, password: right }", "sync_interval: always", "", "", "credentials"),
        ("", "", "", "", "has no JetStream"),
        ("max_payload: 1000", "sync_interval: always", "", "", "max_payload"),
        ("", "sync_interval: always", "", "tls=true", "TLS"),
        ("", "sync_interval: always", "", "replicas=3", "single server"),
        ("", "sync_interval: always", "", "max_bytes=1000", "is full, so the node cannot start: raise `max_bytes`"),
        (users("publish: ['$JS.API.>']"), "sync_interval: always", "a:b", "", r"may not publish to \w+\.log\. A node"),
        (users("subscribe: ['other']"), "sync_interval: always", "a:b", "", "may not subscribe to _INBOX.>"),
    ],
)
async def test_a_server_that_does_not_fit_is_refused_with_a_reason(
    settings: str, jetstream: str, login: str, options: str, sentence: str
) -> None:
    server = NatsServer(settings, jetstream=jetstream).start()
    try:
        with pytest.raises(StoreUnusable, match=sentence) as refused:
            await NatsStore.open(settings_from_address(server.address(login=login, options=options)))
        assert "guessed" not in refused.value.message
    finally:
        server.remove()


async def test_an_old_server_is_refused() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.9.25", "max_payload": 1048576, "headers": true, "jetstream": true}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    old = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        address = f"nats://127.0.0.1:{old.sockets[0].getsockname()[1]}/old"
        with pytest.raises(StoreUnusable, match=r"2\.9\.25; the store needs 2\.10"):
            await NatsStore.open(settings_from_address(address))
    finally:
        old.close()


async def test_no_server_is_reported_with_the_next_step() -> None:
    settings = msgspec.structs.replace(settings_from_address("nats://user:secret@127.0.0.1:1/x"), timeout=0.2)
    with pytest.raises(StoreUnavailable, match="Is it running") as refused:
        await NatsStore.open(settings)
    assert "secret" not in refused.value.message


def test_the_clock_of_the_server_counts() -> None:
    clock = ServerClock()
    now = clock()
    info = msgspec.convert({"ts": "2040-01-01T00:00:00.123456789Z"}, StreamInfo)
    clock.adjust(info, now, now + 0.01)
    assert abs(clock() - 2208988800.123) < 1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    cluster = NatsCluster().start()
    try:
        yield cluster
    finally:
        cluster.remove()


async def test_a_new_stream_that_some_servers_do_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    address = shared().address()
    is_created, unknown = False, 3
    ask_server = JetStream.ask

    async def answer_late(jetstream: JetStream, subject: str, *values: Any, **options: Any) -> bytes:
        nonlocal is_created, unknown
        is_created = is_created or (subject.endswith("_log") and subject.startswith("STREAM.CREATE."))
        if is_created and unknown and subject.startswith("STREAM.INFO."):
            unknown -= 1
            raise JetStreamRefused(ApiError(404, STREAM_NOT_FOUND, "stream not found"))
        return await ask_server(jetstream, subject, *values, **options)

    monkeypatch.setattr(JetStream, "ask", answer_late)  # as nodes see it that start together on a new cluster
    async with opened(address) as store:
        await begun(store)
    assert unknown == 0


async def test_more_replicas_than_servers_are_refused(cluster: NatsCluster) -> None:
    async with opened(cluster.address()):  # it has begun to work
        with pytest.raises(StoreUnusable, match="fewer servers with JetStream than replicas"):
            await build(cluster.address(options="replicas=5&timeout=0.5"))


async def test_a_cluster_without_a_majority_is_reported() -> None:
    cluster = NatsCluster()
    try:
        cluster.servers[0].start()
        with pytest.raises(StoreUnavailable, match="more than half of the servers"):
            await build(cluster.address(options="timeout=0.5"))
    finally:
        cluster.remove()


@pytest.mark.parametrize(
    ("interval", "sentence"), [("always", ""), ('"2m"', r"n\d+ confirms writes before they are on disk .* 120 s")]
)
async def test_a_server_with_monitoring_is_asked_whether_it_writes_at_once(interval: str, sentence: str) -> None:
    port = free_port()
    server = NatsServer(f"http: 127.0.0.1:{port}", jetstream=f"sync_interval: {interval}").start()
    address = server.address(options=f"monitor=http://127.0.0.1:{port}")
    try:
        if not sentence:
            async with opened(address):
                return
        with pytest.raises(StoreUnusable, match=sentence):
            await build(address)
    finally:
        server.remove()


async def test_monitoring_that_does_not_answer_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(shared().address(options="monitor=http://127.0.0.1:1")):
        assert "http://127.0.0.1:1 cannot be asked" in caplog.text


async def test_a_conflict_with_a_message_that_was_never_stored_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    publish_message, conflicts = JetStream.publish, 2

    async def lose_race(
        jetstream: JetStream, subject: str, data: bytes, expected: int | None = None, *rest: Any
    ) -> int:
        nonlocal conflicts
        if expected is not None and conflicts:
            conflicts -= 1
            raise SequenceConflict(expected + 1)
        return await publish_message(jetstream, subject, data, expected, *rest)

    async with opened(shared().address(), timeout=2.0) as store:
        monkeypatch.setattr(JetStream, "publish", lose_race)  # as by a leader that dies with another node's message
        await begun(store)
    assert conflicts == 0


async def test_in_a_cluster_the_death_of_the_leader_loses_nothing(cluster: NatsCluster) -> None:
    name = new_name()
    address = cluster.address(name)
    async with opened(address, timeout=WAIT_TIMEOUT) as here, opened(address, timeout=WAIT_TIMEOUT) as there:
        info = await ask(address, f"STREAM.INFO.{name}_log")
        assert info["config"]["num_replicas"] == 3
        jobs = [await begun(store, lease=3600) for store in (here, there, here)]
        [leader] = [server for server in cluster.servers if server.name == info["cluster"]["leader"]]
        leader.kill()
        async with asyncio.timeout(2 * WAIT_TIMEOUT):
            for number in range(1, 4):
                for job, store in zip(jobs, (there, here, there), strict=True):
                    assert await store.jobs.append(job.fencing_token, tokens(str(number))) == number
        leader.start()
        await until(lambda: same(here, there), WAIT_TIMEOUT)
        for job in jobs:
            await here.jobs.release(job.fencing_token, completed())


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("nats://h/x?replicas=2", "1, 3 or 5"),
        ("nats://h/x?colour=red", "no option `colour`"),
        ("nats://h/a.b", "letters"),
        ("nats://", "names one or more hosts"),
        ("nats://u:p@h/x?token=t", "several credentials"),
        ("nats://h/x?token=env:NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE"),
        ("nats://h/x?nkey=SUnot", "not the seed"),
        ("nats://h/x?creds=/nowhere/at.all", "cannot be read"),
        ("nats://h/x?ca=/nowhere/at.all", "TLS files"),
        ("nats://h/x?timeout=0", "seconds"),
        ("nats://h/x?monitor=h:8222", "http://HOST:8222"),
    ],
)
async def test_a_wrong_address_is_refused_with_a_reason(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await build(address)


async def test_leases_end_by_one_clock_on_all_nodes() -> None:
    address = shared().address()
    async with opened(address) as here, opened(address) as there:
        job = await begun(here, lease=3600)
        assert await there.jobs.take_over(HoldRequest(worker="there", lease=60)) == []
        there._parts.writer.clock._offset += 120  # a node whose own clock is two minutes ahead
        assert abs(here._parts.writer.clock() + 120 - there._parts.writer.clock()) < 1
        await there._parts.writer._applier.read_info(asyncio.get_running_loop().time() + 5)
        assert abs(here._parts.writer.clock() - there._parts.writer.clock()) < 1
        assert await here.jobs.append(job.fencing_token, tokens("a")) == 1
