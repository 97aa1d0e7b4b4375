"""The events of a session's streams, kept for a while, so that a client whose connection broke can resume.

Each session has its own log, because the SDK names a stream by the id of its request, which is unique in one session
only. A log is bounded in events and bytes, and all logs of a server together in bytes. A client that names an event
which is no longer kept, or never was, gets an empty stream."""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict
from contextvars import ContextVar
from typing import NamedTuple

from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

MAX_EVENTS = 256  # of one session
MAX_SESSION_BYTES = 4 * 1024 * 1024
MAX_TOTAL_BYTES = 64 * 1024 * 1024  # of all sessions of one server


class _KeptEvent(NamedTuple):
    stream_id: str
    message: JSONRPCMessage | None  # None: only a place to resume from
    size: int


class _Usage:
    """The bytes of one log, counted in the total until the log is gone with its session."""

    def __init__(self, total: list[int]) -> None:
        self.own = 0
        self.total = total

    def add(self, size: int) -> None:
        self.own += size
        self.total[0] += size

    def release(self) -> None:
        self.add(-self.own)


class SessionEventLog(EventStore):
    """The log of one session. The oldest events are dropped first."""

    def __init__(self, total: list[int]) -> None:
        self._prefix = secrets.token_hex(4)  # an event id of another session is unknown here
        self._count = 0
        self._events: OrderedDict[str, _KeptEvent] = OrderedDict()
        self._usage = _Usage(total)
        weakref.finalize(self, self._usage.release)

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = len(message.model_dump_json(by_alias=True, exclude_unset=True)) if message is not None else 0
        self._count += 1
        event_id = f"{self._prefix}-{self._count}"
        self._events[event_id] = _KeptEvent(stream_id, message, size)
        self._usage.add(size)
        while self._events and self._is_over_limit():
            _, dropped = self._events.popitem(last=False)
            self._usage.add(-dropped.size)
        return event_id

    def _is_over_limit(self) -> bool:
        usage = self._usage
        return (
            len(self._events) > MAX_EVENTS
            or usage.own > MAX_SESSION_BYTES
            or (usage.total[0] > MAX_TOTAL_BYTES and usage.own > 0)
        )

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what followed on the same stream. The stream's id, or None if nothing more can come on it."""
        last = self._events.get(last_event_id)
        if last is None:
            return None
        is_answered, is_after = False, False
        for event_id, event in list(self._events.items()):
            if is_after and event.stream_id == last.stream_id and event.message is not None:
                await send_callback(EventMessage(event.message, event_id))
            is_after = is_after or event_id == last_event_id
            if event.stream_id == last.stream_id:
                is_answered = is_answered or isinstance(event.message, JSONRPCResponse | JSONRPCError)
        return None if is_answered else last.stream_id


adopted_session: ContextVar[str | None] = ContextVar("adopted_mcp_session", default=None)


class ResumableSessionManager(StreamableHTTPSessionManager):
    """The SDK's manager, with one event log for each session instead of one for all.

    A session that is opened while `adopted_session` is set has that id. The ids of others end with `owner_tag`.
    """

    owner_tag = ""
    _total: list[int]

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        transport, name = super()._admit_session(requestor), adopted_session.get()
        if name is None and self.owner_tag and transport is not None and transport.mcp_session_id is not None:
            name = transport.mcp_session_id + self.owner_tag
        if transport is not None and name is not None and transport.mcp_session_id is not None:
            self._server_instances[name] = self._server_instances.pop(transport.mcp_session_id)
            self._session_owners[name] = self._session_owners.pop(transport.mcp_session_id)  # the door names one always
            transport.mcp_session_id = name
        return transport

    @property
    def event_store(self) -> EventStore:  # the SDK reads it once for each session
        return SessionEventLog(self._total)

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        self._total = [0]
