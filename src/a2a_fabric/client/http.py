"""JSON requests and event streams of one node, for the parts of the client that speak REST and JSON-RPC.

A request is repeated only if it certainly did not run, or if running it twice changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from itertools import count
from typing import Any, TypeVar

import msgspec

from a2a_fabric.client.wire import NodeUnreachable, error_from_transport, pause_before_retry
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.client import OutboundClient
from a2a_fabric.outbound.port import OutboundError

REPLY_BYTES = 64 * 1024 * 1024
STREAM_BYTES = 1024 * 1024 * 1024
_STREAM_SECONDS = 300.0  # then a new connection continues the stream
_RECONNECT_SECONDS = 60.0  # how long a node that is gone is tried
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

T = TypeVar("T")
ReadReply = Callable[[int, Any], Any]  # status and decoded body -> result; raises the error that the reply reports


class NodeHttp:
    """The address, headers and connections of a client."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float, http: OutboundClient) -> None:
        self.url = url
        self.timeout = timeout
        self._headers = headers
        self._http = http

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        read: ReadReply,
        repeatable: bool,
        timeout: float | None = None,
    ) -> Any:
        content = b"" if body is None else msgspec.json.encode(body)
        seconds = timeout or self.timeout

        async def send_once(time_left: float) -> Any:
            try:
                reply = await self._http.request(
                    method,
                    self.url + path,
                    headers={**self._headers, "accept": "application/json"},
                    body=content,
                    timeout=time_left,
                    limit=REPLY_BYTES,
                )
            except OutboundError as exc:
                raise error_from_transport(exc, self.url, seconds) from exc
            return read(reply.status, _decode(reply.status, reply.body))

        return await retry_request(send_once, seconds, read_only=repeatable)

    async def follow(
        self, open_stream: Callable[[int], tuple[str, str, Any]], read: ReadReply, after: int = 0
    ) -> AsyncGenerator[Any]:
        """The events of a stream that can be continued: `open_stream` makes the request for those after a number.

        `read` returns an event, which has a `number` if the stream can be continued after it, or None to skip one.
        """
        broken_at: float | None = None
        while True:
            try:
                async with aclosing(self._read_events(*open_stream(after), read)) as events:
                    async for event in events:
                        broken_at = None
                        after = event.get("number") or after
                        yield event
                return
            except (NodeUnreachable, UpstreamInterrupted) as error:
                broken_at = broken_at or time.monotonic()
                if error.trace_id is not None or time.monotonic() - broken_at > _RECONNECT_SECONDS:
                    raise
            await asyncio.sleep(0.5)

    async def _read_events(self, method: str, path: str, body: Any, read: ReadReply) -> AsyncGenerator[Any]:
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "accept": "text/event-stream, application/json"}
        try:
            async with self._http.stream(
                method, self.url + path, headers=headers, body=content, timeout=_STREAM_SECONDS, limit=STREAM_BYTES
            ) as reply:
                if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                    read(reply.status, _decode(reply.status, await reply.read()))
                    raise UpstreamFailed(f"The node at {self.url} did not send events")
                async for frame in sse.iter_event_data(reply.chunks(), limit=REPLY_BYTES):
                    event = read(reply.status, _decode(reply.status, frame))
                    if event is not None:
                        yield event
        except OutboundError as exc:
            raise error_from_transport(exc, self.url, _STREAM_SECONDS) from exc


def _decode(status: int, body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except _MALFORMED as exc:
        raise UpstreamFailed(f"The reply (HTTP {status}) is not one of a Fabric node: is this the right URL?") from exc


async def retry_request(send_once: Callable[[float], Awaitable[T]], timeout: float, *, read_only: bool) -> T:
    ends_at = time.monotonic() + timeout
    for attempt in count(1):
        try:
            return await send_once(ends_at - time.monotonic())
        except FabricError as error:
            await pause_or_raise(error, attempt, ends_at, read_only=read_only)
    raise AssertionError("the last attempt returns or raises")


async def pause_or_raise(error: FabricError, attempt: int, ends_at: float, *, read_only: bool = False) -> None:
    pause = pause_before_retry(error, attempt, read_only=read_only)
    if pause is None or time.monotonic() + pause >= ends_at:
        raise error
    await asyncio.sleep(pause)
