from __future__ import annotations

import asyncio
import time

import pytest

from tests.limit import TooLong, limited


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_test_that_waits_for_ever_is_ended_and_says_where_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TooLong), limited(0.05):
        asyncio.run(wait_for_ever())
    assert "in wait_for_ever" in capsys.readouterr().err


def test_an_outer_limit_holds_after_an_inner_one() -> None:
    def block() -> None:
        with limited(60):
            pass
        time.sleep(600)

    with pytest.raises(TooLong, match=r"after 0\.2 s"), limited(0.2):
        block()
