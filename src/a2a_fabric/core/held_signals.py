"""SIGHUP and SIGUSR1 of a node that has no handlers for them yet, or no longer.

By default they end a process, and a service manager or logrotate may send them while the node is still starting. So
`a2a-fabric up` holds them from its first moment, before its imports; the server's handlers get those that came."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

_received: set[int] = set()  # signals belong to the process, so this does too


def hold_signals() -> None:
    """Signals are not ignored, because programs that this process starts would ignore them, too."""
    if sys.platform != "win32":
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, _note)


def hand_over_signals(handlers: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """Run those of the handlers, which are installed by now, whose signal has come."""
    for number, handler in handlers.items():
        if number in _received:
            _received.discard(number)
            handler()


def _note(number: int, frame: Any) -> None:
    _received.add(number)
