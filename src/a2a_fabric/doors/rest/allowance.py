"""How many requests a caller may make, and what the headers of every reply say about it."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.doors.replying import Headers

_CALLERS_REMEMBERED = 10_000
_WINDOW = 60


class _Purse:
    """Tokens that refill evenly."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class Allowance:
    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = per_minute
        self._clock = clock
        self._purses: OrderedDict[str, _Purse] = OrderedDict()

    def take(self, caller: str) -> Headers:
        """One request more. The headers that tell what is left; RateLimited holds the same as `headers`."""
        if self._most is None:
            return []
        purse = self._purse(caller, self._most)
        is_allowed = purse.tokens >= 1
        if is_allowed:
            purse.tokens -= 1
        headers = _headers(self._most, purse.tokens)
        if is_allowed:
            return headers
        wait = (1 - purse.tokens) * _WINDOW / self._most
        raise TooMany(f"More than {self._most} requests a minute; try again in {wait:.1f} s", wait, headers)

    def _purse(self, caller: str, most: int) -> _Purse:
        now = self._clock()
        purse = self._purses.get(caller)
        if purse is None:
            purse = self._purses[caller] = _Purse(float(most), now)
            if len(self._purses) > _CALLERS_REMEMBERED:
                self._purses.popitem(last=False)
        self._purses.move_to_end(caller)
        purse.tokens = min(float(most), purse.tokens + (now - purse.at) * most / _WINDOW)
        purse.at = now
        return purse


class TooMany(RateLimited):
    def __init__(self, message: str, retry_after: float, headers: Headers) -> None:
        super().__init__(message, retry_after)
        self.headers = headers


def _headers(most: int, tokens: float) -> Headers:
    """`reset` is when the whole allowance is there again; the old names and those of the IETF's draft."""
    left, reset = int(tokens), math.ceil((most - tokens) * _WINDOW / most)
    return [
        (b"x-ratelimit-limit", b"%d" % most),
        (b"x-ratelimit-remaining", b"%d" % left),
        (b"x-ratelimit-reset", b"%d" % reset),
        (b"ratelimit-policy", b'"default";q=%d;w=%d' % (most, _WINDOW)),
        (b"ratelimit", b'"default";r=%d;t=%d' % (left, reset)),
    ]
