"""The shipped contract suite of stores, against every engine of the product."""

from __future__ import annotations

import asyncio
from pathlib import Path

from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.spans import StoredCall
from a2a_fabric.testing.store_contract import StoreContract, UsedTokenStoreContract
from tests.contracts.stores import Engine, SqliteEngine, new_job, opened


async def test_the_size_of_a_file_has_what_sqlite_has_not_moved_into_it_yet(tmp_path: Path) -> None:
    async with opened(SqliteEngine(tmp_path)) as store:
        await store.calls.append(
            [StoredCall(trace_id="t", span_id="s", started_at=1.0, owner="psk", body=bytes(300_000))]
        )
        assert ((await store.status()).bytes or 0) > 300_000


class TestStore(StoreContract, UsedTokenStoreContract):
    """`store` is the fixture of conftest.py: each engine in turn."""


async def test_text_that_cannot_be_kept_is_refused_and_its_neighbours_are_kept(shared_engine: Engine) -> None:
    async with opened(shared_engine) as store:
        jobs = [new_job(), new_job(owner="psk:\ud800"), new_job()]
        asked = [*map(store.jobs.accept, jobs), store.messages.subscribe("\ud800", "agent:percy")]
        first, second, third, fourth = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(second, BadInput)
        assert isinstance(fourth, BadInput)
        assert "cannot store" in second.message
        assert [getattr(each, "is_new", each) for each in (first, third)] == [True, True]
