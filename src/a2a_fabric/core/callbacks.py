"""Addresses of this node at which agents leave word of the work that they were given.

An address belongs to one call and ends with it. Whoever knows it and its token wakes that call, and
can do no more; what they leave is kept as it came, short and bounded, for the runtime to judge.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

PATH = "/callbacks/"

_OPEN = 10_000  # at a time; calls beyond do without
_CLOSED = 1000  # that are still known: agents finish what they have to say
_NOTES = 16  # of one call that nobody has read yet; of more, the newest
_NOTE_BYTES = 8 * 1024  # longer ones only wake


class Callback:
    """`url` and `token` are for the agent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = secrets.token_urlsafe(32)
        self._notes: deque[bytes] = deque(maxlen=_NOTES)
        self._arrived = asyncio.Event()
        self._is_closed = False

    async def heard(self, within: float) -> list[bytes]:
        """What was left since the last time, as soon as there is something; nothing after so many seconds.

        Of a note that was too long, nothing is left but that there was one: it is empty.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._arrived.wait()
        notes = list(self._notes)
        self._notes.clear()
        if not self._is_closed:
            self._arrived.clear()
        return notes

    def leave(self, note: bytes) -> None:
        if not self._is_closed:
            self._notes.append(note if len(note) <= _NOTE_BYTES else b"")
            self._arrived.set()

    def close(self) -> None:
        self._is_closed = True
        self._arrived.set()
        self._notes.clear()


class Callbacks:
    """`public_url` is how agents reach this node; without it, only those that the place where it listens is for."""

    def __init__(self, public_url: str | None = None, *, limit: int = _OPEN) -> None:
        self._public = public_url
        self._own: str | None = None  # not known before the node listens
        self._limit = limit
        self._open: dict[str, Callback] = {}
        self._closed: dict[str, Callback] = {}

    @property
    def in_use(self) -> int:
        return len(self._open)

    def served_at(self, url: str) -> None:
        """The node listens there. Nobody connects to 0.0.0.0, but on this machine to what it stands for."""
        parts = urlsplit(url)
        if _is(parts.hostname, "is_unspecified"):
            host = "[::1]" if ":" in (parts.hostname or "") else "127.0.0.1"
            url = urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))
        self._own = url

    @contextmanager
    def opened(self, *, is_near: bool) -> Iterator[Callback | None]:
        """An address for an agent, on this machine if it `is_near`; None if there is none that it could reach."""
        base = self._base(is_near=is_near)
        if base is None or len(self._open) >= self._limit:
            yield None
            return
        key = secrets.token_urlsafe(16)
        callback = self._open[key] = Callback(f"{base.rstrip('/')}{PATH}{key}")
        try:
            yield callback
        finally:
            self._close(key)

    def find(self, key: str, token: str) -> Callback | None:
        """Of this key, if the token is its own; also one that was closed a moment ago, which takes no more notes."""
        callback = self._open.get(key) or self._closed.get(key)
        if callback is None or not hmac.compare_digest(callback.token.encode(), token.encode("utf-8", "replace")):
            return None
        return callback

    def _base(self, *, is_near: bool) -> str | None:
        if self._public is not None:
            return self._public
        if self._own is None or (not is_near and _is(urlsplit(self._own).hostname, "is_loopback")):
            return None
        return self._own

    def _close(self, key: str) -> None:
        callback = self._closed[key] = self._open.pop(key)
        callback.close()
        while len(self._closed) > _CLOSED:
            del self._closed[next(iter(self._closed))]


def _is(host: str | None, what: str) -> bool:
    try:
        return bool(getattr(ip_address(host or ""), what))
    except ValueError:
        return host == "localhost" and what == "is_loopback"
