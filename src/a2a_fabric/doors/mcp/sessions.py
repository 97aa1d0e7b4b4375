"""Open sessions of the handshake era: how many, whose, which is closed for a new one, which may be fast.

At the limit, the session that has been idle longest is closed, among those of the caller with the most
sessions. A session with a request in flight is not idle. A session that was opened and never used ends early.
A caller has at most its share: then one of its own sessions is closed for its next one. No session of a caller
with fewer sessions is ever closed for it. So a caller whose sessions are all in use leaves room for others.
A session is light until it needs the SDK (`light_sessions.py`), which then opens, keeps and ends it. Once
`notifications/initialized` has been accepted, a plain `tools/call` needs nothing of what the SDK keeps.

Invariants of fast sessions:
- A session is fast only after 202 was answered to its `notifications/initialized`, and only for the same
  principal and protocol version; 404, DELETE and `logging/setLevel` end that.
- A request id that is in flight on the fast path is not taken a second time; the SDK reports the duplicate.
- At least once in a quarter of the idle time a call goes to the SDK, so that the SDK does not take the session
  for idle while calls bypass it; the SDK knows nothing of light sessions.
- A session that was closed to make room is not fast any more, because `OpenSession.is_open` is shared."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from heapq import nlargest
from typing import TYPE_CHECKING

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import RateLimited
from a2a_fabric.core.limits import ANONYMOUS_CALLER, Share, follow_share, share_to_multiple
from a2a_fabric.core.shared_counts import SharedCounts, SharedUsage
from a2a_fabric.doors.edge import RequestHead
from a2a_fabric.protocols.mcp.wire import SESSION_HEADER_BYTES, VERSION_HEADER_BYTES, McpMessage, decode_or_none

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.light_sessions import LightSession

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 2.0  # seconds that a new session waits for the end of the one that is closed for it
_RETRY_AFTER = 5.0
_PURGE_INTERVAL = 10.0
_RANKED = 100  # callers; what each has in other processes takes some microseconds to find


MakeRoom = Callable[[str, int], Awaitable[bool]]


async def _do_nothing() -> None:
    pass


class OpenSession:
    """`requests` counts those in flight; open `streams` do not keep a session from being idle."""

    __slots__ = (
        "answered_requests",
        "can_show_apps",
        "client_name",
        "close",
        "is_open",
        "light",
        "name",
        "origin",
        "owner",
        "requests",
        "streams",
        "used_at",
    )

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        self.name: str | None = None
        self.client_name: str | None = None  # as the client calls itself; known when it has initialized
        self.can_show_apps = False
        self.light: LightSession | None = None  # until the SDK takes over
        self.origin: LightSession | None = None  # from then on: how it was opened, so that it can be opened again
        self.is_open = True
        self.requests = 1  # the one that opens it
        self.streams = 0
        self.answered_requests = 0
        self.used_at = now
        self.close: Callable[[], Awaitable[None]] = _do_nothing

    def forget_close(self) -> None:
        """What was to be closed has ended."""
        self.close = _do_nothing

    def finish_request(self, now: float) -> None:
        self.requests -= 1
        self.answered_requests += 1
        self.used_at = now


class OpenSessions:
    """At most `max_sessions` at a time. A session that was idle for `idle_timeout` seconds has ended by itself; one
    that was not used since it was opened is closed after `unused_timeout` seconds.
    """

    def __init__(
        self,
        description: str,
        max_sessions: int,
        idle_timeout: float = float("inf"),
        unused_timeout: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        *,
        share: Share = 1.0,
        counts: SharedCounts | None = None,
        make_room_elsewhere: MakeRoom | None = None,
    ) -> None:
        """`counts`: other processes of the node have sessions under the same limit. `make_room_elsewhere` asks them to
        close one for a caller that has so many, and says whether one did.
        """
        self.clock = clock
        self._make_room_elsewhere = make_room_elsewhere
        self._usage = None if counts is None else SharedUsage(counts, description)
        self._multiple = share_to_multiple(follow_share(share, self))
        self._description = description
        self._max_sessions = max_sessions
        self._idle_timeout = idle_timeout
        self._unused_timeout = unused_timeout
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._count = 0
        self._by_owner: dict[str, set[OpenSession]] = {}
        self._by_name: dict[str, OpenSession] = {}
        self._purged_at = float("-inf")
        self._closing: set[asyncio.Future[None]] = set()

    def set_share(self, share: float) -> None:
        self._multiple = share_to_multiple(share)

    def __len__(self) -> int:
        return self._count

    async def open(self, principal_id: str | None) -> OpenSession:
        """Open one more, with a request in flight. The caller sets its `close`, and calls `end` when it has ended.

        Raises RateLimited if no session can be closed for it.
        """
        owner = principal_id or ANONYMOUS_CALLER
        try:
            session, closing = self._admit(owner)
        except RateLimited:
            make_room = self._make_room_elsewhere
            if make_room is None or not await make_room(owner, self._count_held_by(owner)):
                raise
            session, closing = self._admit(owner)
        if closing is not None:
            try:
                await asyncio.wait({closing}, timeout=_CLOSE_TIMEOUT)
            except asyncio.CancelledError:
                self.end(session)
                raise
        return session

    def _admit(self, owner: str) -> tuple[OpenSession, asyncio.Future[None] | None]:
        """A new session, and the end of the one that is closed for it. Raises RateLimited."""
        session = OpenSession(owner, self.clock())
        self._add(session)  # before the others are looked at: two processes never both take the last place
        try:
            return session, self._close_one_for(owner)
        except RateLimited:
            self.end(session)
            raise

    def make_room(self, owner: str, held: int) -> bool:
        """Close a session for a caller who has `held` and opens one more in another process."""
        idlest = self._find_idlest(owner, held, is_full=self._count_all() >= self._max_sessions)
        if idlest is not None:
            self._close_idlest(idlest, owner)
        return idlest is not None

    def find(self, name: str) -> OpenSession | None:
        return self._by_name.get(name)

    def list_named(self) -> list[OpenSession]:
        return list(self._by_name.values())

    def restore(self, name: str, principal_id: str | None, idle_seconds: float) -> OpenSession | None:
        """Open a session of an earlier run again. None if it would have ended by now, or there are too many."""
        if idle_seconds > self._idle_timeout or self._count_all() >= self._max_sessions:
            return None
        session = OpenSession(principal_id or ANONYMOUS_CALLER, self.clock() - idle_seconds)
        session.requests, session.answered_requests = 0, 2  # it was used before
        self._add(session)
        self.set_name(session, name)
        return session

    def _add(self, session: OpenSession) -> None:
        self._by_owner.setdefault(session.owner, set()).add(session)
        self._count += 1
        self._publish(session.owner)
        if self._sweep_timer is None and self._unused_timeout < float("inf"):
            self._sweep_timer = asyncio.get_running_loop().call_later(self._unused_timeout / 2, self._sweep)

    def set_name(self, session: OpenSession, name: str) -> None:
        session.name = name
        self._by_name[name] = session

    def finish_request(self, session: OpenSession) -> None:
        """A request in the session has been answered."""
        session.finish_request(self.clock())

    def end(self, session: OpenSession) -> None:
        """The session has ended. A second call changes nothing."""
        if not session.is_open:
            return
        session.is_open = False
        self._count -= 1
        if session.name is not None:
            self._by_name.pop(session.name, None)
        owned = self._by_owner[session.owner]
        owned.discard(session)
        if not owned:
            del self._by_owner[session.owner]
        self._publish(session.owner)

    def _publish(self, owner: str) -> None:
        if self._usage is not None:
            self._usage.publish(owner, len(self._by_owner.get(owner, ())), self._count)

    def _count_all(self) -> int:
        return self._count + (0 if self._usage is None else self._usage.count_others())

    def _count_held_by(self, owner: str) -> int:
        return len(self._by_owner.get(owner, ())) + (0 if self._usage is None else self._usage.count_others(owner))

    def _close_one_for(self, owner: str) -> asyncio.Future[None] | None:
        """For a new session of this caller, which is counted already. Raises RateLimited."""
        if self._count_all() > self._max_sessions:
            self._purge()
        free = self._max_sessions - self._count_all() + 1
        held = self._count_held_by(owner) - 1
        if held < self._multiple * free:
            return None
        idlest = self._find_idlest(owner, held, is_full=free <= 0)
        if idlest is None:
            raise self._make_refusal(held, free)
        return self._close_idlest(idlest, owner)

    def _close_idlest(self, session: OpenSession, owner: str) -> asyncio.Future[None]:
        self.end(session)
        idle = self.clock() - session.used_at
        _log.info("Closed a session of %s, idle for %.0f s, to open one for %s", session.owner, idle, owner)
        return self._close(session)

    def _make_refusal(self, held: int, free: int) -> RateLimited:
        usage = f"All {self._max_sessions} {self._description} are in use"
        if free > 0:
            usage = f"This caller has {held} of {self._max_sessions} {self._description}, which is its share"
        return RateLimited(f"{usage}; try again in {_RETRY_AFTER:g} s", _RETRY_AFTER)

    def _close(self, session: OpenSession) -> asyncio.Future[None]:
        closing = asyncio.ensure_future(_close_logged(session))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    def _sweep(self) -> None:
        """Close sessions that were opened and never used. Repeats as long as there are sessions."""
        self._sweep_timer = None
        idle = self._list_idle(self._unused_timeout)
        unused = [each for each in idle if each.answered_requests <= 1]  # `initialize`
        expired = [each for each in self._list_idle(self._idle_timeout) if each.answered_requests > 1]
        for session in (*unused, *expired):
            self.end(session)
            self._close(session)
        if unused:
            _log.info("Closed %d sessions that were opened and not used for %.0f s", len(unused), self._unused_timeout)
        if self._count:
            self._sweep_timer = asyncio.get_running_loop().call_later(self._unused_timeout / 2, self._sweep)

    def _find_idlest(self, owner: str, held: int, *, is_full: bool) -> OpenSession | None:
        """The session of this process to close for a new one of `owner`, who has `held` in all: one of its own if some
        are still free, else the idlest of the callers with the most sessions, as long as they have more than `owner`.
        """
        best: OpenSession | None = None
        session_count = 0
        for count, name in self._rank_owners(owner, held):
            if count < session_count:
                break
            if name != owner and not (is_full and count > held):
                continue
            owned = self._by_owner[name]
            idle = min((each for each in owned if not each.requests), key=lambda each: each.used_at, default=None)
            if idle is not None and (best is None or idle.used_at < best.used_at):
                best, session_count = idle, count
        return best

    def _rank_owners(self, owner: str, held: int) -> list[tuple[int, str]]:
        """How many sessions the callers with most of them have: in all processes, but only those with most in this one
        are looked at.
        """
        if self._usage is None:
            names = list(self._by_owner)
        else:
            names = nlargest(_RANKED, self._by_owner, key=lambda name: len(self._by_owner[name]))
            if owner in self._by_owner and owner not in names:
                names.append(owner)
        counts = [(held if name == owner else self._count_held_by(name), name) for name in names]
        return sorted(counts, key=lambda each: each[0], reverse=True)

    def _purge(self) -> None:
        """Forget sessions that ended unnoticed, because their clients never sent `notifications/initialized`."""
        now = self.clock()
        if now - self._purged_at < _PURGE_INTERVAL:
            return
        self._purged_at = now
        for session in self._list_idle(self._idle_timeout):
            self.end(session)

    def _list_idle(self, timeout: float) -> list[OpenSession]:
        """The sessions without a request or a stream for longer than this."""
        return [
            each
            for owned in self._by_owner.values()
            for each in owned
            if not each.requests and not each.streams and self.clock() - each.used_at > timeout
        ]


async def _close_logged(session: OpenSession) -> None:
    try:
        await session.close()
    except Exception:
        _log.exception("A session of %s could not be closed", session.owner)


_MAX_FAST_SESSIONS = 10_000
FAST_VERSIONS = frozenset({"2025-06-18", "2025-11-25"})  # results look alike since the first of them

RequestId = str | int


class FastSession:
    """A session, and its calls that are on the fast path now."""

    __slots__ = ("_cancelled", "open_session", "principal", "running", "sdk_used_at", "version")

    def __init__(
        self, principal: Principal, version: str | None, sdk_used_at: float, open_session: OpenSession | None = None
    ) -> None:
        self.principal = principal
        self.version = version
        self.sdk_used_at = sdk_used_at  # by the SDK
        self.open_session = open_session
        self.running: dict[RequestId, asyncio.Task[object]] = {}
        self._cancelled: set[RequestId] | None = None

    def start_request(self, request_id: RequestId, task: asyncio.Task[object]) -> None:
        self.running[request_id] = task
        if self.open_session is not None:
            self.open_session.requests += 1

    def finish_request(self, request_id: RequestId, now: float) -> None:
        self.running.pop(request_id, None)
        if self.open_session is not None:
            self.open_session.finish_request(now)

    def cancel(self, request_id: RequestId) -> None:
        task = self.running.get(request_id)
        if task is not None:
            self._cancelled = {*(self._cancelled or ()), request_id}
            task.cancel()

    def pop_cancellation(self, request_id: RequestId) -> bool:
        """Whether the client cancelled the request, and did not only disconnect."""
        if self._cancelled is None or request_id not in self._cancelled:
            return False
        self._cancelled.discard(request_id)
        return True


class _CancelledParams(msgspec.Struct):
    request_id: RequestId = msgspec.field(name="requestId", default="")


class FastSessions:
    """The SDK ends a session after `idle_timeout` seconds; `find_open_session` finds an open one by its id."""

    def __init__(
        self,
        idle_timeout: float,
        clock: Callable[[], float] = time.monotonic,
        find_open_session: Callable[[str], OpenSession | None] = lambda name: None,
    ) -> None:
        self._max_age = idle_timeout / 4
        self._clock = clock
        self._find_open_session = find_open_session
        self._sessions: OrderedDict[str, FastSession] = OrderedDict()

    def find(self, head: RequestHead, request_id: RequestId, principal: Principal) -> FastSession | None:
        """The session in which a call or list may take the fast path; None if it must go to the SDK."""
        session_id, version = head.get(SESSION_HEADER_BYTES), head.get(VERSION_HEADER_BYTES)
        if session_id is None or version not in FAST_VERSIONS:
            return None
        session = self._sessions.get(session_id)
        if (
            session is None
            or (session.principal is not principal and session.principal != principal)
            or session.version != version
            or request_id in session.running
        ):
            return None
        if session.open_session is not None and not session.open_session.is_open:
            del self._sessions[session_id]
            return None
        return session if self._clock() - session.sdk_used_at < self._max_age else None

    def observe_reply(self, head: RequestHead, message: McpMessage | None, principal: Principal, status: int) -> None:
        """Note the SDK's answer to a request in a session; `message` is None when the client ended it."""
        session_id = head.get(SESSION_HEADER_BYTES)
        session = self._sessions.get(session_id) if session_id is not None else None
        if session_id is None or (session is not None and session.principal != principal):
            return  # of another principal, who got an error
        if message is None or status == 404 or message.method == "logging/setLevel":  # log messages need streams
            self._sessions.pop(session_id, None)
        elif message.method == "notifications/initialized" and status == 202:
            open_session = self._find_open_session(session_id)
            used_at = float("inf") if open_session is not None and open_session.light is not None else self._clock()
            version = head.get(VERSION_HEADER_BYTES)
            self._sessions[session_id] = FastSession(principal, version, used_at, open_session)
            if len(self._sessions) > _MAX_FAST_SESSIONS:
                self._sessions.popitem(last=False)
        elif session is not None:
            session.sdk_used_at = self._clock()
            self._sessions.move_to_end(session_id)

    def observe_cancellation(self, head: RequestHead, message: McpMessage, principal: Principal) -> None:
        """End a fast call that the client cancels. The notification still goes to the SDK, which answers it."""
        if message.method != "notifications/cancelled":
            return
        session = self._sessions.get(head.get(SESSION_HEADER_BYTES) or "")
        if session is None or session.principal != principal:
            return
        params = decode_or_none(message.params, _CancelledParams)
        if params is not None:
            session.cancel(params.request_id)
