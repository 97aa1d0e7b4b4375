"""APIs that answer "later": the address they name is asked again and again, ever less often, until it is done.

An API says so with a 202 and a place to ask (Location, Operation-Location or
Content-Location); the manifest's `poll` describes others. Only addresses of the same
origin are asked. Whoever stops waiting may have the work cancelled, where `poll.cancel` says how.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin

import msgspec

from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.events import progress
from a2a_fabric.core.listener import Listener
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.outbound.port import HTTPClient, OutboundError, Reply
from a2a_fabric.outbound.url import parse_url
from a2a_fabric.runtimes.farewells import SECONDS, Farewells
from a2a_fabric.runtimes.http_endpoint import Poll
from a2a_fabric.runtimes.http_exchange import json_of
from a2a_fabric.runtimes.http_expression import Expressions

_PLACES = ("operation-location", "location", "content-location")
_LOOK_SECONDS = 30.0  # for one look
_SHORTEST = 0.05
_LONGEST_WISH = 300.0  # of a server that says when to come again
_GROWTH = 1.5
_FORGIVEN = 5  # failed looks in a row
_PASSING = (429, 502, 503, 504)
_SEE_OTHER = 303


class Polling:
    """For one agent."""

    def __init__(
        self, agent_id: str, http: HTTPClient, poll: Poll | None, limit: int, expressions: Expressions
    ) -> None:
        poll = poll or Poll()
        self._http = http
        self._poll = poll
        self._limit = limit
        self._until = expressions.read(poll.until)
        self._failed = expressions.read(poll.failed)
        self._result = expressions.read(poll.result)
        self._location = expressions.read(poll.location)
        self._progress = expressions.read(poll.progress)
        self._farewells = Farewells(agent_id)

    def place(self, reply: Reply, url: str) -> str | None:
        """Where to ask for the answer, if this is not it. Raises UpstreamFailed if that is somewhere else entirely."""
        if not self._is_pending(reply):
            return None
        if self._location is not None:
            named = self._location.find(json_of(reply.body))
        else:
            named = next((reply.headers[name] for name in _PLACES if reply.headers.get(name)), None)
        return None if named is None else _same_origin(url, str(named))

    async def finished(self, first: Reply, place: str, headers: Mapping[str, str], emit: Emit) -> Reply:
        """The reply that is the answer. Ends by itself or by being cancelled. Raises FabricError."""
        asked = {name: value for name, value in headers.items() if name != "content-type"}
        listener = Listener(emit)
        try:
            last = await self._looked(first, place, asked, listener)
        except BaseException as error:
            is_answer = isinstance(error, FabricError) and error.is_answer
            if self._poll.cancel is not None and (listener.has_left or not is_answer):
                self._farewells.say(self._cancelled(self._poll.cancel, place, asked))
            raise
        if self._result is None or not 200 <= last.status < 300:
            return last
        found = self._result.find(json_of(last.body))
        return Reply(last.status, {"content-type": "application/json"}, msgspec.json.encode(found))

    async def aclose(self) -> None:
        await self._farewells.aclose()

    async def _looked(self, seen: Reply, place: str, headers: Mapping[str, str], emit: Emit) -> Reply:
        pause, failures, said = self._poll.every_ms / 1000, 0, None
        while True:
            await asyncio.sleep(_wish(seen) or pause)
            pause = min(pause * _GROWTH, self._poll.longest_ms / 1000)
            try:
                seen = await self._look(place, headers)
            except OutboundError as exc:
                failures += 1
                if failures > _FORGIVEN:
                    raise UpstreamInterrupted(f"The agent was lost sight of: {exc}"[:500]) from exc
                continue
            failures = failures + 1 if seen.status in _PASSING else 0
            if failures > _FORGIVEN:
                raise UpstreamInterrupted(f"The agent was lost sight of: its server answers {seen.status}")
            if not failures and not self._is_pending(seen):
                return seen
            said = await self._tell(seen, said, emit)

    async def _look(self, place: str, headers: Mapping[str, str]) -> Reply:
        seen = await self._http.request("GET", place, headers=headers, timeout=_LOOK_SECONDS, limit=self._limit)
        if seen.status == _SEE_OTHER and seen.headers.get("location"):
            result = _same_origin(place, seen.headers["location"])
            return await self._http.request("GET", result, headers=headers, timeout=_LOOK_SECONDS, limit=self._limit)
        return seen

    def _is_pending(self, reply: Reply) -> bool:
        """Raises UpstreamRefused once the work has failed."""
        if not 200 <= reply.status < 300:
            return False
        if self._failed is not None and reply.body and (why := self._failed.look(json_of(reply.body))):
            raise UpstreamRefused(why[:500] if isinstance(why, str) else "The agent says that its work has failed")
        if self._until is not None:
            return not reply.body or not self._until.look(json_of(reply.body))
        return reply.status == 202

    async def _tell(self, reply: Reply, said: Any, emit: Emit) -> Any:
        """How far it is, if that is new."""
        if self._progress is None or not reply.body:
            return said
        percent = self._progress.look(json_of(reply.body))
        if isinstance(percent, int | float) and not isinstance(percent, bool) and percent != said:
            await emit(progress(float(percent)))
            return percent
        return said

    async def _cancelled(self, how: str, place: str, headers: Mapping[str, str]) -> None:
        method, _, path = how.partition(" ")
        url = _same_origin(f"{place.rstrip('/')}/", path) if path else place
        try:
            await self._http.request(method, url, headers=headers, timeout=SECONDS, limit=self._limit)
        except OutboundError as exc:
            raise UpstreamInterrupted(str(exc)[:300]) from exc


def _same_origin(url: str, named: str) -> str:
    """The named address as an absolute one. Raises UpstreamFailed if it leads to another origin."""
    try:
        wanted = urljoin(url, named)
        here, there = parse_url(url), parse_url(wanted)
    except (OutboundError, ValueError) as exc:
        raise UpstreamFailed(f"The agent names an address that cannot be asked: {exc}"[:300]) from exc
    if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
        raise UpstreamFailed("The agent names an address of another origin, which is never followed")
    return wanted


def _wish(reply: Reply) -> float | None:
    """How long the server wants to be left alone."""
    told = reply.headers.get("retry-after", "").strip()
    if not told:
        return None
    try:
        seconds = float(told) if not told[0].isalpha() else _until_then(told, reply.headers.get("date", ""))
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, _SHORTEST), _LONGEST_WISH) if math.isfinite(seconds) else None


def _until_then(moment: str, now: str) -> float:
    """By the server's own clock."""
    return (parsedate_to_datetime(moment) - parsedate_to_datetime(now)).total_seconds()
