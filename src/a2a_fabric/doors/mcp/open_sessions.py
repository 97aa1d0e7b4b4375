"""How many sessions are open and whose they are; when there are too many, one is closed to make room.

It is the idlest session of the caller who has most of them. A session with a request in flight is not idle. So a
caller that leaves a thousand sessions behind loses some of its own, and nobody is kept from opening one. A session
that was opened and then left alone ends soon: its memory is for those who use theirs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.shares import ANONYMOUS

_log = logging.getLogger(__name__)
_CLOSE_WITHIN = 2.0  # seconds that a new session waits for the end of the one that is closed for it
_RETRY_AFTER = 5.0
_PURGE_EVERY = 10.0


async def _nothing() -> None:
    pass


class OpenSession:
    """`requests` are those in flight; `streams` that wait for news do not keep a session from being idle."""

    __slots__ = ("close", "is_open", "name", "owner", "requests", "streams", "used_at", "uses")

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        self.name: str | None = None
        self.is_open = True
        self.requests = 1  # the one that opens it
        self.streams = 0
        self.uses = 0  # requests that were answered
        self.used_at = now
        self.close: Callable[[], Awaitable[None]] = _nothing


class OpenSessions:
    """At most `most` at a time. One that was idle for `idle` seconds has ended by itself; one in which nothing was
    asked since it was opened is closed after `unused` seconds.
    """

    def __init__(
        self,
        many: str,
        most: int,
        idle: float = float("inf"),
        unused: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._many = many
        self._most = most
        self._idle = idle
        self._unused = unused
        self._sweep_due: asyncio.TimerHandle | None = None
        self._number = 0
        self._by_owner: dict[str, set[OpenSession]] = {}
        self._by_name: dict[str, OpenSession] = {}
        self._purged_at = float("-inf")
        self._closing: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return self._number

    async def open(self, principal_id: str | None) -> OpenSession:
        """One more, with a request in flight; whoever opens it says how to `close` it, and when it has ended.

        Raises RateLimited if no session can be closed for it.
        """
        session = OpenSession(principal_id or ANONYMOUS, self.clock())
        closed = self._close_for(session)
        self._by_owner.setdefault(session.owner, set()).add(session)
        self._number += 1
        if self._sweep_due is None and self._unused < float("inf"):
            self._sweep_due = asyncio.get_running_loop().call_later(self._unused / 2, self._sweep)
        if closed is not None:
            try:
                await asyncio.wait({closed}, timeout=_CLOSE_WITHIN)
            except asyncio.CancelledError:
                self.end(session)
                raise
        return session

    def find(self, name: str) -> OpenSession | None:
        return self._by_name.get(name)

    def give_name(self, session: OpenSession, name: str) -> None:
        session.name = name
        self._by_name[name] = session

    def answered(self, session: OpenSession) -> None:
        """A request in it is over."""
        session.requests -= 1
        session.uses += 1
        session.used_at = self.clock()

    def end(self, session: OpenSession) -> None:
        """It is no more. Twice changes nothing."""
        if not session.is_open:
            return
        session.is_open = False
        self._number -= 1
        if session.name is not None:
            self._by_name.pop(session.name, None)
        own = self._by_owner[session.owner]
        own.discard(session)
        if not own:
            del self._by_owner[session.owner]

    def _close_for(self, new: OpenSession) -> asyncio.Future[None] | None:
        """Raises RateLimited."""
        if self._number >= self._most:
            self._purge()
        if self._number < self._most:
            return None
        idlest = self._idlest_of_most()
        if idlest is None:
            raise RateLimited(
                f"All {self._most} {self._many} are in use; try again in {_RETRY_AFTER:g} s", _RETRY_AFTER
            )
        self.end(idlest)
        idle = self.clock() - idlest.used_at
        _log.info("closed a session of %s, idle for %.0f s, to make room for %s", idlest.owner, idle, new.owner)
        return self._close(idlest)

    def _close(self, session: OpenSession) -> asyncio.Future[None]:
        closing = asyncio.ensure_future(_closed(session))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    def _sweep(self) -> None:
        """Close what was opened and never used; again as long as there are sessions."""
        self._sweep_due = None
        now = self.clock()
        unused = [
            each
            for own in self._by_owner.values()
            for each in own
            if each.uses <= 1  # `initialize`
            and not each.requests
            and not each.streams
            and now - each.used_at > self._unused
        ]
        for session in unused:
            self.end(session)
            self._close(session)
        if unused:
            _log.info("closed %d sessions that were opened and not used for %.0f s", len(unused), self._unused)
        if self._number:
            self._sweep_due = asyncio.get_running_loop().call_later(self._unused / 2, self._sweep)

    def _idlest_of_most(self) -> OpenSession | None:
        """Of those who have equally many, the one who has not used one for longest."""
        best: OpenSession | None = None
        number = 0
        for own in sorted(self._by_owner.values(), key=len, reverse=True):
            if len(own) < number:
                break
            idle = min((each for each in own if not each.requests), key=lambda each: each.used_at, default=None)
            if idle is not None and (best is None or idle.used_at < best.used_at):
                best, number = idle, len(own)
        return best

    def _purge(self) -> None:
        """Forget those of whose end nobody told: their clients never said that they were ready."""
        now = self.clock()
        if now - self._purged_at < _PURGE_EVERY:
            return
        self._purged_at = now
        over = [
            each
            for own in self._by_owner.values()
            for each in own
            if not each.requests and not each.streams and now - each.used_at > self._idle
        ]
        for session in over:
            self.end(session)


async def _closed(session: OpenSession) -> None:
    try:
        await session.close()
    except Exception:
        _log.exception("a session of %s could not be closed", session.owner)
