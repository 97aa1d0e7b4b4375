"""The events of a session's streams, kept for a while, so that a client whose connection broke can resume.

Each session has its own log, because the SDK names a stream by the id of its request, which is unique in one session
only. A log is bounded in events and bytes, and all logs of a server together in bytes. A client that names an event
which is no longer kept, or never was, gets an empty stream."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections import OrderedDict
from contextvars import ContextVar
from typing import NamedTuple

from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from a2a_fabric.doors.mcp.light_sessions import SavedEvent, SavedLog

MAX_EVENTS = 256  # of one session
MAX_SESSION_BYTES = 4 * 1024 * 1024
_POLL_PAUSE = 0.05  # seconds; only while a node stops
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
        self._ended_streams: set[str] = set()  # of an earlier run, without an answer: nothing more comes on them
        self._usage = _Usage(total)
        weakref.finalize(self, self._usage.release)

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = len(_encode(message)) if message is not None else 0
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

    def save(self) -> SavedLog:
        events = [
            SavedEvent(name, event.stream_id, None if event.message is None else _encode(event.message))
            for name, event in self._events.items()
        ]
        return SavedLog(self._prefix, self._count, events)

    def restore(self, saved: SavedLog) -> None:
        """Go on with the log of an earlier run. Raises ValueError if it cannot be read."""
        self._prefix, self._count = saved.prefix, saved.count
        for event in saved.events:
            text = event.message
            message = None if text is None else jsonrpc_message_adapter.validate_json(text, by_name=False)
            self._events[event.event_id] = _KeptEvent(event.stream_id, message, len(text or ""))
            self._usage.add(len(text or ""))
        self._ended_streams = self.list_open_streams()

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def list_open_streams(self) -> set[str]:
        """The requests that have events and no answer yet."""
        streams = {event.stream_id for event in self._events.values()} - {GET_STREAM_KEY} - self._ended_streams
        return {each for each in streams if not self._is_answered(each)}

    def _is_answered(self, stream_id: str) -> bool:
        own = (event.message for event in self._events.values() if event.stream_id == stream_id)
        return any(isinstance(each, JSONRPCResponse | JSONRPCError) for each in own)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what followed on the same stream. The stream's id, or None if nothing more can come on it."""
        last = self._events.get(last_event_id)
        if last is None:
            return None
        is_after = False
        for event_id, event in list(self._events.items()):
            if is_after and event.stream_id == last.stream_id and event.message is not None:
                await send_callback(EventMessage(event.message, event_id))
            is_after = is_after or event_id == last_event_id
        is_over = last.stream_id in self._ended_streams or self._is_answered(last.stream_id)
        return None if is_over else last.stream_id


def _encode(message: JSONRPCMessage) -> str:
    return message.model_dump_json(by_alias=True, exclude_unset=True)


adopted_session: ContextVar[str | None] = ContextVar("adopted_mcp_session", default=None)
adopted_events: ContextVar[SavedLog | None] = ContextVar("adopted_mcp_events", default=None)


class ResumableSessionManager(StreamableHTTPSessionManager):
    """The SDK's manager, with one event log for each session instead of one for all.

    A session that is opened while `adopted_session` is set has that id, and goes on with the events of
    `adopted_events`. The ids of others end with `owner_tag`.
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
        log, saved = SessionEventLog(self._total), adopted_events.get()
        if saved is not None:
            log.restore(saved)
        return log

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        self._total = [0]

    def save_events(self, name: str) -> SavedLog | None:
        """The events of a session; None if it has none."""
        log = self._find_log(name)
        return log.save() if log is not None and log.has_events else None

    async def wait_until_answered(self, timeout: float) -> None:
        """Until no call is under way whose client may come back for the reply. Its client may have disconnected, so
        nothing else waits for it.
        """
        ends_at = asyncio.get_running_loop().time() + timeout
        while asyncio.get_running_loop().time() < ends_at:
            logs = [self._find_log(name) for name in self._server_instances]
            if not any(log is not None and log.list_open_streams() for log in logs):
                return
            await asyncio.sleep(_POLL_PAUSE)

    def _find_log(self, name: str) -> SessionEventLog | None:
        transport = self._server_instances.get(name)
        log = None if transport is None else transport._event_store
        return log if isinstance(log, SessionEventLog) else None
