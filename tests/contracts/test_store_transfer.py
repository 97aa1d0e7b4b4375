"""From any engine to any other, nothing lost and nothing doubled."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from a2a_fabric.core.errors import BadInput, Conflict
from a2a_fabric.core.job import JobFilter, JobOutcome
from a2a_fabric.core.keys import NewKey
from a2a_fabric.core.receipts import StoredReceipt
from a2a_fabric.core.registration import HealthCheck, RegistrationFilter
from a2a_fabric.core.spans import CallFilter, StoredCall
from a2a_fabric.core.stores import ArchiveRecord, Store
from a2a_fabric.stores.sqlite import MemoryStore
from a2a_fabric.stores.transfer import ImportCounts, export_lines, import_lines
from tests.contracts.stores import (
    ENGINES,
    Engine,
    begun,
    claim_request,
    completed,
    log_of,
    new_job,
    new_message,
    opened,
    records_of,
    tokens,
)
from tests.unit.made import agent


@pytest.fixture(params=list(ENGINES))
def other_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    folder = tmp_path / "other"
    folder.mkdir()
    made: Callable[[Path], Engine] = ENGINES[request.param]
    return made(folder)


async def fill(store: Store) -> None:
    """Something of everything, in every state."""
    done = await begun(store, new_job(key="k", digest="d", meta={"a": 1}, retention=99.0))
    await store.jobs.append(done.fencing_token, tokens("a", "b"))
    await store.jobs.release(done.fencing_token, completed("42", "c"))
    asked = await begun(store)
    await store.jobs.release(asked.fencing_token, JobOutcome(state="input_required", question={"q": 1}))
    await begun(store)
    await store.jobs.accept(new_job(run_at=9e9))
    await store.registrations.register(agent("percy", "reason", tags=("x",)), "psk:alice", lease=3600)
    await store.registrations.register(agent("gone"), "psk:alice")
    await store.registrations.remove("gone", "psk:alice")
    await store.health.append([HealthCheck(agent_id="percy", status="online", checked_at=5.0, latency=0.5)])
    await store.messages.subscribe("news", "agent:percy")
    await store.messages.publish("news", new_message("coder", key="m"))
    await store.messages.append(new_message("percy"))
    await store.messages.receive("agent:coder", hold=3600)
    await store.calls.append([new_call("t1"), new_call("t2", is_failed=True, body=b"\xff")])
    await store.receipts.append(chain_of("node-1", 3))
    await store.keys.add(NewKey(key_id="key-1", name="reader", digest=b"\x01" * 32, scopes=("jobs:read",)))
    await store.keys.add(NewKey(key_id="key-2", name="gone", digest=b"\x02" * 32, scopes=("*",), view="v"))
    await store.keys.revoke("gone")


def new_call(trace_id: str, **fields: Any) -> StoredCall:
    return StoredCall(trace_id=trace_id, span_id="s", started_at=1.5, owner="psk:alice", **{"body": b"{}", **fields})


def chain_of(chain: str, count: int, first: int = 1, previous: str | None = None) -> list[StoredReceipt]:
    """Receipts that refer to each other as signed ones do."""
    made = []
    for seq in range(first, first + count):
        body = msgspec.json.encode({"seq": seq, "prev": previous})
        previous = f"{chain}-{seq}"
        made.append(StoredReceipt(chain=chain, seq=seq, at=float(seq), digest=previous, body=body))
    return made


def comparable(records: list[ArchiveRecord]) -> list[str]:
    """Revisions and the numbers of calls are a store's own; everything else has to be the same."""
    found = [msgspec.to_builtins(record) for record in records]
    for record in found:
        record.get("registration", {}).pop("revision", None)
        record.get("call", {}).pop("seq", None)
    return sorted(msgspec.json.encode(record, order="deterministic").decode() for record in found)


async def test_everything_goes_from_any_engine_to_any_other(engine: Engine, other_engine: Engine) -> None:
    async with opened(engine) as store, opened(other_engine) as other:
        await fill(store)
        lines = [line async for line in export_lines(store.archive, with_keys=True)]
        first = await import_lines(other.archive, lines)
        again = await import_lines(other.archive, lines)
        assert first == ImportCounts(len(lines) - 2, len(lines) - 2)
        assert again == ImportCounts(len(lines) - 2, 0)
        assert comparable(await records_of(other)) == comparable(await records_of(store))
        assert await other.keys.list() == await store.keys.list()
        assert [key.describe_state(time.time()) for key in await other.keys.list()] == ["revoked", "active"]
        assert await other.receipts.append(chain_of("node-1", 1, first=4, previous="node-1-3"))
        assert [call.trace_id for call in await other.calls.list(CallFilter())] == ["t2", "t1"]


async def test_keys_go_along_only_if_they_are_asked_for(store: Store) -> None:
    await fill(store)
    assert not [line async for line in export_lines(store.archive) if b'"kind":"key"' in line]


async def test_an_import_brings_no_key_back_that_was_revoked_since(store: Store) -> None:
    await fill(store)
    lines = [line async for line in export_lines(store.archive, with_keys=True)]
    await store.keys.revoke("reader")
    assert (await import_lines(store.archive, lines)).new == 0
    assert {key.describe_state(time.time()) for key in await store.keys.list()} == {"revoked"}


