"""The HTTP client of a probe: short, bounded requests; each page is fetched once and shared by all protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import (
    ConnectFailed,
    DeadlineExceeded,
    HTTPClient,
    HTTPReply,
    OutboundError,
    StreamedReply,
)
from a2a_fabric.protocols.jsonrpc import DECODE_ERRORS

_MAX_REPLY_BYTES = 8 * 1024 * 1024
_MAX_CONCURRENT = 8


class ProbeUnanswered(Exception):
    """There was no reply; the message says why."""

    def __init__(self, why: str, *, is_offline: bool = False, is_late: bool = False) -> None:
        super().__init__(why)
        self.is_offline = is_offline  # nothing listens there
        self.is_late = is_late  # it may still answer


class ProbeClient:
    """The client for one address. `aclose` cancels requests that are still running."""

    def __init__(self, http: HTTPClient, headers: Mapping[str, str], timeout: float) -> None:
        self._http = http
        self._headers = headers
        self.timeout = timeout
        self._pages: dict[str, asyncio.Task[HTTPReply]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def get_page(self, url: str) -> HTTPReply:
        """Raises ProbeUnanswered."""
        task = self._pages.get(url)
        if task is None:
            task = self._pages[url] = asyncio.ensure_future(self.send("GET", url, accept="application/json, */*;q=0.5"))
        return await asyncio.shield(task)

    async def get_json(self, url: str) -> Any:
        """None for a page that is missing or not JSON. Raises ProbeUnanswered."""
        reply = await self.get_page(url)
        return parse_json(reply) if reply.status == 200 else None

    async def send(self, method: str, url: str, body: Any = None, **headers: str) -> HTTPReply:
        """Raises ProbeUnanswered."""
        header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                self._slots,
                self._http.stream(
                    method,
                    url,
                    headers={**header_fields, **self._headers},
                    body=content,
                    timeout=self.timeout,
                    limit=_MAX_REPLY_BYTES,
                ) as reply,
            ):
                return HTTPReply(reply.status, reply.headers, await _read_start(reply))
        except OutboundError as exc:
            is_offline, is_late = isinstance(exc, ConnectFailed), isinstance(exc, DeadlineExceeded)
            raise ProbeUnanswered(str(exc)[:200], is_offline=is_offline, is_late=is_late) from exc

    async def aclose(self) -> None:
        await cancel_and_wait(*self._pages.values())


async def _read_start(reply: StreamedReply) -> bytes:
    """The whole body, but only the first event of a stream, which may never end."""
    if not sse.is_event_stream(reply.headers):
        return await reply.read()
    body, events = bytearray(), sse.SSEParser(_MAX_REPLY_BYTES)
    async for chunk in reply.chunks():
        body += chunk
        if any(events.feed(chunk)):
            break
    return bytes(body)


def parse_json(reply: HTTPReply) -> Any:
    """The JSON of a reply, or of its first event; None if it is not JSON."""
    body = reply.body
    if sse.is_event_stream(reply.headers):
        events = sse.SSEParser(_MAX_REPLY_BYTES)
        body = next(iter([*events.feed(body), *events.flush()]), b"")
    try:
        return msgspec.json.decode(body)
    except DECODE_ERRORS:
        return None


def url_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def url_base(url: str) -> str:
    """The URL without query and trailing slash, to which a path can be appended."""
    return url.partition("#")[0].partition("?")[0].rstrip("/")


def is_root_url(url: str) -> bool:
    return urlsplit(url).path in ("", "/")


def describe_status(reply: HTTPReply) -> str:
    if reply.status in (401, 403):
        return f"asks for credentials (HTTP {reply.status})"
    return f"HTTP {reply.status}" if reply.status != 200 else "something else answers"
