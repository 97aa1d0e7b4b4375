"""Callback URLs of this node, at which agents report on calls that are still running.

A callback belongs to one call and closes with it. A request with the right key and token wakes
that call and can do nothing else. Its body is stored unchanged, up to a size limit, and the
runtime interprets it."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

CALLBACK_PATH = "/callbacks/"

_MAX_OPEN = 10_000  # at a time; further calls get no callback
_MAX_CLOSED = 1000  # that are still known, because agents may still report
_MAX_NOTIFICATIONS = 16  # unread ones of one call; beyond that the oldest are dropped
_MAX_NOTIFICATION_BYTES = 8 * 1024  # a longer notification wakes the call without its content


class Callback:
    """`url` and `token` are for the agent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = secrets.token_urlsafe(32)
        self._notifications: deque[bytes] = deque(maxlen=_MAX_NOTIFICATIONS)
        self._wakeup = asyncio.Event()
        self._is_closed = False

    async def receive(self, timeout: float) -> list[bytes]:
        """The notifications since the last time, as soon as there is one; none after `timeout` seconds.

        A notification that was too long is empty.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wakeup.wait()
        notifications = list(self._notifications)
        self._notifications.clear()
        if not self._is_closed:
            self._wakeup.clear()
        return notifications

    def deliver(self, notification: bytes) -> None:
        if not self._is_closed:
            self._notifications.append(notification if len(notification) <= _MAX_NOTIFICATION_BYTES else b"")
            self._wakeup.set()

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.set()
        self._notifications.clear()


class Callbacks:
    """`public_url` is how agents reach this node; without it, only agents that can reach its listening address."""

    def __init__(self, public_url: str | None = None, *, limit: int = _MAX_OPEN, owner_tag: str = "") -> None:
        self._public_url = public_url
        self._owner_tag = owner_tag  # the end of keys, by which other processes of the node know whose they are
        self._listen_url: str | None = None  # set when the node listens
        self._limit = limit
        self._open_callbacks: dict[str, Callback] = {}
        self._closed_callbacks: dict[str, Callback] = {}

    @property
    def open_count(self) -> int:
        return len(self._open_callbacks)

    def set_listen_url(self, url: str) -> None:
        """Called when the node listens. 0.0.0.0 is no address to connect to, so it becomes the loopback address."""
        parts = urlsplit(url)
        if _has_ip_property(parts.hostname, "is_unspecified"):
            host = "[::1]" if ":" in (parts.hostname or "") else "127.0.0.1"
            url = urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))
        self._listen_url = url

    @contextmanager
    def open_callback(self, *, is_local: bool) -> Iterator[Callback | None]:
        """A callback for an agent, on this machine if it `is_local`; None if the agent could reach none."""
        base_url = self._base_url(is_local=is_local)
        if base_url is None or len(self._open_callbacks) >= self._limit:
            yield None
            return
        key = secrets.token_urlsafe(16) + self._owner_tag
        callback = self._open_callbacks[key] = Callback(f"{base_url.rstrip('/')}{CALLBACK_PATH}{key}")
        try:
            yield callback
        finally:
            self._close(key)

    def find(self, key: str, token: str) -> Callback | None:
        """The callback with this key, if the token is right; also one that was just closed and ignores content."""
        callback = self._open_callbacks.get(key) or self._closed_callbacks.get(key)
        if callback is None or not hmac.compare_digest(callback.token.encode(), token.encode("utf-8", "replace")):
            return None
        return callback

    @property
    def browser_url(self) -> str | None:
        """How a browser reaches this node, on this machine unless the operator has set a public address."""
        return self._base_url(is_local=True)

    def _base_url(self, *, is_local: bool) -> str | None:
        if self._public_url is not None:
            return self._public_url
        if self._listen_url is None or (
            not is_local and _has_ip_property(urlsplit(self._listen_url).hostname, "is_loopback")
        ):
            return None
        return self._listen_url

    def _close(self, key: str) -> None:
        callback = self._closed_callbacks[key] = self._open_callbacks.pop(key)
        callback.close()
        while len(self._closed_callbacks) > _MAX_CLOSED:
            del self._closed_callbacks[next(iter(self._closed_callbacks))]


def _has_ip_property(host: str | None, name: str) -> bool:
    try:
        return bool(getattr(ip_address(host or ""), name))
    except ValueError:
        return host == "localhost" and name == "is_loopback"
