"""What is said of a server that stays away: a node that runs tries again, a command that could not begin does not."""

from __future__ import annotations

import pytest

from a2a_fabric.core.errors import StoreUnavailable
from a2a_fabric.stores.postgres.errors import STARTUP_ADVICE, ServerRetry


async def refused() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


async def test_who_opens_a_store_in_vain_is_asked_about_its_address_and_promised_nothing() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await ServerRetry(0.05, "postgresql://db/fabric", STARTUP_ADVICE).run(refused)
    assert caught.value.message.endswith("Connection refused. Is it running, and is the address right?")


async def test_who_uses_an_open_store_is_told_that_it_is_tried_again() -> None:
    with pytest.raises(StoreUnavailable, match=r"Connection refused; the node keeps trying$"):
        await ServerRetry(0.05, "postgresql://db/fabric").run(refused)
