"""Polling for replies that come later, at the address that the API names, ever less often.

An API asks for it by a 202 with an address (Location, Operation-Location or
Content-Location); `poll` in the manifest describes other APIs. Only addresses of the same
origin are polled. When the caller leaves, the work is cancelled if `poll.cancel` says how."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

import msgspec

from a2a_fabric.core.call import CallerEmitter, Emit
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.result import progress
from a2a_fabric.outbound.guard import parse_url
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError
from a2a_fabric.runtimes.http.endpoint import ExpressionParser, PollSettings
from a2a_fabric.runtimes.remote_work import CANCEL_TIMEOUT, POLL_TIMEOUT, BackgroundCancels, PollPace, poll_until
from a2a_fabric.runtimes.upstream import (
    STATUS_ERRORS,
    decode_json,
    error_from_outbound,
    error_from_status,
    read_retry_after,
    redact_url,
)

_LOCATION_HEADERS = ("operation-location", "location", "content-location")
_GROWTH = 1.5
_SEE_OTHER = 303


class ResultPoller:
    """Polls the API of one agent."""

    def __init__(
        self, agent_id: str, http: HTTPClient, poll: PollSettings | None, limit: int, expressions: ExpressionParser
    ) -> None:
        poll = poll or PollSettings()
        self._http = http
        self._poll = poll
        self._limit = limit
        self._until = expressions.parse(poll.until)
        self._failed = expressions.parse(poll.failed)
        self._result = expressions.parse(poll.result)
        self._location = expressions.parse(poll.location)
        self._progress = expressions.parse(poll.progress)
        self._cancels = BackgroundCancels(agent_id)

    def find_poll_url(self, reply: HTTPReply, url: str) -> str | None:
        """The address to poll, if the reply is not the answer. Raises UpstreamFailed if it has another origin."""
        if not self._is_pending(reply):
            return None
        if self._location is not None:
            location = self._location.find(decode_json(reply.body))
        else:
            location = next((reply.headers[name] for name in _LOCATION_HEADERS if reply.headers.get(name)), None)
        return None if location is None else _resolve_same_origin(url, str(location))

    async def wait_for_result(
        self, first_reply: HTTPReply, poll_url: str, headers: Mapping[str, str], emit: Emit
    ) -> HTTPReply:
        """Poll until the reply is the answer. Raises FabricError."""
        poll_headers = {name: value for name, value in headers.items() if name != "content-type"}
        listener = CallerEmitter(emit)
        try:
            last_reply = await self._poll_until_done(first_reply, poll_url, poll_headers, listener)
        except BaseException as error:
            is_answer = isinstance(error, FabricError) and error.is_answer
            if self._poll.cancel is not None and (listener.is_caller_gone or not is_answer):
                self._cancels.start(self._cancel(self._poll.cancel, poll_url, poll_headers))
            raise
        if self._result is None or not 200 <= last_reply.status < 300:
            return last_reply
        result = self._result.find(decode_json(last_reply.body))
        return HTTPReply(last_reply.status, {"content-type": "application/json"}, msgspec.json.encode(result))

    async def aclose(self) -> None:
        await self._cancels.aclose()

    async def _poll_until_done(
        self, first_reply: HTTPReply, poll_url: str, headers: Mapping[str, str], emit: Emit
    ) -> HTTPReply:
        poll, last_percent = self._poll, None

        async def fetch() -> HTTPReply:
            nonlocal last_percent
            reply = await self._poll_once(poll_url, headers)
            if self._is_pending(reply):
                last_percent = await self._report_progress(reply, last_percent, emit)
            return reply

        await asyncio.sleep(read_retry_after(first_reply.headers) or poll.every_ms / 1000)
        pace = PollPace(first=poll.every_ms / 1000 * _GROWTH, longest=poll.longest_ms / 1000)
        return await poll_until(
            fetch,
            lambda reply: not self._is_pending(reply),
            pace=pace,
            requested_pause=lambda reply: read_retry_after(reply.headers),
        )

    async def _poll_once(self, poll_url: str, headers: Mapping[str, str]) -> HTTPReply:
        """Raises FabricError, also for a reply that says to poll again."""
        reply = await self._request("GET", poll_url, headers)
        if reply.status == _SEE_OTHER and reply.headers.get("location"):
            reply = await self._request("GET", _resolve_same_origin(poll_url, reply.headers["location"]), headers)
        if reply.status in STATUS_ERRORS:
            error = error_from_status(reply.status)
            error.details["retry_after"] = read_retry_after(reply.headers)
            raise error
        return reply

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], timeout: float = POLL_TIMEOUT
    ) -> HTTPReply:
        try:
            return await self._http.request(method, url, headers=headers, timeout=timeout, limit=self._limit)
        except OutboundError as exc:
            raise error_from_outbound(exc, timeout, redact_url(url)) from exc

    def _is_pending(self, reply: HTTPReply) -> bool:
        """Raises UpstreamRefused once the work has failed."""
        if not 200 <= reply.status < 300:
            return False
        if self._failed is not None and reply.body and (failure := self._failed.find_or_none(decode_json(reply.body))):
            raise UpstreamRefused(
                failure[:500] if isinstance(failure, str) else "The agent says that its work has failed"
            )
        if self._until is not None:
            return not reply.body or not self._until.find_or_none(decode_json(reply.body))
        return reply.status == 202

    async def _report_progress(self, reply: HTTPReply, last_percent: Any, emit: Emit) -> Any:
        """Emit the progress if it has changed."""
        if self._progress is None or not reply.body:
            return last_percent
        percent = self._progress.find_or_none(decode_json(reply.body))
        if isinstance(percent, int | float) and not isinstance(percent, bool) and percent != last_percent:
            await emit(progress(float(percent)))
            return percent
        return last_percent

    async def _cancel(self, cancel_request: str, poll_url: str, headers: Mapping[str, str]) -> None:
        method, _, path = cancel_request.partition(" ")
        url = _resolve_same_origin(f"{poll_url.rstrip('/')}/", path) if path else poll_url
        await self._request(method, url, headers, CANCEL_TIMEOUT)


def _resolve_same_origin(url: str, location: str) -> str:
    """The absolute URL of the address. Raises UpstreamFailed if it has another origin."""
    try:
        absolute = urljoin(url, location)
        current, target = parse_url(url), parse_url(absolute)
    except (OutboundError, ValueError) as exc:
        raise UpstreamFailed(f"The agent names an address that cannot be polled: {exc}"[:300]) from exc
    if (current.scheme, current.host, current.port) != (target.scheme, target.host, target.port):
        raise UpstreamFailed("The agent names an address of another origin, which is never followed")
    return absolute
