"""The shipped contract suite of stores, against every engine of the product."""

from __future__ import annotations

import asyncio

from a2a_fabric.core.errors import BadInput
from a2a_fabric.testing.store_contract import StoreContract, UsedTokenStoreContract
from tests.contracts.stores import Engine, new_job, opened


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
