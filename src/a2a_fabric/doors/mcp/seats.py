"""Sessions of the handshake era in which plain calls may take the short way.

The SDK opens, keeps and ends sessions. Once it has taken the `initialized` of one, a plain
`tools/call` in it needs nothing of what the SDK keeps; now and then one still goes to the
SDK, so that it does not take the session for idle.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.mcp.jsonrpc import Message
from a2a_fabric.doors.mcp.open_sessions import OpenSession

_KEPT = 10_000
_VERSIONS = frozenset({"2025-06-18", "2025-11-25"})  # results look alike since the first of them
_SESSION = b"mcp-session-id"
_VERSION = b"mcp-protocol-version"

RequestId = str | int


class Seat:
    """One session, and the calls that take the short way in it now."""

    def __init__(
        self, principal: Principal, version: str | None, seen_at: float, session: OpenSession | None = None
    ) -> None:
        self.principal = principal
        self.version = version
        self.seen_at = seen_at  # by the SDK
        self.session = session
        self.running: dict[RequestId, asyncio.Task[object]] = {}
        self._cancelled: set[RequestId] = set()

    def begin(self, request_id: RequestId, task: asyncio.Task[object]) -> None:
        self.running[request_id] = task
        if self.session is not None:
            self.session.requests += 1

    def end(self, request_id: RequestId, now: float) -> None:
        self.running.pop(request_id, None)
        session = self.session
        if session is not None:
            session.requests -= 1
            session.uses += 1
            session.used_at = now

    def cancel(self, request_id: RequestId) -> None:
        task = self.running.get(request_id)
        if task is not None:
            self._cancelled.add(request_id)
            task.cancel()

    def was_cancelled(self, request_id: RequestId) -> bool:
        """Whether the client has said so, and not only left."""
        if request_id not in self._cancelled:
            return False
        self._cancelled.discard(request_id)
        return True


class _Cancelled(msgspec.Struct):
    request_id: RequestId = msgspec.field(name="requestId", default="")


class Seats:
    """`idle` is after how many seconds the SDK ends a session; `open_session` finds one that is open by its id."""

    def __init__(
        self,
        idle: float,
        clock: Callable[[], float] = time.monotonic,
        open_session: Callable[[str], OpenSession | None] = lambda name: None,
    ) -> None:
        self._fresh = idle / 4
        self._clock = clock
        self._open_session = open_session
        self._seats: OrderedDict[str, Seat] = OrderedDict()

    def find(self, head: Head, message: Message, principal: Principal) -> Seat | None:
        """Where this request may take the short way; None if the SDK should see it."""
        session, version = head.get(_SESSION), head.get(_VERSION)
        if session is None or version not in _VERSIONS or message.method != "tools/call" or not message.is_request:
            return None
        seat = self._seats.get(session)
        if seat is None or seat.principal != principal or seat.version != version or message.id in seat.running:
            return None
        if seat.session is not None and not seat.session.is_open:
            del self._seats[session]
            return None
        return seat if self._clock() - seat.seen_at < self._fresh else None

    def note(self, head: Head, message: Message | None, principal: Principal, status: int) -> None:
        """What the SDK answered to a request in a session; `message` is None when the client ended it."""
        session = head.get(_SESSION)
        seat = self._seats.get(session) if session is not None else None
        if session is None or (seat is not None and seat.principal != principal):  # whose 404 it was
            return
        if message is None or status == 404 or message.method == "logging/setLevel":  # who wants logs wants streams
            self._seats.pop(session, None)
        elif message.method == "notifications/initialized" and status == 202:
            self._seats[session] = Seat(principal, head.get(_VERSION), self._clock(), self._open_session(session))
            if len(self._seats) > _KEPT:
                self._seats.popitem(last=False)
        elif seat is not None:
            seat.seen_at = self._clock()
            self._seats.move_to_end(session)

    def hear(self, head: Head, message: Message, principal: Principal) -> None:
        """A call that the client no longer wants ends; the SDK, which does not know of it, answers."""
        if message.method != "notifications/cancelled":
            return
        seat = self._seats.get(head.get(_SESSION) or "")
        if seat is None or seat.principal != principal:
            return
        try:
            seat.cancel(msgspec.json.decode(message.params, type=_Cancelled).request_id)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return
