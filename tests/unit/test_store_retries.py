"""How long a caller waits for a store that is away."""

from __future__ import annotations

import asyncio

import pytest

from a2a_fabric.core.errors import CallTimeout, StoreFull, StoreUnavailable
from a2a_fabric.core.stores import call_store_within, retry_store_call, retry_store_call_for
from a2a_fabric.core.tasks import Deadline


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_store_that_says_nothing_is_given_up_with_a_typed_error() -> None:
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0.05 s; a change .* may have been made"):
        await call_store_within(0.05, never)
    with pytest.raises(StoreUnavailable):
        await retry_store_call_for(0.01, call_store_within, 0.05, never)


async def test_a_store_that_comes_back_is_asked_again() -> None:
    troubles = [StoreUnavailable("gone"), StoreUnavailable("gone")]

    async def ask() -> str:
        if troubles:
            raise troubles.pop()
        return "here"

    assert await retry_store_call(ask) == "here"


async def test_what_waiting_does_not_mend_is_told_at_once() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise StoreFull("sqlite:x")

    with pytest.raises(StoreFull):
        await retry_store_call(ask)
    assert asked == 1


async def test_the_callers_own_deadline_stays_the_callers() -> None:
    with pytest.raises(CallTimeout), Deadline(0.05):
        await retry_store_call(never)