async def test_receipts_are_added_to_their_own_chain_only(store: Store) -> None:
    source = MemoryStore()
    await source.receipts.append(chain_of("node-1", 3))
    older = [line async for line in export_lines(source.archive)]
    await source.receipts.append(chain_of("node-1", 2, first=4, previous="node-1-3"))
    newer = [line async for line in export_lines(source.archive)]
    assert await import_lines(store.archive, older) == ImportCounts(3, 3)
    assert await import_lines(store.archive, newer) == ImportCounts(5, 2)
    await store.receipts.prune(0.0, most=1)
    assert await import_lines(store.archive, newer) == ImportCounts(5, 0)
    await source.jobs.accept(new_job())
    await source.receipts.append(chain_of("node-1", 2, first=6, previous="another"))
    strange = [line async for line in export_lines(source.archive)]
    with pytest.raises(Conflict, match="other receipts in the chain 'node-1'"):
        await import_lines(store.archive, strange)
    assert [each.seq for each in await store.receipts.read()] == [5]
    assert len((await store.jobs.list(JobFilter())).jobs) == 1  # what came before them was imported
    await source.aclose()


async def test_an_imported_store_works_on_where_the_other_stopped(engine: Engine, other_engine: Engine) -> None:
    async with opened(engine) as store, opened(other_engine) as other:
        await fill(store)
        running = await begun(store, new_job(task="mine"))
        await store.jobs.append(running.fencing_token, tokens("one"))
        await import_lines(other.archive, [line async for line in export_lines(store.archive)])
        assert await other.jobs.append(running.fencing_token, tokens("two")) == 2
        assert await log_of(other, running.job_id) == [(1, "one"), (2, "two")]
        assert not (await other.jobs.accept(new_job(key="k", digest="d"))).is_new
        assert (await other.messages.append(new_message())).message.number == 3
        assert len(await other.messages.receive("agent:percy", limit=9)) == 2
        assert [row.agent_id for row in await other.registrations.list(RegistrationFilter(tag="x"))] == ["percy"]
        await other.jobs.accept(new_job(task="fresh"))
        assert [job.call.input.task for job in await other.jobs.claim(claim_request(limit=9))] == ["fresh"]


async def test_a_job_that_goes_on_while_it_is_exported_goes_on_where_it_is_imported(
    engine: Engine, other_engine: Engine
) -> None:
    async with opened(engine) as store, opened(other_engine) as other:
        job = await begun(store)
        await store.jobs.append(job.fencing_token, tokens("a"))
        lines = []
        async with aclosing(export_lines(store.archive)) as exported:
            async for line in exported:
                lines.append(line)
                if b'"kind":"job"' in line:
                    await store.jobs.append(job.fencing_token, tokens("b"))
        await import_lines(other.archive, lines)
        assert await other.jobs.append(job.fencing_token, tokens("c")) == 2
        assert await log_of(other, job.job_id) == [(1, "a"), (2, "c")]


async def test_a_large_store_is_exported_without_being_held_in_memory(shared_engine: Engine) -> None:
    many, large = 30, "x" * (1 << 20)
    async with opened(shared_engine) as store:
        told = await begun(store)
        for _ in range(many):
            job = await begun(store)
            await store.jobs.release(job.fencing_token, completed(large))
            await store.jobs.append(told.fencing_token, tokens(large))
            await store.messages.append(new_message(text=large))
        tracemalloc.start()
        try:
            size = sum([len(line) async for line in export_lines(store.archive)])
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size > 3 * many * len(large)
    assert most < 20 * len(large)


async def test_numbers_of_messages_that_are_gone_stay_used_where_they_are_imported(
    engine: Engine, other_engine: Engine
) -> None:
    async with opened(engine) as store, opened(other_engine) as other:
        for _ in range(3):
            await store.messages.append(new_message())
        await store.messages.append(new_message(conversation="conv_2"))
        await store.messages.prune(time.time() + 60)
        await store.messages.append(new_message(conversation="conv_2"))
        lines = [line async for line in export_lines(store.archive)]
        assert await import_lines(other.archive, lines) == ImportCounts(2, 2)
        assert await import_lines(other.archive, lines) == ImportCounts(2, 0)
        assert (await other.messages.append(new_message())).message.number == 4
        assert (await other.messages.append(new_message(conversation="conv_2"))).message.number == 3
        assert await import_lines(other.archive, lines) == ImportCounts(2, 0)


async def test_a_later_export_adds_nothing_to_a_job_that_is_there(engine: Engine, other_engine: Engine) -> None:
    async with opened(engine) as store, opened(other_engine) as other:
        job = await begun(store)
        await store.jobs.append(job.fencing_token, tokens("a"))
        await import_lines(other.archive, [line async for line in export_lines(store.archive)])
        await store.jobs.append(job.fencing_token, tokens("b"))
        await import_lines(other.archive, [line async for line in export_lines(store.archive)])
        assert await log_of(other, job.job_id) == [(1, "a")]
        assert await other.jobs.append(job.fencing_token, tokens("c")) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [],
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda lines: [*lines, lines[1]],
        lambda lines: [lines[0], b"{not json}\n", *lines[1:]],
        lambda lines: [lines[0], b'{"kind":"surprise"}\n', *lines[1:]],
        lambda lines: [lines[0], b"\xff\xfe\n", *lines[1:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0].replace(b'"version":2', b'"version":3'), *lines[1:]],
        lambda lines: [lines[0].replace(b"a2a-fabric", b"something"), *lines[1:]],
    ],
)
async def test_a_spoilt_export_is_refused_with_its_reason(
    store: Store, spoil: Callable[[list[bytes]], list[bytes]]
) -> None:
    await fill(store)
    lines = [line async for line in export_lines(store.archive)]
    with pytest.raises(BadInput):
        await import_lines(store.archive, spoil(lines))
