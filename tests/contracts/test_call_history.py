"""The call history keeps its bounds in every kind of store: by number, by size and by age."""

from __future__ import annotations

from a2a_fabric.core.spans import CallFilter, StoredCall
from a2a_fabric.core.stores import Store
from a2a_fabric.telemetry.history import HistoryPruner
from a2a_fabric.telemetry.settings import HistorySettings
from tests.contracts.stores import Engine, opened, until

NOW = 1_000_000.0


def new_calls(*numbers: int, body: bytes = b"{}") -> list[StoredCall]:
    """One a second, the last one now."""
    return [
        StoredCall(trace_id=f"t{number}", span_id="s", started_at=NOW - (numbers[-1] - number), owner="psk", body=body)
        for number in numbers
    ]


async def list_traces(store: Store) -> list[str]:
    return [call.trace_id for call in await store.calls.list(CallFilter(), limit=10_000)]


async def test_the_oldest_calls_go_by_number_size_and_age(store: Store) -> None:
    await store.calls.append(new_calls(*range(20), body=b"x" * 1000))
    assert await store.calls.prune(0.0, 15, 1 << 20) == 5
    assert (await list_traces(store))[-1] == "t5"
    assert await store.calls.prune(0.0, 15, 10_000) == 5
    assert (await list_traces(store))[-1] == "t10"
    assert await store.calls.prune(NOW - 4, 15, 10_000) == 5
    assert await list_traces(store) == ["t19", "t18", "t17", "t16", "t15"]
    assert await store.calls.prune(NOW - 4, 15, 10_000) == 0


async def test_a_pruning_goes_on_in_batches_and_with_the_oldest(store: Store) -> None:
    await store.calls.append(new_calls(*range(10)))
    assert [await store.calls.prune(0.0, 3, 1 << 20, limit=4) for _ in range(3)] == [4, 3, 0]
    assert await list_traces(store) == ["t9", "t8", "t7"]


async def test_processes_that_share_a_store_hold_its_bounds_together(shared_engine: Engine) -> None:
    """They are woken by what they write, and do not wait for the half minute that passes otherwise."""
    settings = HistorySettings(keep_calls=100, keep_bytes=1 << 20, keep_seconds=1e6)
    async with opened(shared_engine) as first, opened(shared_engine) as second:
        pruners = [HistoryPruner(store.calls, settings, lambda: NOW) for store in (first, second)]
        for pruner in pruners:
            pruner.start()
        for begin in range(0, 2000, 50):
            for number, (store, pruner) in enumerate(zip((first, second), pruners, strict=True)):
                records = new_calls(*range(begin + number * 25, begin + number * 25 + 25))
                await store.calls.append(records)
                pruner.note_written(records)

        async def is_within_bounds() -> bool:
            return len(await list_traces(second)) <= settings.keep_calls

        await until(is_within_bounds)
        assert (await list_traces(second))[0] == "t1999"  # it wrote the last one
        for pruner in pruners:
            await pruner.aclose()


async def test_a_few_large_calls_are_pruned_as_soon_as_many_small_ones(store: Store) -> None:
    settings = HistorySettings(keep_calls=10_000, keep_bytes=100_000, keep_seconds=1e6)
    pruner = HistoryPruner(store.calls, settings, lambda: NOW)
    pruner.start()
    for begin in range(0, 200, 10):
        records = new_calls(*range(begin, begin + 10), body=b"x" * 5000)
        await store.calls.append(records)
        pruner.note_written(records)

    async def is_within_bounds() -> bool:
        return len(await list_traces(store)) <= 20

    await until(is_within_bounds)
    await pruner.aclose()
