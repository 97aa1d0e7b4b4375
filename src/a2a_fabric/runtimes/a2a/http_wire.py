"""Requests and event streams to one A2A agent by the node's own HTTP client; what they say is others' business."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from a2a_fabric.core.errors import AgentOffline, CallTimeout, FabricError, UpstreamRefused
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import DeadlineExceeded, HTTPClient, OutboundError, Reply, ReplyTooLarge, StreamedReply
from a2a_fabric.runtimes.a2a.endpoint import Version, public
from a2a_fabric.runtimes.a2a.line import Errand
from a2a_fabric.runtimes.a2a.refusals import TRANSPORT_ERRORS

_NO_LIMIT = 2**62  # streams are bounded by event, and by what is kept of them
_EXTENSIONS: dict[Version, str] = {"1.0": "A2A-Extensions", "0.3": "X-A2A-Extensions"}


def headers_for(version: Version, own: Mapping[str, str], extensions: tuple[str, ...]) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept": "application/json", "A2A-Version": version}
    if extensions:
        headers[_EXTENSIONS[version]] = ", ".join(extensions)
    return {**headers, **own}


class HTTPWire:
    def __init__(self, client: HTTPClient, url: str, headers: Mapping[str, str], reply_bytes: int) -> None:
        self.url = url
        self._client = client  # belongs to the node
        self._headers = headers
        self._reply_bytes = reply_bytes
        self._upstream = public(url)

    async def ask(self, method: str, url: str, body: bytes | None, errand: Errand) -> Reply:
        """Raises FabricError if there is no reply; any status is one."""
        headers = {**self._headers, **errand.headers}
        try:
            return await self._client.request(
                method, url, headers=headers, body=body, timeout=errand.timeout, limit=self._reply_bytes
            )
        except OutboundError as exc:
            raise self._ours(exc, errand) from exc

    async def events(
        self, method: str, url: str, body: bytes | None, errand: Errand
    ) -> AsyncGenerator[bytes | Reply, None]:
        """The data of each event; or, if the agent does not stream after all, its one reply."""
        headers = {**self._headers, **errand.headers, "accept": "text/event-stream, application/json;q=0.5"}
        try:
            async with self._client.stream(
                method, url, headers=headers, body=body, timeout=errand.timeout, limit=_NO_LIMIT
            ) as reply:
                if not _is_stream(reply):
                    yield Reply(reply.status, reply.headers, await self._bounded(reply))
                    return
                async with aclosing(sse.data_of(reply.chunks(), limit=self._reply_bytes)) as events:
                    async for data in events:
                        if data.strip():
                            try:
                                yield data
                            except GeneratorExit:  # all is said; a stream that is left in peace keeps its connection
                                return
        except OutboundError as exc:
            raise self._ours(exc, errand) from exc

    async def is_there(self) -> bool:
        """Any answer below 500 is a sign of life, even if it only says that one asks in the wrong way."""
        try:
            reply = await self.ask("GET", self.url, None, Errand(timeout=5.0))
        except UpstreamRefused:
            return True
        except FabricError as exc:
            raise AgentOffline(exc.sentence, **exc.details) from exc
        return reply.status < 500

    async def _bounded(self, reply: StreamedReply) -> bytes:
        body = bytearray()
        async for chunk in reply.chunks():
            body += chunk
            if len(body) > self._reply_bytes:
                raise ReplyTooLarge(f"the reply is larger than {self._reply_bytes} bytes")
        return bytes(body)

    def _ours(self, exc: OutboundError, errand: Errand) -> FabricError:
        """What went wrong, in our words and with the place where."""
        if isinstance(exc, DeadlineExceeded):
            return CallTimeout(errand.timeout, upstream=self._upstream)
        kind = next(ours for theirs, ours in TRANSPORT_ERRORS.items() if isinstance(exc, theirs))
        return kind(str(exc)[:500], upstream=self._upstream)


def _is_stream(reply: StreamedReply) -> bool:
    is_well = 200 <= reply.status < 300
    return is_well and reply.headers.get("content-type", "").lower().startswith("text/event-stream")
