"""Streams on which light sessions wait for notifications, without the SDK: there each takes ten times the memory.

A light session gets no other messages than that a list has changed. When the SDK takes over the session, its stream
goes on: the same HTTP reply continues with what the SDK sends.

Invariants:
- The task of the client's request alone writes to its stream. Others only note what is to be sent, and wake it.
- What is noted is bounded: a client that does not read gets each kind of change once.
- Many streams are woken in slices, so that requests are answered in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Literal

from a2a_fabric.core.call import Principal
from a2a_fabric.core.logins import find_login_owner
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.mcp.request import PING_FRAME, PING_INTERVAL, STREAM_HEADERS, encode_frame
from a2a_fabric.protocols.mcp.wire import SESSION_HEADER_BYTES

if TYPE_CHECKING:
    from a2a_fabric.doors.mcp.http import McpCycle

ChangedList = Literal["tools", "resources", "prompts"]
StreamEnd = Literal["ended", "handed over"]
LISTS: tuple[ChangedList, ...] = ("tools", "resources", "prompts")
_NOTIFICATIONS = {
    kind: encode_frame(b'{"jsonrpc":"2.0","method":"notifications/%b/list_changed"}' % kind.encode()) for kind in LISTS
}


class LightStream:
    __slots__ = ("_changed", "_end", "_needs_ping", "_waiter", "owner")

    def __init__(self, principal: Principal) -> None:
        self.owner = find_login_owner(principal)  # of the logins of the caller that listens
        self._changed: set[ChangedList] = set()
        self._needs_ping = False
        self._end: StreamEnd | None = None
        self._waiter: asyncio.Future[None] | None = None

    def notify(self, kinds: Collection[ChangedList]) -> None:
        self._changed.update(kinds)
        self._wake()

    def ping(self) -> None:
        self._needs_ping = True
        self._wake()

    def end(self, how: StreamEnd = "ended") -> None:
        self._end = self._end or how
        self._wake()

    async def aclose(self) -> None:
        self.end()

    async def write(self, cycle: McpCycle, session_name: str) -> StreamEnd:
        """Answer the client's request, until the stream ends or the SDK goes on with it."""
        headers = [*STREAM_HEADERS, (SESSION_HEADER_BYTES, session_name.encode()), *cycle.build_headers()]
        cycle.has_replied = True
        await cycle.send({"type": "http.response.start", "status": 200, "headers": headers})
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": True})
        while True:
            frames = [_NOTIFICATIONS[kind] for kind in LISTS if kind in self._changed]
            if self._needs_ping and not frames:
                frames.append(PING_FRAME)
            self._changed.clear()
            self._needs_ping = False
            if frames:
                await cycle.send({"type": "http.response.body", "body": b"".join(frames), "more_body": True})
            elif self._end is not None:
                break
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        if self._end == "ended":
            await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
        return self._end

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LightStreams:
    """The open ones of all light sessions, by the server at which they were opened."""

    def __init__(self) -> None:
        self._streams: dict[str, set[LightStream]] = {}
        self._ping_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    @property
    def servers(self) -> Collection[str]:
        """Those at which there are any."""
        return self._streams.keys()

    def add(self, server: str, stream: LightStream) -> None:
        self._streams.setdefault(server, set()).add(stream)
        if self._is_stopping:
            stream.end()
        if self._ping_task is None:
            self._ping_task = asyncio.ensure_future(self._ping_forever())

    def remove(self, server: str, stream: LightStream) -> None:
        streams = self._streams[server]
        streams.discard(stream)
        if not streams:
            del self._streams[server]
        if not self._streams and self._ping_task is not None:
            self._ping_task.cancel()
            self._ping_task = None

    def notify(self, server: str, kinds: Collection[ChangedList]) -> None:
        """These lists of a server have changed."""
        streams = self._streams.get(server)
        if kinds and streams:
            self._spawn(streams, lambda stream: stream.notify(kinds))

    def notify_owner(self, owner: str) -> None:
        """What agents offer to the caller with these logins has changed."""
        found = [each for streams in self._streams.values() for each in streams if each.owner == owner]
        self._spawn(found, lambda stream: stream.notify(LISTS))

    def end_all(self, server: str | None = None) -> None:
        """End the streams of one server, or all."""
        for name, streams in self._streams.items():
            if server in (None, name):
                for stream in streams:
                    stream.end()

    def stop(self) -> None:
        """End all, and at once those that are opened later."""
        self._is_stopping = True
        self.end_all()

    def _spawn(self, streams: Iterable[LightStream], do: Callable[[LightStream], None]) -> None:
        task = asyncio.ensure_future(_apply_to_each(streams, do))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ping_forever(self) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL)
            await _apply_to_each([each for streams in self._streams.values() for each in streams], LightStream.ping)


async def _apply_to_each(streams: Iterable[LightStream], do: Callable[[LightStream], None]) -> None:
    async for some in iterate_in_slices(tuple(streams)):
        for stream in some:
            do(stream)
