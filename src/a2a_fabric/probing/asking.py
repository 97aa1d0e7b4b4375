"""Questions over HTTP for a probe: short, bounded, and each page is fetched once, whoever wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, HTTPClient, OutboundError, Reply, StreamedReply

_BYTES = 8 * 1024 * 1024
_AT_A_TIME = 8


class Unanswered(Exception):
    """No reply, and why."""

    def __init__(self, why: str, *, is_offline: bool = False, is_late: bool = False) -> None:
        super().__init__(why)
        self.is_offline = is_offline  # surely nobody is there
        self.is_late = is_late  # it may answer yet


class Asker:
    """For one address. `aclose` ends what is still being fetched."""

    def __init__(self, http: HTTPClient, headers: Mapping[str, str], timeout: float) -> None:
        self._http = http
        self._headers = headers
        self.timeout = timeout
        self._pages: dict[str, asyncio.Task[Reply]] = {}
        self._turn = asyncio.Semaphore(_AT_A_TIME)

    async def page(self, url: str) -> Reply:
        """Raises Unanswered."""
        task = self._pages.get(url)
        if task is None:
            task = self._pages[url] = asyncio.ensure_future(self.send("GET", url, accept="application/json, */*;q=0.5"))
        return await asyncio.shield(task)

    async def json(self, url: str) -> Any:
        """None for what is no JSON or not there. Raises Unanswered."""
        reply = await self.page(url)
        return json_in(reply) if reply.status == 200 else None

    async def send(self, method: str, url: str, body: Any = None, **headers: str) -> Reply:
        """Raises Unanswered."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                self._turn,
                self._http.stream(
                    method,
                    url,
                    headers={**named, **self._headers},
                    body=content,
                    timeout=self.timeout,
                    limit=_BYTES,
                ) as reply,
            ):
                return Reply(reply.status, reply.headers, await _beginning(reply))
        except OutboundError as exc:
            is_offline, is_late = isinstance(exc, ConnectFailed), isinstance(exc, DeadlineExceeded)
            raise Unanswered(str(exc)[:200], is_offline=is_offline, is_late=is_late) from exc

    async def aclose(self) -> None:
        tasks = list(self._pages.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _beginning(reply: StreamedReply) -> bytes:
    """All of it, but of a stream no more than its first event: it may go on for long."""
    if not _is_stream(reply.headers):
        return await reply.read()
    body, events = bytearray(), sse.Events(_BYTES)
    async for chunk in reply.chunks():
        body += chunk
        if any(events.feed(chunk)):
            break
    return bytes(body)


def _is_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").lower().startswith("text/event-stream")


def json_in(reply: Reply) -> Any:
    """The JSON of a reply, or of the first event in one; None if there is none."""
    body = reply.body
    if _is_stream(reply.headers):
        events = sse.Events(_BYTES)
        body = next(iter([*events.feed(body), *events.rest()]), b"")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def base_of(url: str) -> str:
    """Without query and last slash, to put a path behind."""
    return url.partition("#")[0].partition("?")[0].rstrip("/")


def is_root(url: str) -> bool:
    return urlsplit(url).path in ("", "/")


def refusal_in(reply: Reply) -> str:
    """What the status says to somebody who cannot see more."""
    if reply.status in (401, 403):
        return f"asks for credentials (HTTP {reply.status})"
    return f"HTTP {reply.status}" if reply.status != 200 else "something else answers"
