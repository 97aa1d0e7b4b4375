"""Signals that come while a node is still starting reach the handlers that it installs later."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from a2a_fabric.core.held_signals import hand_over_signals, hold_signals

HELD = (signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HELD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_came_early_is_handed_over_once_however_often_it_came() -> None:
    hold_signals()
    for number in (signal.SIGUSR1, signal.SIGUSR1):
        signal.raise_signal(number)
    ran: list[str] = []
    handlers = {signal.SIGHUP: lambda: ran.append("reload"), signal.SIGUSR1: lambda: ran.append("reopen")}
    hand_over_signals(handlers)
    hand_over_signals(handlers)
    assert ran == ["reopen"]
