"""From any engine to any other, nothing lost and nothing doubled."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import JobOutcome
from a2a_fabric.core.registration import HealthCheck, RegistrationFilter
from a2a_fabric.core.stores import ArchiveRecord, Store
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


def comparable(records: list[ArchiveRecord]) -> list[str]:
    """Revisions are a store's own; everything else has to be the same."""
    found = [msgspec.to_builtins(record) for record in records]
    for record in found:
        record.get("registration", {}).pop("revision", None)
    return sorted(msgspec.json.encode(record, order="deterministic").decode() for record in found)


async def test_everything_goes_from_any_engine_to_any_other(engine: Engine, other_engine: Engine) -> None:
    async with opened(engine) as store, opened(other_engine) as other:
        await fill(store)
        lines = [line async for line in export_lines(store.archive)]
        first = await import_lines(other.archive, lines)
        again = await import_lines(other.archive, lines)
        assert first == ImportCounts(len(lines) - 2, len(lines) - 2)
        assert again == ImportCounts(len(lines) - 2, 0)
        assert comparable(await records_of(other)) == comparable(await records_of(store))


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
        lambda lines: [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]],
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
