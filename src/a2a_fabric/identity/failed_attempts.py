"""Slows down sources that send wrong credentials again and again.

Only the refusal waits. Valid credentials are never delayed, whatever others behind the same address do, and no source
is ever shut out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from a2a_fabric.core.errors import AuthInvalid
from a2a_fabric.core.node_limits import build_buckets
from a2a_fabric.core.shared_counts import SharedCounts

MAX_DELAY = 5.0  # seconds
_MIN_DELAY = 0.5
_MAX_WAITING = 2000  # refusals; each of them holds a connection
_NETWORK_BITS = 64  # one customer has at least so many IPv6 addresses


class FailedAttempts:
    """`per_minute` refusals of one source are not delayed. The sources that failed last are remembered."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic, counts: SharedCounts | None = None
    ) -> None:
        self._clock = clock
        self._counts = counts
        self._waiting = 0
        self._buckets = build_buckets(counts, "failed attempts", per_minute, clock)

    def set_rate(self, per_minute: int) -> None:
        if per_minute != self._buckets.per_minute:
            self._buckets = build_buckets(self._counts, "failed attempts", per_minute, self._clock)

    def find_delay(self, address: str) -> float:
        """Count a failure of this address; the seconds by which its refusal is to be delayed."""
        _, wait = self._buckets.take(find_source(address))
        return min(max(wait, _MIN_DELAY), MAX_DELAY) if wait else 0.0

    async def delay(self, error: BaseException, address: str) -> None:
        """Wait before this refusal is sent, if it is one of wrong credentials, and the source has sent many."""
        if not isinstance(error, AuthInvalid) and not isinstance(error.__cause__, AuthInvalid):
            return
        delay = self.find_delay(address)
        if not delay or self._waiting >= _MAX_WAITING:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1


def find_source(address: str) -> str:
    """What counts as one source: an address, or the network of one customer."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if not isinstance(parsed, IPv6Address) or parsed.ipv4_mapped is not None:
        return str(getattr(parsed, "ipv4_mapped", None) or parsed)
    return str(IPv6Address(int(parsed) >> _NETWORK_BITS << _NETWORK_BITS))
