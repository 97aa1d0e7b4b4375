"""The way to one other node: its wire door, through the shared HTTP client, under this node's key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from a2a_fabric.core.errors import AgentOffline, CallTimeout, FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, HTTPClient, OutboundError, ReplyTooLarge
from a2a_fabric.runtimes.fabric_wire import Frame, Said, read_frame, read_reply, request

_STREAM_BYTES = 2**62  # a stream is bounded by its time, each of its events by the size of a reply


class NodeWay:
    def __init__(self, name: str, uri: str, psk: str | None, http: HTTPClient, reply_bytes: int) -> None:
        self.name = name  # how this node calls the other
        self._address = f"{uri.rstrip('/')}/mcp/call"
        self._place = urlsplit(uri).netloc
        self._http = http  # belongs to whoever built us; we never close it
        self.reply_bytes = reply_bytes
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {psk}"} if psk else {})}

    async def ask(self, operation: str, arguments: dict[str, Any], timeout: float) -> Said:
        """Raises FabricError: what the node says went wrong, or what went wrong on the way to it."""
        try:
            reply = await self._http.request(
                "POST",
                self._address,
                headers={**self._headers, "accept": "application/json"},
                body=request(operation, arguments),
                timeout=timeout,
                limit=self.reply_bytes,
            )
            return read_reply(reply.status, reply.body)
        except OutboundError as exc:
            raise self._on_the_way(exc, timeout) from exc
        except FabricError as error:
            self.passed(error)
            raise

    @asynccontextmanager
    async def listen(
        self, operation: str, arguments: dict[str, Any], timeout: float
    ) -> AsyncIterator[AsyncIterator[Frame] | Said]:
        """The events of an operation, or its reply if the node sends none. Leaving the block ends it there too."""
        headers = {**self._headers, "accept": "text/event-stream, application/json;q=0.5"}
        body = request(operation, {**arguments, "stream": True})
        try:
            async with self._http.stream(
                "POST", self._address, headers=headers, body=body, timeout=timeout, limit=_STREAM_BYTES
            ) as reply:
                if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                    async with aclosing(_frames(reply.chunks(), self.reply_bytes)) as frames:
                        yield frames
                else:
                    yield read_reply(reply.status, await _bounded(reply.chunks(), self.reply_bytes))
        except OutboundError as exc:
            raise self._on_the_way(exc, timeout) from exc
        except FabricError as error:
            self.passed(error)
            raise

    def passed(self, error: FabricError) -> FabricError:
        """The same error, naming this hop before those behind it."""
        behind = error.details.get("hops")
        error.details["hops"] = [self.name, *(behind if isinstance(behind, list) else ())]
        error.details.setdefault("upstream", self._place)
        return error

    def _on_the_way(self, exc: OutboundError, timeout: float) -> FabricError:
        told = str(exc)[:500]
        if isinstance(exc, ConnectFailed):
            return self.passed(AgentOffline(f"Node '{self.name}' cannot be reached: {told}"))
        if isinstance(exc, DeadlineExceeded):
            return self.passed(CallTimeout(timeout))
        if isinstance(exc, ReplyTooLarge):
            return self.passed(UpstreamRefused(f"The answer of node '{self.name}' is too large: {told}"))
        return self.passed(UpstreamInterrupted(f"The connection to node '{self.name}' broke: {told}"))


async def _frames(chunks: AsyncIterator[bytes], limit: int) -> AsyncGenerator[Frame]:
    events = sse.Events(limit)
    async for chunk in chunks:
        for data in events.feed(chunk):
            yield read_frame(data)
    for data in events.rest():
        yield read_frame(data)


async def _bounded(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise ReplyTooLarge(f"larger than {limit} bytes")
    return bytes(body)
